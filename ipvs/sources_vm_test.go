//go:build linux && vm

package ipvs

import (
	"fmt"
	"net/netip"
	"strings"
	"testing"

	"github.com/ironvip/ironvip/test/netlab"
	"github.com/ironvip/ironvip/vip"
)

func prefixes(all ...string) []netip.Prefix {
	var out []netip.Prefix
	for _, s := range all {
		out = append(out, netip.MustParsePrefix(s))
	}
	return out
}

func restricted(f *vip.Frontend, ranges ...string) *vip.Frontend {
	return with(f, func(f *vip.Frontend) { f.SourceRanges = prefixes(ranges...) })
}

// A client outside of a frontend's source ranges is refused at once. This host's own connections
// and open ones pass. Other frontends are not affected.
func TestSourceRanges(t *testing.T) {
	every(t, func(t *testing.T, at string, p vip.Protocol) {
		w := newTown(t)
		f := w.serve(t, at, p, 2)
		other := w.serve(t, strings.Replace(at, "80", "81", 1), p, 2)
		host := func(n *netlab.Node) string {
			a := w.node4or6(n, at)
			return netip.PrefixFrom(a, a.BitLen()).String()
		}
		passes := func(from *netlab.Node, f *vip.Frontend) {
			t.Helper()
			if _, err := from.Ask(p.String(), f.Key.AddrPort()); err != nil {
				t.Errorf("%s from %s: %v", f.Key, from.Name, err)
			}
		}
		open, err := w.Client.Dial(p.String(), f.Key.AddrPort())
		if err != nil {
			t.Fatal(err)
		}
		if _, err := open.Ask(); err != nil {
			t.Fatal(err)
		}

		onlyBackend := restricted(f, host(w.Backends[1]), "192.0.2.0/24", "2001:db8::/32")
		w.change(t, f, onlyBackend)
		w.refused(t, w.Client, p, f.Key.AddrPort())
		w.refused(t, w.Backends[0], p, f.Key.AddrPort())
		passes(w.Backends[1], f)
		passes(w.Director, f)
		passes(w.Client, other)
		ping(t, w.Client, f.Key.Addr)
		if _, err := open.Ask(); err != nil {
			t.Errorf("an open connection: %v", err)
		}

		wider := restricted(f, "10.77.0.0/23", "10.77.1.0/24", "fd77::/47", "fd77:1::/64")
		w.change(t, onlyBackend, wider)
		for _, n := range []*netlab.Node{w.Client, w.Backends[0], w.Director} {
			passes(n, f)
		}
		w.refused(t, w.Backends[1], p, f.Key.AddrPort())

		otherFamily := restricted(f, "fd00::/8")
		if f.Key.Addr.Is6() {
			otherFamily = restricted(f, "10.0.0.0/8")
		}
		w.change(t, wider, otherFamily)
		w.refused(t, w.Client, p, f.Key.AddrPort())
		passes(w.Director, f)
		w.Wants(t, otherFamily, other)

		all := restricted(f, "0.0.0.0/0", "::/0")
		w.change(t, otherFamily, all)
		passes(w.Client, f)
		w.Wants(t, f, other)
		w.change(t, all, f)
		passes(w.Client, f)
		w.remove(t, f)
		w.Wants(t, other)
		if out := run(t, w.Director, "nft", "list", "table", "inet", "ironvip"); strings.Contains(out, "192.0.2.0") || strings.Contains(out, host(w.Backends[1])) {
			t.Errorf("source ranges stay behind:\n%s", out)
		}
	})
}

