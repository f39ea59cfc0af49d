package nft

import (
	"net"
	"net/netip"
	"strings"
	"testing"

	"github.com/ironvip/ironvip/test/expect"
	"github.com/ironvip/ironvip/test/must"
	"github.com/ironvip/ironvip/vip"
)

// A client on the host itself reaches a virtual address, and backends see an address of the host. By a local route, the
// kernel gives such a client the virtual address itself as its source for IPv4, and an address of the host for IPv6.
func TestClientOnTheHost(t *testing.T) {
	w := newWorld(t)
	for _, network := range []string{"tcp", "udp"} {
		protocol := map[string]vip.Protocol{"tcp": vip.TCP, "udp": vip.UDP}[network]
		for _, addr := range []string{"10.96.0.1", "fd96::1"} {
			f := frontend(addr, 80, protocol, w.servers(network, strings.Contains(addr, ":"), 0)...)
			w.set(f)
			for _, m := range []vip.Masquerade{vip.MasqueradeAuto, vip.MasqueradeAlways} {
				f.Masquerade = m
				w.set(f)
				c := must.Get(w.Director.Dial(network, f.Key.AddrPort()))(t)
				a, err := c.Ask()
				must.Succeed(t, err)
				from, err := netip.ParseAddrPort(c.LocalAddr().String())
				must.Succeed(t, err)
				expect.Equal(t, from.Addr() == f.Key.Addr, f.Key.Addr.Is4(), "%s: the client at %s has the virtual address", f.Key, from)
				own := map[netip.Addr]bool{}
				w.Director.Do(func() {
					for _, x := range must.Get(net.InterfaceAddrs())(t) {
						own[netip.MustParsePrefix(x.String()).Addr()] = true
					}
				})
				expect.True(t, own[a.Client.Addr()], "%s: the backend saw %s", f.Key, a.Client)
			}
		}
	}
}

// A Target that finds its routes writes nothing, and one that finds addresses of an earlier agent replaces them: a
// connection stays open.
func TestStartOverAddresses(t *testing.T) {
	w := newWorld(t)
	var conns []func(when string)
	for _, addr := range []string{"10.96.0.1", "fd96::1"} {
		f := frontend(addr, 80, vip.TCP, w.servers("tcp", strings.Contains(addr, ":"), 0)...)
		w.set(f)
		c := must.Get(w.Client.Dial("tcp", f.Key.AddrPort()))(t)
		conns = append(conns, func(when string) {
			_, err := c.Ask()
			expect.Succeed(t, err, "%s: the connection with %s", when, f.Key)
		})
	}
	ask := func(when string) {
		for _, c := range conns {
			c(when)
		}
	}
	ask("before")
	w.Close()
	w.planeIn = newPlane(t, w.Director)
	w.check(w.planeIn)
	expect.Equal(t, w.writes(), 0, "writes of a start")
	w.Close()
	w.run(`ip addr add 10.96.0.1/32 dev ironvip0; ip addr add fd96::1/128 dev ironvip0 nodad noprefixroute
		ip route del local 10.96.0.1 table local proto 178; ip -6 route del local fd96::1 table local proto 178`)
	ask("with addresses")
	w.planeIn = newPlane(t, w.Director)
	w.check(w.planeIn)
	expect.Equal(t, w.VIPs.Writes(), 2, "routes added")
	expect.Equal(t, strings.Fields(w.run("ip -o addr show dev ironvip0 scope global"))[3], "169.254.255.1/32", "addresses")
	ask("with routes")
	for k := range w.have {
		w.remove(k)
	}
	expect.Equal(t, w.run("ip route show table local dev ironvip0 proto 178; ip -6 route show table local dev ironvip0 proto 178"), "", "routes at the end")
}
