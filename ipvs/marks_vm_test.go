//go:build linux && vm

package ipvs

import (
	"fmt"
	"net/netip"
	"strings"
	"testing"

	"github.com/ironvip/ironvip/internal/kernelplane/filter"
	"github.com/ironvip/ironvip/test/netlab"
	"github.com/ironvip/ironvip/vip"
)

// ranged makes f a frontend for all ports up to last. Target is the backends' port, or 0 for the
// client's destination port.
func ranged(f *vip.Frontend, last, target uint16) *vip.Frontend {
	return with(f, func(f *vip.Frontend) {
		f.Key.LastPort = last
		for i := range f.Backends {
			f.Backends[i].Addr = netip.AddrPortFrom(f.Backends[i].Addr.Addr(), target)
		}
	})
}

func onRealServer(f *vip.Frontend) *vip.Frontend {
	return with(f, func(f *vip.Frontend) {
		f.Kind, f.Forward, f.Masquerade = vip.OnRealServer, vip.ForwardDirect, vip.MasqueradeNever
	})
}

func internal(f *vip.Frontend) *vip.Frontend {
	return with(f, func(f *vip.Frontend) { f.Key.Audience = vip.InternalClients })
}

// everyRange calls f for each protocol and family with a frontend for the ports
// 7000 to 7099, whose backends listen at 7000, 7050, 7099 and, outside of it, at
// 7100.
func everyRange(t *testing.T, test func(t *testing.T, w *town, f *vip.Frontend)) {
	every(t, func(t *testing.T, at string, p vip.Protocol) {
		w := newTown(t, pods("10.77.1.0/24", "fd77:1::/64"))
		at = strings.Replace(at, ":80", ":7000", 1)
		for _, n := range w.Backends {
			for _, port := range []uint16{7000, 7050, 7099, 7100} {
				n.Serve(p.String(), netip.AddrPortFrom(w.node4or6(n, at), port))
			}
		}
		test(t, w, ranged(frontend(at, p, w.backends(at, 2)...), 7099, 0))
	})
}

func (w *town) port(f *vip.Frontend, port uint16) netip.AddrPort {
	return netip.AddrPortFrom(f.Key.Addr, port)
}

// All backends serve a range of ports from its first to its last, at the client's destination port.
// Other ports are refused.
func TestPortRange(t *testing.T) {
	everyRange(t, func(t *testing.T, w *town, f *vip.Frontend) {
		p := f.Key.Protocol.String()
		w.Create(t, f)
		w.Wants(t, f)
		for _, from := range []*netlab.Node{w.Client, w.Director} {
			for _, port := range []uint16{7000, 7050, 7099} {
				seen := map[string]bool{}
				for range 4 {
					a, err := from.Ask(p, w.port(f, port))
					if err != nil {
						t.Fatalf("%s asks port %d: %v", from.Name, port, err)
					}
					seen[a.Name] = true
					if owns(a.Client.Addr()) || a.Client.Addr() == w.node4or6(w.Client, f.Key.AddrPort().String()) {
						t.Errorf("%s at port %d is seen as %s", from.Name, port, a.Client)
					}
				}
				if len(seen) != 2 {
					t.Errorf("%s at port %d was answered by %v", from.Name, port, seen)
				}
			}
			for _, port := range []uint16{6999, 7100, hostPort} {
				w.refused(t, from, f.Key.Protocol, w.port(f, port))
			}
			w.refused(t, from, f.Key.Protocol, w.port(f, 7001)) // by the backend
			ping(t, from, f.Key.Addr)
		}
		one := with(f, func(f *vip.Frontend) { f.Backends = f.Backends[:1] })
		w.change(t, f, one)
		if a, err := w.Backends[0].Ask(p, w.port(f, 7050)); err != nil || a.Name != "backend1" {
			t.Errorf("a backend that reaches itself: %v, %v", a, err)
		}
		quiet := with(one, func(f *vip.Frontend) { f.Backends[0].Weight = 0 })
		w.change(t, one, quiet)
		for _, from := range []*netlab.Node{w.Client, w.Director} {
			w.refused(t, from, f.Key.Protocol, w.port(f, 7050))
		}
		fixed := ranged(one, 7099, 8080)
		w.change(t, quiet, fixed)
		if _, err := w.Client.Ask(p, w.port(f, 7033)); err != nil {
			t.Errorf("with a target port: %v", err)
		}
		w.Wants(t, fixed)

		// Another range that overlaps it replaces it.
		wider := ranged(f, 7100, 0)
		w.Put(t, updateOf{Key: fixed.Key, Old: fixed}, updateOf{Key: wider.Key, New: wider})
		w.Wants(t, wider)
		if _, err := w.Client.Ask(p, w.port(f, 7100)); err != nil {
			t.Errorf("the wider range: %v", err)
		}
		batch := []updateOf{{Key: f.Key, New: f}}
		if err := w.Apply(t.Context(), batch); err != nil || batch[0].Err == nil {
			t.Errorf("a range that overlaps another: %v, %v", err, batch[0].Err)
		}
		w.Wants(t, wider)
		w.remove(t, wider)
		w.Wants(t)
		w.Create(t, f)
		w.Wants(t, f)
		w.clean(t, f)
	})
}

