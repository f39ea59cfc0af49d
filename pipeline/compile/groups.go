package compile

import (
	"cmp"
	"math"
	"net/netip"
	"slices"

	"github.com/ironvip/ironvip/vip"
)

// GroupWeight returns the weight in effect for a group: the override if there is one, else the source's weight.
func (v *View) GroupWeight(g *vip.Group) uint32 {
	if v.Regroup != nil {
		if weight, ok := v.Regroup(vip.OverrideKey{BackendKey: vip.BackendKey{Service: v.Service.Key}, Group: g.Name}); ok {
			return weight
		}
	}
	return g.Weight
}

// Weightless reports whether a backend takes no new connections because its weight or that of its group is 0.
func (v *View) Weightless(b *vip.Backend) bool {
	g := v.Service.GroupOf(b)
	return b.Weight == 0 || g != nil && v.GroupWeight(g) == 0
}

const (
	// largestExact bounds the weights that Share computes without rounding. The kernel's wrr sends that many connections to one
	// backend in a row.
	largestExact = 1000
	// smallestRounded is the smallest weight of rounded ones: rounding changes it by half a percent at most.
	smallestRounded = 100
)

// Share replaces the weights of the endpoints of a service port, which count within a group only, with weights among all
// endpoints. Each group then has the share of its weight among the groups with a usable endpoint, whatever their number. The
// weight of an endpoint counts by the step of its slow start, so that the other endpoints of its group take the rest.
//
// The result is exact if no weight exceeds 1000, and otherwise rounded by at most 0.5 % of each weight, unless one endpoint
// takes more than 655 times the connections of another: MaxWeight bounds the weights, and a usable endpoint has at least 1.
func (v *View) Share(port string, all []vip.Endpoint) {
	groups := v.Service.Groups
	if len(groups) == 0 {
		return
	}
	of, own := make([]uint8, len(all)), make([]uint64, len(all))
	var sums, divisors, units [vip.MaxGroups + 1]uint64 // the last is that of backends of no group
	for i := range all {
		e := &all[i]
		if e.Weight == 0 {
			continue
		}
		name := v.groupOf(port, e.Addr)
		g := slices.IndexFunc(groups, func(g vip.Group) bool { return g.Name == name })
		if g < 0 {
			g = vip.MaxGroups
		}
		of[i], own[i] = uint8(g), uint64(e.Weight)*uint64(cmp.Or(e.Step, vip.SlowStartSteps))
		sums[g] += own[i]
		divisors[g] = gcd(divisors[g], own[i])
	}
	// An endpoint's share is its own weight x unit, with unit = weight of the group / sum of own weights.
	multiple := uint64(1) // of all denominators; 0: too large
	for g, sum := range sums {
		if sum == 0 {
			continue
		}
		units[g] = vip.DefaultWeight
		if g < len(groups) {
			units[g] = uint64(v.GroupWeight(&groups[g]))
		}
		if sums[g] /= divisors[g]; multiple != 0 {
			d := sums[g] / gcd(sums[g], units[g])
			if multiple /= gcd(multiple, d); multiple > math.MaxUint32/d {
				multiple = 0
			} else {
				multiple *= d
			}
		}
	}
	weights, divisor, largest := make([]uint64, len(all)), uint64(0), uint64(0)
	least, most := math.Inf(1), 0.0
	for i, g := range of {
		if own[i] == 0 {
			continue
		}
		own[i] /= divisors[g]
		weights[i] = units[g] * multiple / sums[g] * own[i]
		divisor, largest = gcd(divisor, weights[i]), max(largest, weights[i])
		x := float64(units[g]) * float64(own[i]) / float64(sums[g])
		least, most = min(least, x), max(most, x)
	}
	scale := min(smallestRounded/least, vip.MaxWeight/most)
	exact := multiple != 0 && divisor != 0 && (largest/divisor <= largestExact || float64(largest/divisor) <= scale*most)
	for i, g := range of {
		switch {
		case own[i] == 0:
		case exact:
			all[i].Weight = uint16(weights[i] / divisor)
		default:
			x := float64(units[g]) * float64(own[i]) / float64(sums[g])
			all[i].Weight = uint16(max(1, math.Round(x*scale)))
		}
	}
}

// groupOf returns the group of the backend that an endpoint of a service port is, which is "" for none.
func (v *View) groupOf(port string, a netip.AddrPort) (group string) {
	all := v.Service.Backends
	i, _ := slices.BinarySearchFunc(all, a.Addr(), func(b vip.Backend, a netip.Addr) int { return b.Address.Compare(a) })
	for ; i < len(all) && all[i].Address == a.Addr(); i++ {
		if b := &all[i]; b.Serves(port) && (b.Port == 0 || b.Port == a.Port()) { // the one that states its port is later
			group = b.Group
		}
	}
	return group
}

func gcd(a, b uint64) uint64 {
	for b != 0 {
		a, b = b, a%b
	}
	return a
}
