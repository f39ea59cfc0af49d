package announce

import (
	"cmp"
	"math"
	"net/netip"
)

// score returns a host's rank for a VIP by weighted rendezvous hashing. The highest score wins. Each
// host computes the same scores, and a host that comes or goes moves only its own share of the VIPs.
// The share of a host is in proportion to its weight.
func score(host string, addr netip.Addr, weight int) float64 {
	h := hash(host, addr)
	unit := (float64(h>>11) + 0.5) / (1 << 53) // in (0, 1)
	return -float64(weight) / math.Log(unit)
}

// hash is FNV-1a with the finalizer of MurmurHash3. FNV alone barely changes the high bits when
// the last byte changes, and most VIPs of a pool differ only there.
func hash(host string, addr netip.Addr) uint64 {
	const offset, prime = 14695981039346656037, 1099511628211
	h := uint64(offset)
	for i := range len(host) {
		h = (h ^ uint64(host[i])) * prime
	}
	h = (h ^ 0xff) * prime // not part of any name in UTF-8
	for _, b := range addr.As16() {
		h = (h ^ uint64(b)) * prime
	}
	h = (h ^ h>>33) * 0xff51afd7ed558ccd
	h = (h ^ h>>33) * 0xc4ceb9fe1a85ec53
	return h ^ h>>33
}

// candidate is a host that could own a VIP.
type candidate struct {
	host     *Host
	policy   Policy
	services int
	score    float64
}

// Reasons why a candidate comes after another one.
const (
	byMove     = "not chosen by an operator"
	byStandby  = "standby"
	byPriority = "lower priority"
	byServices = "fewer services"
	byHash     = "lower hash of host and VIP"
	byName     = "name"
)

// compare orders candidates: positive if c comes before o, with the reason why the other one comes after. It is the one rule
// of who owns a VIP, and equal on all hosts with the same claims. The operator's newest move comes first, and hosts
// on standby come last. Then the priority counts, then the number of services, so that a VIP that services share moves to where most of them work.
func (c *candidate) compare(o *candidate) (order int, why string) {
	switch {
	case c.policy.Moved != o.policy.Moved:
		return cmp.Compare(c.policy.Moved, o.policy.Moved), byMove
	case c.policy.Standby != o.policy.Standby:
		if c.policy.Standby {
			return -1, byStandby
		}
		return 1, byStandby
	case c.policy.Above != o.policy.Above:
		return cmp.Compare(c.policy.Above, o.policy.Above), byPriority
	case c.services != o.services:
		return cmp.Compare(c.services, o.services), byServices
	case c.score != o.score:
		return cmp.Compare(c.score, o.score), byHash
	}
	return -cmp.Compare(c.host.Name, o.host.Name), byName // never in practice
}

// before reports whether c comes before o.
func (c *candidate) before(o *candidate) bool {
	order, _ := c.compare(o)
	return order > 0
}