// clean removes the present state and checks that nothing remains.
func (w *town) clean(t *testing.T, all ...*vip.Frontend) {
	t.Helper()
	for _, f := range all {
		w.remove(t, f)
	}
	if out := run(t, w.Director, "nft", "list", "table", "inet", "ironvip"); strings.Contains(out, "10.96.") || strings.Contains(out, "fd96:") || strings.Contains(out, "0x01000") {
		t.Errorf("something stays behind:\n%s", out)
	}
	if out := run(t, w.Director, "ipvsadm", "-Sn"); out != "" {
		t.Errorf("services stay behind:\n%s", out)
	}
}

// Masquerading and source ranges work in the same way for ranges of ports.
func TestPortRangeMasqueradeAndSources(t *testing.T) {
	everyRange(t, func(t *testing.T, w *town, f *vip.Frontend) {
		p := f.Key.Protocol.String()
		at := f.Key.AddrPort().String()
		for _, mode := range []vip.Masquerade{vip.MasqueradeAuto, vip.MasqueradeAlways, vip.MasqueradeNever, vip.MasqueradeOwn} {
			f := with(f, func(f *vip.Frontend) { f.Masquerade = mode })
			w.Create(t, f)
			w.Wants(t, f)
			for _, c := range []struct {
				from  *netlab.Node
				keeps bool
			}{
				{w.Client, mode == vip.MasqueradeNever || mode == vip.MasqueradeOwn},
				{w.Backends[0], mode != vip.MasqueradeAlways}, // a pod
			} {
				if mode == vip.MasqueradeNever && c.from != w.Client {
					continue // every second time it would reach itself, which can't work
				}
				for range 2 {
					a, err := c.from.Ask(p, w.port(f, 7050))
					if err != nil {
						t.Errorf("%s: %s: %v", mode, c.from.Name, err)
					} else if own := a.Name == c.from.Name; !own && (a.Client.Addr() == w.node4or6(c.from, at)) != c.keeps {
						t.Errorf("%s: %s is seen as %s", mode, c.from.Name, a.Client)
					}
				}
			}
			if mode != vip.MasqueradeNever {
				if a, err := w.Director.Ask(p, w.port(f, 7050)); err != nil || owns(a.Client.Addr()) {
					t.Errorf("%s: the director is seen as %v, %v", mode, a.Client, err)
				}
			}
			w.remove(t, f)
		}
		ranges := []string{"10.77.0.0/24", "fd77::/64"}
		limited := restricted(f, ranges...)
		w.Create(t, limited)
		w.Wants(t, limited)
		if _, err := w.Client.Ask(p, w.port(f, 7050)); err != nil {
			t.Errorf("an allowed client: %v", err)
		}
		w.refused(t, w.Backends[0], f.Key.Protocol, w.port(f, 7050))
		other := restricted(f, "192.0.2.0/24", "2001:db8::/32")
		w.change(t, limited, other)
		w.Wants(t, other)
		w.refused(t, w.Client, f.Key.Protocol, w.port(f, 7050))
		if _, err := w.Director.Ask(p, w.port(f, 7050)); err != nil {
			t.Errorf("this host's own connection: %v", err)
		}
		w.change(t, other, f)
		if _, err := w.Client.Ask(p, w.port(f, 7050)); err != nil {
			t.Errorf("without source ranges: %v", err)
		}
		w.clean(t, f)
	})
}