// Where clients keep their address, only this host's own connections, and those of a backend to
// itself, are masqueraded.
func TestMasqueradeOwn(t *testing.T) {
	every(t, func(t *testing.T, at string, p vip.Protocol) {
		w := newTown(t)
		f := frontend(at, p, w.backends(at, 2)...)
		f.Masquerade = vip.MasqueradeOwn
		w.Create(t, f)
		w.Wants(t, f)
		for range 2 {
			if a, err := w.Client.Ask(p.String(), f.Key.AddrPort()); err != nil || a.Client.Addr() != w.node4or6(w.Client, at) {
				t.Errorf("the client is seen as %v, %v", a, err)
			}
			a, err := w.Director.Ask(p.String(), f.Key.AddrPort())
			if err != nil || owns(a.Client.Addr()) || !a.Client.Addr().IsValid() {
				t.Errorf("the director is seen as %v, %v", a, err)
			}
		}
		one := with(f, func(f *vip.Frontend) { f.Backends = f.Backends[:1] })
		w.change(t, f, one)
		if a, err := w.Backends[0].Ask(p.String(), f.Key.AddrPort()); err != nil || a.Name != "backend1" {
			t.Errorf("a backend that reaches itself: %v, %v", a, err)
		}
		if a, err := w.Backends[1].Ask(p.String(), f.Key.AddrPort()); err != nil || a.Client.Addr() != w.node4or6(w.Backends[1], at) {
			t.Errorf("a backend that reaches another is seen as %v, %v", a, err)
		}
		w.remove(t, one)
		w.Wants(t)
	})
}

// One change of source ranges is one transaction, whatever the number of
// restricted services, and one of anything else is none.
func TestOneChangeAmongRestrictedServices(t *testing.T) {
	for _, size := range []int{10, 1000} {
		p := newPlane(t, netlab.New(t).Director)
		all := many(size, 2)
		for i, f := range all {
			f.SourceRanges = prefixes("192.0.2.0/24", fmt.Sprintf("10.%d.%d.0/24", i/250, i%250), "198.51.100.7/32", "2001:db8::/32")
		}
		p.createAll(t, all)
		count := func(what string, f, g *vip.Frontend, ipvs, nft uint64) {
			t.Helper()
			before := p.Stats()
			p.change(t, f, g)
			after := p.Stats()
			if after.WritesSent-before.WritesSent != ipvs || after.NFTMessages-before.NFTMessages != nft {
				t.Errorf("%d restricted: %s cost %d ipvs and %d nftables messages", size, what, after.WritesSent-before.WritesSent, after.NFTMessages-before.NFTMessages)
			}
			p.change(t, g, f)
		}
		f := all[5]
		count("a weight", f, with(f, func(f *vip.Frontend) { f.Backends[0].Weight = 3 }), 1, 0)
		count("a source range more", f, with(f, func(f *vip.Frontend) { f.SourceRanges = append(prefixes("203.0.113.0/24"), f.SourceRanges...) }), 0, 1)
		count("a source range instead", f, with(f, func(f *vip.Frontend) { f.SourceRanges = append(prefixes("203.0.113.0/24"), f.SourceRanges[1:]...) }), 0, 3)
		p.Wants(t, all...)

		// The same for one with a mark; none of it is a reason to touch another.
		wide := ranged(restricted(frontend("10.96.250.1:7000", vip.TCP, addrs("172.16.0.1:80")...), "192.0.2.0/24"), 7099, 0)
		p.Create(t, wide)
		count("a weight behind a range of ports", wide, with(wide, func(f *vip.Frontend) { f.Backends[0].Weight = 3 }), 1, 0)
		count("a source range more of a range of ports", wide, restricted(wide, "192.0.2.0/24", "203.0.113.0/24"), 0, 1)
	}
}

// BenchmarkChangeAmongRestricted measures changes where 1,000 services have 2 source ranges each:
// of a service without source ranges, and of one with them.
func BenchmarkChangeAmongRestricted(b *testing.B) {
	for _, size := range []int{0, 1000} {
		for _, own := range []bool{false, true} {
			b.Run(fmt.Sprintf("restricted=%d/changed=%v", size, own), func(b *testing.B) {
				p := newPlane(b, netlab.New(b).Director)
				all := many(1000, 2)
				for i, f := range all[:size] {
					for j := range 2 {
						f.SourceRanges = append(f.SourceRanges, prefixes(fmt.Sprintf("10.%d.%d.0/24", i/10, 2*(i%10*10+j)))...)
					}
				}
				p.createAll(b, all)
				f := frontend("10.96.200.1:80", vip.TCP, addrs("172.16.0.1:8080")...)
				p.Create(b, f)
				g := with(f, func(f *vip.Frontend) { f.Backends = nil }) // refused: one transaction
				if own {
					g = restricted(f, "192.0.2.0/24")
				}
				for b.Loop() {
					p.change(b, f, g)
					f, g = g, f
				}
			})
		}
	}
}
