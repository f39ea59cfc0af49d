package conntrack

import (
	"net/netip"
	"testing"

	"pgregory.net/rapid"

	"github.com/ironvip/ironvip/vip"
)

// The index finds the same flows as a search of all flows, and the kernel's filter selects all of
// them.
func TestFlowsAgainstEach(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		addr := func(label string) netip.Addr {
			return netip.AddrFrom4([4]byte{10, 0, 0, rapid.ByteRange(1, 2).Draw(t, label)})
		}
		port := func(label string) uint16 { return rapid.Uint16Range(1, 6).Draw(t, label) }
		all := Flows{}
		for range rapid.IntRange(1, 5).Draw(t, "flows") {
			k := vip.FrontendKey{Addr: addr("frontend"), Port: port("first"), Protocol: vip.UDP, Audience: rapid.SampledFrom([]vip.Audience{0, 1}).Draw(t, "audience")}
			if last := port("last"); last > k.Port {
				k.LastPort = last
			}
			var b netip.AddrPort
			switch rapid.IntRange(0, 2).Draw(t, "backend") {
			case 1:
				b = netip.AddrPortFrom(addr("backend"), port("backend port"))
			case 2:
				if k.Ranged() {
					b = netip.AddrPortFrom(addr("backend"), 0)
				}
			}
			all.Add(k, b)
		}
		x := Flow{
			Frontend: vip.FrontendKey{Addr: addr("client's frontend"), Port: port("client's port"), Protocol: vip.UDP},
			Backend:  netip.AddrPortFrom(addr("client's backend"), port("client's backend port")),
		}
		want := false
		for f := range all {
			k, b := f.Frontend, f.Backend
			want = want || k.Addr == x.Frontend.Addr && k.Port <= x.Frontend.Port && x.Frontend.Port <= max(k.Port, k.LastPort) &&
				(!b.IsValid() || b.Addr() == x.Backend.Addr() && (b.Port() == 0 || b.Port() == x.Backend.Port()))
		}
		if backend, whole := all.Index().Has(x); (backend || whole) != want {
			t.Fatalf("%v among %v: %v, %v, want %v", x, all, backend, whole, want)
		}
		if !want {
			return
		}
		c, any := all.Common(vip.IPv4, vip.UDP)
		if !any || c.Frontend.Addr.IsValid() && c.Frontend.Addr != x.Frontend.Addr || c.Frontend.Port != 0 && c.Frontend.Port != x.Frontend.Port ||
			c.Backend.Addr().IsValid() && c.Backend.Addr() != x.Backend.Addr() || c.Backend.Port() != 0 && c.Backend.Port() != x.Backend.Port() {
			t.Fatalf("the kernel is asked for %v, which %v is not", c, x)
		}
	})
}