// Clients in the pod ranges and this host itself have their own backends and settings, beside those
// for everyone.
func TestInternalAudience(t *testing.T) {
	everyRange(t, func(t *testing.T, w *town, wide *vip.Frontend) {
		p := wide.Key.Protocol
		at := wide.Key.AddrPort().String()
		for _, cluster := range []*vip.Frontend{frontend(strings.Replace(at, ":7000", ":80", 1), p, w.backends(at, 2)...), wide} {
			port := max(cluster.Key.Port, cluster.Key.LastPort)
			local := with(cluster, func(f *vip.Frontend) { f.Backends, f.Masquerade = f.Backends[1:], vip.MasqueradeOwn })
			inside := internal(with(cluster, func(f *vip.Frontend) { f.Masquerade = vip.MasqueradeAuto }))
			w.Create(t, local, inside)
			w.Wants(t, local, inside)
			asks := func(from *netlab.Node, want ...string) {
				t.Helper()
				seen := map[string]bool{}
				for range 4 {
					a, err := from.Ask(p.String(), w.port(cluster, port))
					if err != nil {
						t.Fatalf("%s asks %s: %v", from.Name, cluster.Key, err)
					}
					seen[a.Name] = true
					if kept := a.Client.Addr() == w.node4or6(from, at); from == w.Client && !kept || from == w.Director && owns(a.Client.Addr()) {
						t.Errorf("%s is seen as %s", from.Name, a.Client)
					}
				}
				for _, name := range want {
					if !seen[name] || len(seen) != len(want) {
						t.Errorf("%s was answered by %v, want %v", from.Name, seen, want)
					}
				}
			}
			asks(w.Client, "backend2")
			asks(w.Director, "backend1", "backend2")
			asks(w.Backends[0], "backend1", "backend2") // a pod

			// Neither uses the other's backends.
			none := with(local, func(f *vip.Frontend) { f.Backends = nil })
			w.change(t, local, none)
			w.refused(t, w.Client, p, w.port(cluster, port))
			asks(w.Director, "backend1", "backend2")
			w.change(t, none, local)
			none = with(inside, func(f *vip.Frontend) { f.Backends = nil })
			w.change(t, inside, none)
			asks(w.Client, "backend2")
			w.refused(t, w.Director, p, w.port(cluster, port))
			w.refused(t, w.Backends[0], p, w.port(cluster, port))
			w.change(t, none, inside)

			// Source ranges concern pods, but not this host.
			limited := restricted(inside, "10.77.0.0/24", "fd77::/64")
			w.change(t, inside, limited)
			w.Wants(t, local, limited)
			w.refused(t, w.Backends[0], p, w.port(cluster, port))
			asks(w.Director, "backend1", "backend2")
			asks(w.Client, "backend2")
			w.clean(t, local, limited)
		}
	})
}

// A backend on the director itself also serves, and its packets don't keep the mark.
func TestPortRangeWithBackendOnTheDirector(t *testing.T) {
	everyRange(t, func(t *testing.T, w *town, f *vip.Frontend) {
		own := w.node4or6(w.Director, f.Key.AddrPort().String())
		at := w.Director.Serve(f.Key.Protocol.String(), netip.AddrPortFrom(own, 2300))
		here := with(f, func(f *vip.Frontend) { f.Backends = []vip.Endpoint{{Addr: at, Weight: 1}} })
		w.Create(t, here)
		for _, from := range []*netlab.Node{w.Client, w.Director} {
			for range 2 {
				if a, err := from.Ask(f.Key.Protocol.String(), w.port(f, 7050)); err != nil || a.Name != "director" {
					t.Errorf("%s: %v, %v", from.Name, a, err)
				}
			}
		}
		w.clean(t, here)
	})
}

