package configs

import (
	"fmt"
	"net/netip"

	"github.com/ironvip/ironvip/vip"
	"github.com/ironvip/ironvip/vip/spec/strict"
)

// overlaps checks the pools against each other and against the pod ranges.
func (v *validator) overlaps() {
	type claim struct {
		prefix      netip.Prefix
		what, field string
	}
	var claims []claim
	for i, p := range v.config.Pools {
		for n, c := range p.CIDRs {
			claims = append(claims, claim{c, fmt.Sprintf("pool %q", p.Name), strict.Index(strict.Index("pool", i)+".cidrs", n)})
		}
	}
	pools := len(claims)
	for n, c := range v.config.IPAM.PodCIDRs {
		claims = append(claims, claim{c, "pod range", strict.Index("ipam.pod_cidrs", n)})
	}
	for i, a := range claims[:pools] {
		for j, b := range claims {
			if j < pools && j <= i || !a.prefix.Overlaps(b.prefix) {
				continue
			}
			v.add(vip.Problem{Code: vip.CodeOverlap, Field: a.field, Hint: "change one of the two",
				Message: fmt.Sprintf("%s %s overlaps %s %s at %s", a.what, a.prefix, b.what, b.prefix, v.where(b.field))})
		}
	}
}
