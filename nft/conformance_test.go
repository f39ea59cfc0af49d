package nft

import (
	"net/netip"
	"testing"

	"github.com/ironvip/ironvip/plane/reconcile"
	"github.com/ironvip/ironvip/test/need"
	"github.com/ironvip/ironvip/test/netlab"
	"github.com/ironvip/ironvip/test/reconciletest"
	"github.com/ironvip/ironvip/vip"
)

// Slow: the whole suite of the dataplanes, with real traffic.
func TestConformance(t *testing.T) {
	need.Root(t)
	lab := netlab.New(t)
	var last *planeIn
	reconciletest.RunPlane(t, reconciletest.Harness{
		New: func(t *testing.T) reconcile.Plane {
			last = newPlane(t, lab.Director)
			return last
		},
		VIPs: []netip.Addr{netip.MustParseAddr("10.96.0.10"), netip.MustParseAddr("10.96.0.11"), netip.MustParseAddr("fd96::10")},
		Backends: func(t *testing.T, p vip.Protocol, f vip.Family, n int) []netip.AddrPort {
			var all []netip.AddrPort
			for i := range n {
				all = append(all, lab.Backends[i%len(lab.Backends)].ServeAddress(p, f))
			}
			return all
		},
		Ask:        func(t *testing.T, k vip.FrontendKey) (string, error) { return lab.Client.AskAddress(k) },
		Durable:    true,
		Schedulers: Schedulers(),
		Writes:     func() uint64 { return last.writes() },
	})
}
