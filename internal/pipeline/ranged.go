package pipeline

import (
	"slices"

	"github.com/ironvip/ironvip/vip"
)

// ranged is which frontends of ranges of ports there are, live or leaving, by
// the lane that they are in: few, and mostly none.
type ranged map[lane][]vip.FrontendKey

func (r ranged) add(key vip.FrontendKey) {
	if l := laneOf(key); key.Ranged() && !slices.Contains(r[l], key) {
		r[l] = append(r[l], key)
	}
}

func (r ranged) remove(key vip.FrontendKey) {
	if !key.Ranged() {
		return
	}
	l := laneOf(key)
	rest := slices.DeleteFunc(r[l], func(k vip.FrontendKey) bool { return k == key })
	if len(rest) == 0 {
		delete(r, l)
	} else {
		r[l] = rest
	}
}

// overlapping returns the ranges that have ports in common with key, for
// whomever they are, but for those of just its ports.
func (r ranged) overlapping(key vip.FrontendKey) (out []vip.FrontendKey) {
	first, last := ports(key)
	for _, k := range r[laneOf(key)] {
		if k.Port <= last && first <= k.LastPort && (k.Port != first || k.LastPort != last) {
			out = append(out, k)
		}
	}
	return out
}
