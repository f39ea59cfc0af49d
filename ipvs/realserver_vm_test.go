//go:build linux && vm

package ipvs

import (
	"errors"
	"net/netip"
	"slices"
	"strings"
	"testing"

	"github.com/ironvip/ironvip/plane/kernel/host"
	"github.com/ironvip/ironvip/test/expect"
	"github.com/ironvip/ironvip/test/must"
	"github.com/ironvip/ironvip/test/netlab"
	"github.com/ironvip/ironvip/vip"
)

// real returns a real server's frontend for a director's frontend.
func real(f *vip.Frontend, node *netlab.Node) *vip.Frontend {
	return with(f, func(f *vip.Frontend) {
		f.Kind, f.Masquerade = vip.OnRealServer, vip.MasqueradeNever
		f.Backends = slices.DeleteFunc(f.Backends, func(b vip.Endpoint) bool { return !slices.Contains(ends(node), b.Addr.Addr()) })
	})
}

// direct returns a frontend without NAT, at the servers' own port.
func direct(lab *netlab.Lab, at string, p vip.Protocol, way vip.Forward) *vip.Frontend {
	ap := netip.MustParseAddrPort(at)
	var backends []netip.AddrPort
	for _, b := range lab.Backends {
		own := b.Addr4
		if ap.Addr().Is6() {
			own = b.Addr6
		}
		backends = append(backends, netip.AddrPortFrom(own, ap.Port()))
	}
	f := frontend(at, p, backends...)
	f.Forward, f.Masquerade = way, vip.MasqueradeNever
	return f
}

// Clients reach real servers that this dataplane prepared, by their own address
// and answered past IPVS, whatever the host's reverse path filter.
func TestRealServers(t *testing.T) {
	needTunnels(t)
	for _, way := range []vip.Forward{vip.ForwardDirect, vip.ForwardTunnel} {
		t.Run(way.String(), func(t *testing.T) {
			every(t, func(t *testing.T, at string, p vip.Protocol) {
				lab := netlab.New(t)
				f := direct(lab, at, p, way)
				var planes []*planeIn
				for i, b := range lab.Backends {
					b.Sysctl("ipv4/conf/all/rp_filter", []string{"0", "1"}[i])
					plane := newPlane(t, b)
					plane.Create(t, real(f, b))
					plane.Wants(t, real(f, b))
					planes = append(planes, plane)
					b.Serve(p.String(), f.Key.AddrPort())
					expect.Equal(t, run(t, b, "ipvsadm", "-Sn"), "", "services on a real server")
				}
				director := newPlane(t, lab.Director)
				director.Create(t, f)
				director.Wants(t, f)
				seen := map[string]int{}
				for range 6 {
					a := must.Get(lab.Client.Ask(p.String(), f.Key.AddrPort()))(t)
					if seen[a.Name]++; !slices.Contains(ends(lab.Client), a.Client.Addr()) {
						t.Errorf("%s saw the client as %s", a.Name, a.Client)
					}
				}
				if seen["backend1"] != 3 || seen["backend2"] != 3 {
					t.Errorf("six questions were answered by %v", seen)
				}
				// A restart with nothing changed writes nothing.
				again := newPlane(t, lab.Backends[0])
				again.Wants(t, real(f, lab.Backends[0]))
				again.change(t, real(f, lab.Backends[0]), real(f, lab.Backends[0]))
				expect.Equal(t, again.writes(), 0, "writes of a restart")
				// At the end nothing is left.
				planes[1].remove(t, real(f, lab.Backends[1]))
				planes[1].Wants(t)
				lab.Backends[0].Do(func() {
					expect.Succeed(t, errors.Join(again.VIPs.Remove(), again.Remove(t.Context())))
				})
				for i, b := range lab.Backends {
					out := run(t, b, "ip", "-o", "link", "show")
					if strings.Contains(out, "ironvip0a4d") || strings.Contains(out, host.NewTunnels(DefaultDevice, nil).Name(b.Addr6)) || i == 0 && strings.Contains(out, "ironvip") {
						t.Errorf("%s has devices left: %s", b.Name, out)
					}
				}
			})
		})
	}
}