// No packet that leaves has a frontend's mark, and a mark of another program's service is not used.
func TestMarksOfOthers(t *testing.T) {
	w := newTown(t)
	run(t, w.Director, "ipvsadm", "-A", "-f", fmt.Sprint(filter.MarkAt(0)), "-s", "sed")
	run(t, w.Director, "ipvsadm", "-A", "-f", "9", "-s", "sed")
	theirs := run(t, w.Director, "ipvsadm", "-Sn")
	runWith(t, w.Director, `table inet watch {
	set seen4 { type mark . inet_proto . ipv4_addr . ipv4_addr; flags dynamic; size 100; }
	set seen6 { type mark . inet_proto . ipv6_addr . ipv6_addr; flags dynamic; size 100; }
	chain post {
		type filter hook postrouting priority 300;
		meta mark & 0xff00107f != 0 add @seen4 { meta mark . meta l4proto . ip saddr . ip daddr }
		meta l4proto ipv6-icmp return # the kernel's multicast reports have any
		meta mark & 0xff00107f != 0 add @seen6 { meta mark . meta l4proto . ip6 saddr . ip6 daddr }
	}
}`, "nft", "-f", "-")
	w.Backends[0].Serve("tcp", netip.AddrPortFrom(w.Backends[0].Addr4, 7050))
	f := ranged(frontend("10.96.0.1:7000", vip.TCP, w.backends("10.96.0.1:80", 1)...), 7099, 0)
	w.Create(t, f)
	w.Wants(t, f)
	for _, from := range []*netlab.Node{w.Client, w.Director} {
		if _, err := from.Ask("tcp", w.port(f, 7050)); err != nil {
			t.Errorf("%s: %v", from.Name, err)
		}
	}
	if out := run(t, w.Director, "nft", "list", "table", "inet", "watch"); strings.Contains(out, "elements") {
		t.Errorf("marks leave this host: %s", out)
	}
	// One that takes our next mark while we don't look.
	run(t, w.Director, "ipvsadm", "-A", "-f", fmt.Sprint(filter.MarkAt(2)), "-s", "sed")
	g := ranged(frontend("10.96.0.2:7000", vip.TCP, w.backends("10.96.0.1:80", 1)...), 7099, 0)
	w.Create(t, g)
	w.Wants(t, f, g)
	if m := w.marks.get(g.Key); m == filter.MarkAt(2) || !filter.IsMark(m) {
		t.Errorf("the mark is %#x", m)
	}
	p := newPlane(t, w.Director)
	p.Wants(t, f, g)
	if p.marks.get(f.Key) != w.marks.get(f.Key) || p.marks.get(g.Key) != w.marks.get(g.Key) {
		t.Error("a successor has other marks")
	}
	p.remove(t, f)
	p.remove(t, g)
	run(t, w.Director, "ipvsadm", "-D", "-f", fmt.Sprint(filter.MarkAt(2)))
	if now := run(t, w.Director, "ipvsadm", "-Sn"); now != theirs {
		t.Errorf("services were\n%s\nand are\n%s", theirs, now)
	}
}

