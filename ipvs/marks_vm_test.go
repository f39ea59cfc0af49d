//go:build linux && vm

package ipvs

import (
	"fmt"
	"net/netip"
	"strings"
	"testing"

	"github.com/ironvip/ironvip/plane/kernel/filter"
	"github.com/ironvip/ironvip/test/expect"
	"github.com/ironvip/ironvip/test/must"
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

func (w *town) port(f *vip.Frontend, port uint16) netip.AddrPort {
	return netip.AddrPortFrom(f.Key.Addr, port)
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
		_, err := from.Ask("tcp", w.port(f, 7050))
		expect.Succeed(t, err, from.Name)
	}
	out := run(t, w.Director, "nft", "list", "table", "inet", "watch")
	expect.False(t, strings.Contains(out, "elements"), "marks leave this host: %s", out)
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
	expect.Equal(t, run(t, w.Director, "ipvsadm", "-Sn"), theirs, "services")
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
		expect.Equal(t, run(t, w.Director, "ipvsadm", "-Sn"), "", "services on a real server")
		for _, port := range []uint16{2300, 7050} {
			if a, err := w.Client.Ask(p.String(), w.port(served, port)); err != nil || a.Name != "director" {
				t.Errorf("port %d: %v, %v", port, a, err)
			}
		}
		w.refused(t, w.Client, p, w.port(served, 7100))
		next := newPlane(t, w.Director)
		next.Wants(t, served, wide)
		next.remove(t, served)
		next.remove(t, wide)
		next.Wants(t)
	})
}

// Queries for a frontend by its key cover its service by mark: connections and statistics.
func TestPortRangeIsCounted(t *testing.T) {
	every(t, func(t *testing.T, at string, p vip.Protocol) {
		w := newTown(t)
		plain := w.serve(t, at, p, 1)
		f := ranged(frontend(strings.Replace(at, ":80", ":7000", 1), p, w.backends(at, 2)...), 7099, 8080)
		w.Create(t, f)
		c := must.Get(w.Client.Dial(p.String(), w.port(f, 7050)))(t)
		must.Get(c.Ask())(t)
		for key, want := range map[vip.FrontendKey]int{f.Key: 1, plain.Key: 0, internal(f).Key: 0} {
			n := 0
			for _, x := range must.Get(w.Connections(t.Context(), key))(t) {
				n += x
			}
			expect.Equal(t, n, want, "connections of %s", key)
		}
		all := must.Get(totalsAt(t, w.Director, w.Target, everyFrontend))(t)
		if all[f.Key].Active != 1 || all[plain.Key].Active != 0 || len(all) != 2 {
			t.Errorf("totals %+v", all)
		}
		one, found, err := w.Breakdown(t.Context(), f.Key)
		if err != nil || !found || one.Active != 1 || len(one.Endpoints) != 2 {
			t.Errorf("breakdown %+v, %v, %v", one, found, err)
		}
	})
}

// The leftovers of a dataplane are also found and removed by mark, without changes to other
// programs' services.
func TestFindAndRemoveByMark(t *testing.T) {
	lab := netlab.New(t)
	run(t, lab.Director, "ipvsadm", "-A", "-f", "7", "-s", "wlc")
	before := run(t, lab.Director, "ipvsadm", "-Sn")
	f := ranged(frontend("10.96.0.1:7000", vip.TCP, addrs("10.77.1.2:80")...), 7099, 0)
	newPlane(t, lab.Director).Create(t, f, onRealServer(frontend("10.96.0.2:80", vip.TCP)))
	lab.Director.Do(func() {
		r := findAll(t, func(netip.Addr) bool { return false })
		defer r.vips.Close()
		defer r.Close()
		if len(r.Frontends) != 1 || r.Frontends[0].Key != f.Key || len(r.vips.Addresses) != 2 {
			t.Errorf("found %s", found(r))
		}
		expect.Succeed(t, r.remove(t.Context()))
	})
	expect.Equal(t, run(t, lab.Director, "ipvsadm", "-Sn"), before, "services")
}
