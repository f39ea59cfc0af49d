package ipam

import (
	"fmt"
	"net/netip"
	"slices"
	"testing"

	"pgregory.net/rapid"

	"github.com/ironvip/ironvip/vip"
)

// After random changes each service has the leases that name it, oldest first.
func TestHoldingsFollowLeases(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		h, leases, oracle := NewHoldings(), map[Resource]*Lease{}, map[vip.ServiceKey][]Resource{}
		key := func(i int) vip.ServiceKey { return vip.ServiceKey{Name: fmt.Sprint(i)} }
		for range rapid.IntRange(1, 60).Draw(t, "changes") {
			r := Resource{Addr: netip.AddrFrom4([4]byte{10, 0, 0, rapid.Byte().Draw(t, "address") % 6})}
			var now *Lease
			for _, i := range rapid.SliceOfN(rapid.IntRange(0, 4), 0, 4).Draw(t, "holders") {
				if now == nil {
					now = &Lease{Resource: r}
				}
				now.Holders = append(now.Holders, Holder{Service: key(i)})
			}
			old := leases[r]
			h.Follow(old, now)
			leases[r] = now
			for i := range 5 {
				k := key(i)
				had, has := old != nil && old.HolderOf(k) != nil, now != nil && now.HolderOf(k) != nil
				switch {
				case has && !had:
					oracle[k] = append(oracle[k], r)
				case had && !has:
					oracle[k] = slices.DeleteFunc(oracle[k], func(o Resource) bool { return o == r })
				}
				if got := slices.Collect(h.Of(k)); !slices.Equal(got, oracle[k]) || h.Any(k) != (len(got) > 0) {
					t.Fatalf("%s holds %v, should be %v", k, got, oracle[k])
				}
			}
		}
	})
}