// Only the directors answer for the virtual address on the network.
func TestRealServerIsQuiet(t *testing.T) {
	lab := netlab.New(t)
	b := lab.Backends[0]
	run(t, lab.Director, "ip", "route", "replace", "10.96.0.1/32", "dev", b.Name)
	answers := func() bool {
		run(t, lab.Director, "ip", "neigh", "flush", "all")
		_, _ = lab.Director.Ask("tcp", netip.MustParseAddrPort("10.96.0.1:80")) // makes the director look for it
		return strings.Contains(run(t, lab.Director, "ip", "neigh", "show", "to", "10.96.0.1"), "lladdr")
	}
	run(t, b, "ip", "addr", "add", "10.96.0.1/32", "dev", "lo")
	must.True(t, answers(), "without us it answers for every address that it has")
	run(t, b, "ip", "addr", "del", "10.96.0.1/32", "dev", "lo")
	b.Sysctl("ipv4/ip_forward", "0")
	p := newPlane(t, b, func(o *Options) { o.RealServer = true })
	p.Create(t, real(direct(lab, "10.96.0.1:80", vip.TCP, vip.ForwardDirect), b))
	b.Do(func() {
		f := p.Target.sysctl.Check(host.Setting{Key: "ipv4/ip_forward", Value: "0"})
		expect.True(t, f.OK, "a real server was made to forward: %v", f)
	})
	expect.False(t, answers(), "the real server answered for the virtual address")
}

// A connection continues when its packets move to another director. The other director selects the
// same backend, and accepts any packet as the first.
func TestConnectionMovesBetweenDirectors(t *testing.T) {
	needTunnels(t)
	for at, way := range map[string]vip.Forward{"10.96.0.1:80": vip.ForwardDirect, "[fd96::1]:80": vip.ForwardTunnel, "10.96.0.1:80-89": vip.ForwardTunnel} {
		t.Run(way.String()+" "+at, func(t *testing.T) {
			at, _, ofRange := strings.Cut(at, "-")
			lab := netlab.New(t)
			second := lab.AddDirector("director2")
			f := direct(lab, at, vip.TCP, way)
			f.Scheduler, f.SchedulerPort = vip.MaglevHash, true
			to := f.Key.AddrPort()
			if ofRange {
				f, to = ranged(f, 89, 0), netip.AddrPortFrom(f.Key.Addr, 85)
			}
			for _, b := range lab.Backends {
				newPlane(t, b).Create(t, real(f, b))
				b.Serve("tcp", to)
			}
			newPlane(t, lab.Director).Create(t, f)
			newPlane(t, second.Node).Create(t, f)
			var conns []*netlab.Conn
			var names []string
			seen := map[string]int{}
			for range 13 {
				c := must.Get(lab.Client.Dial("tcp", to))(t)
				a := must.Get(c.Ask())(t)
				conns, names = append(conns, c), append(names, a.Name)
				seen[a.Name]++
			}
			must.AtLeast(t, len(seen), 2, "all connections are with %v", seen)
			// Everything goes past the first director from now on, answers too.
			through := func(n *netlab.Node, dst netip.Addr) {
				n.Via(netip.PrefixFrom(dst, dst.BitLen()), second.Facing(n, dst))
			}
			client := lab.Client.Addr4
			if f.Key.Addr.Is6() {
				client = lab.Client.Addr6
			}
			through(lab.Client, f.Key.Addr)
			for _, b := range lab.Backends {
				through(b, client)
			}
			last := conns[0]
			conns, names = conns[1:], names[1:]
			for i, c := range conns {
				if a, err := c.Ask(); err != nil || a.Name != names[i] {
					t.Errorf("connection %d was with %s: %v, %v", i, names[i], a, err)
				}
			}
			if out := run(t, second.Node, "ipvsadm", "-Lcn"); strings.Count(out, "TCP") < len(conns) {
				t.Errorf("the second director has not all of %d connections: %s", len(conns), out)
			}
			// Without sloppy_tcp, a connection that began elsewhere is refused.
			second.Sysctl("ipv4/vs/sloppy_tcp", "0")
			if a, err := last.Ask(); err == nil {
				t.Errorf("a connection in its middle was taken on by a host that begins with their first packet only: %v", a)
			}
		})
	}
}
