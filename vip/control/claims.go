package control

import (
	"fmt"
	"slices"

	"github.com/ironvip/ironvip/vip"
)

// claims are which service has which frontend key, and who would like to. The
// allocator sees to it that no two services want the same key, but for one
// case: a service that shares its address and asks for a port that is taken
// keeps its address, and thereby asks for the key.
type claims struct {
	owner  map[vip.FrontendKey]vip.ServiceKey
	losers map[vip.FrontendKey][]vip.ServiceKey // in the order of their last try
	lost   map[vip.ServiceKey][]vip.FrontendKey // the same by service
}

func newClaims() claims {
	return claims{
		owner:  make(map[vip.FrontendKey]vip.ServiceKey),
		losers: make(map[vip.FrontendKey][]vip.ServiceKey),
		lost:   make(map[vip.ServiceKey][]vip.FrontendKey),
	}
}

// held reports whether any service has the key.
func (c *claims) held(key vip.FrontendKey) bool {
	_, ok := c.owner[key]
	return ok
}

// release gives up k's claim and reports whether it had one.
func (c *claims) release(key vip.FrontendKey, k vip.ServiceKey) bool {
	if owner, ok := c.owner[key]; !ok || owner != k {
		return false
	}
	delete(c.owner, key)
	return true
}

// lose notes that k would like to have the key.
func (c *claims) lose(key vip.FrontendKey, k vip.ServiceKey) {
	c.losers[key] = append(c.losers[key], k)
	c.lost[k] = append(c.lost[k], key)
}

// withdraw forgets what k would like to have.
func (c *claims) withdraw(k vip.ServiceKey) {
	for _, key := range c.lost[k] {
		rest := slices.DeleteFunc(c.losers[key], func(l vip.ServiceKey) bool { return l == k })
		if len(rest) == 0 {
			delete(c.losers, key)
		} else {
			c.losers[key] = rest
		}
	}
	delete(c.lost, k)
}

// contest claims the key for k. The first to claim it keeps it, unless the
// allocator told the first and not k that this very port is taken: the
// allocator's word decides, whatever the order of compiling was. Clashes says
// that it told k so of some port.
func (c *Compile) contest(key vip.FrontendKey, k vip.ServiceKey, clashes bool) (winner vip.ServiceKey, lost bool) {
	yields := clashes && c.yields(k, key)
	owner, held := c.claims.owner[key]
	switch {
	case !held:
		c.claims.owner[key] = k
	case owner == k:
		if yields {
			for _, loser := range c.claims.losers[key] {
				c.todo.add(loser)
			}
		}
	case !yields && c.yields(owner, key):
		c.claims.owner[key] = k
		c.todo.add(owner)
	default:
		c.claims.lose(key, k)
		return owner, true
	}
	return k, false
}

// yields reports whether the allocator refused the key's port to k. Others that
// it refused, node ports among them, don't count.
func (c *Compile) yields(k vip.ServiceKey, key vip.FrontendKey) bool {
	granted, _, _ := c.Allocations.Get(k)
	if !hasCode(granted.Problems, vip.CodePortTaken) {
		return false
	}
	service, _, _ := c.Services.Get(k)
	for i, p := range service.Ports {
		if p.Port != key.Port || p.Protocol != key.Protocol {
			continue
		}
		field := fmt.Sprintf("ports[%d].port", i)
		return slices.ContainsFunc(granted.Problems, func(p vip.Problem) bool { return p.Code == vip.CodePortTaken && p.Field == field })
	}
	return false
}

// taken is the problem of a service that wants another one's frontend.
func taken(key vip.FrontendKey, k, winner vip.ServiceKey) vip.Problem {
	return vip.Problem{
		Code:    vip.CodePortTaken,
		Service: k.String(),
		Message: fmt.Sprintf("%s is served by service %q", key, winner),
		Hint:    "choose another port or address, or remove it from that service",
	}
}
