package pipeline

import (
	"slices"

	"github.com/ironvip/ironvip/vip"
)

// ranged lists the frontends with port ranges, live or leaving, by address and protocol. There are
// few, and usually none.
type ranged map[addressProtocol][]vip.FrontendKey

func (r ranged) add(key vip.FrontendKey) {
	if l := addressProtocolOf(key); key.Ranged() && !slices.Contains(r[l], key) {
		r[l] = append(r[l], key)
	}
}

func (r ranged) remove(key vip.FrontendKey) {
	if !key.Ranged() {
		return
	}
	l := addressProtocolOf(key)
	rest := slices.DeleteFunc(r[l], func(k vip.FrontendKey) bool { return k == key })
	if len(rest) == 0 {
		delete(r, l)
	} else {
		r[l] = rest
	}
}

// overlapping returns the ranges of any service that have ports in common with key, without those
// of exactly its ports.
func (r ranged) overlapping(key vip.FrontendKey) (out []vip.FrontendKey) {
	first, last := ports(key)
	for _, k := range r[addressProtocolOf(key)] {
		if k.Port <= last && first <= k.LastPort && (k.Port != first || k.LastPort != last) {
			out = append(out, k)
		}
	}
	return out
}