// The services of a real server reach its own listener. All other ports of the address are refused.
func TestRealServer(t *testing.T) {
	every(t, func(t *testing.T, at string, p vip.Protocol) {
		w := newTown(t)
		served := onRealServer(frontend(strings.Replace(at, ":80", ":2300", 1), p))
		wide := onRealServer(ranged(frontend(strings.Replace(at, ":80", ":7000", 1), p), 7099, 0))
		w.Create(t, served, wide)
		for _, port := range []uint16{2300, 7050, 7100} {
			w.Director.Serve(p.String(), w.port(served, port))
		}
		w.Wants(t, served, wide)
		if out := run(t, w.Director, "ipvsadm", "-Sn"); out != "" {
			t.Errorf("services on a real server:\n%s", out)
		}
		for _, port := range []uint16{2300, 7050} {
			if a, err := w.Client.Ask(p.String(), w.port(served, port)); err != nil || a.Name != "director" {
				t.Errorf("port %d: %v, %v", port, a, err)
			}
		}
		w.refused(t, w.Client, p, w.port(served, 7100))
		newPlane(t, w.Director).Wants(t, served, wide)
		w.clean(t, served, wide)
	})
}

// Queries for a frontend by its key cover its service by mark: connections, statistics, UDP clients
// of a backend that leaves.
func TestPortRangeIsCounted(t *testing.T) {
	everyRange(t, func(t *testing.T, w *town, f *vip.Frontend) {
		p := f.Key.Protocol.String()
		plain := frontend(w.port(f, 80).String(), f.Key.Protocol, w.backends(f.Key.AddrPort().String(), 1)...)
		w.Create(t, f, plain)
		c, err := w.Client.Dial(p, w.port(f, 7050))
		if err != nil {
			t.Fatal(err)
		}
		a, err := c.Ask()
		if err != nil {
			t.Fatal(err)
		}
		staying := 0
		if a.Name == "backend1" {
			staying = 1
		}
		count := func(key vip.FrontendKey) (n int) {
			t.Helper()
			all, err := w.Connections(t.Context(), key)
			if err != nil {
				t.Fatal(err)
			}
			for _, x := range all {
				n += x
			}
			return n
		}
		if n, m := count(f.Key), count(plain.Key); n != 1 || m != 0 {
			t.Errorf("%d connections of the range, %d of the port beside it", n, m)
		}
		if n := count(internal(f).Key); n != 0 {
			t.Errorf("%d connections of what isn't there", n)
		}
		w.Director.Do(func() {
			all, err := w.Totals(t.Context(), everyFrontend)
			if err != nil || all[f.Key].Active != 1 || all[plain.Key].Active != 0 || len(all) != 2 {
				t.Errorf("totals %+v, %v", all, err)
			}
			one, found, err := w.Breakdown(t.Context(), f.Key)
			if err != nil || !found || one.Active != 1 || len(one.Endpoints) != 2 {
				t.Errorf("breakdown %+v, %v, %v", one, found, err)
			}
		})
		if f.Key.Protocol == vip.UDP {
			left := with(f, func(f *vip.Frontend) { f.Backends = f.Backends[staying : staying+1] })
			w.change(t, f, left)
			if b, err := c.Ask(); err != nil || b.Name == a.Name {
				t.Errorf("after %s left: %v, %v", a.Name, b, err)
			}
			f = left
		}
		w.clean(t, f, plain)
	})
}

// What a dataplane left is also found and removed by mark, without changes to other programs'
// services.
func TestFindAndRemoveByMark(t *testing.T) {
	lab := netlab.New(t)
	run(t, lab.Director, "ipvsadm", "-A", "-f", "7", "-s", "wlc")
	before := run(t, lab.Director, "ipvsadm", "-Sn")
	f := ranged(frontend("10.96.0.1:7000", vip.TCP, addrs("10.77.1.2:80")...), 7099, 0)
	newPlane(t, lab.Director).Create(t, f, onRealServer(frontend("10.96.0.2:80", vip.TCP)))
	lab.Director.Do(func() {
		r, err := Find(t.Context(), Options{})
		if err != nil {
			t.Fatal(err)
		}
		defer r.Close()
		if len(r.Services) != 1 || r.Services[0].Key != f.Key || len(r.Addresses) != 2 {
			t.Errorf("found %s", found(r))
		}
		if err := r.Remove(t.Context()); err != nil {
			t.Error(err)
		}
	})
	if now := run(t, lab.Director, "ipvsadm", "-Sn"); now != before {
		t.Errorf("services were\n%s\nand are\n%s", before, now)
	}
}
