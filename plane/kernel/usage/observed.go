package usage

import (
	"net/netip"
	"slices"

	"github.com/ironvip/ironvip/plane/reconcile"
	"github.com/ironvip/ironvip/vip"
)

// Blame adds damage that concerns all frontends, and that the repair of any of them repairs, to the one with the lowest key:
// the same one each time.
func Blame(all []reconcile.Observed[vip.Frontend], damage []string) {
	if len(all) == 0 || len(damage) == 0 {
		return
	}
	first := 0
	for i := range all {
		if vip.CompareFrontendKeys(all[i].Value.Key, all[first].Value.Key) < 0 {
			first = i
		}
	}
	all[first].Damage = slices.Concat(all[first].Damage, damage)
}

// Orphan returns what is at an address and belongs to no frontend.
func Orphan(a netip.Addr, damage ...string) reconcile.Observed[vip.Frontend] {
	return reconcile.Observed[vip.Frontend]{Value: vip.Frontend{Key: vip.FrontendKey{Addr: a}, Kind: vip.OnVIP}, Damage: damage, Orphan: true}
}
