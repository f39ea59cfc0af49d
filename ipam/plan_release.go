package ipam

import (
	"slices"
	"time"

	"github.com/ironvip/ironvip/vip"
)

// leastCooling is how long a lease cools down at least if hosts share the store: a host that still
// names the service must be able to claim it back.
const leastCooling = 10 * time.Second

// releasePlan computes the ops that have services give up resources. Like a plan, it reads a state
// and changes nothing. A shared address may lose several holders at once: that is one op for each
// MaxHolders of them, and each builds on the one before.
type releasePlan struct {
	*state
	now   vip.Instant
	ops   []Op
	last  map[Resource]int // each resource's last op
	count []int            // how many holders each op removes
}

func newReleasePlan(s *state, now time.Time) *releasePlan {
	return &releasePlan{state: s, now: vip.InstantOf(now), last: make(map[Resource]int)}
}

// planned returns the lease as the ops make it, or nil.
func (p *releasePlan) planned(r Resource) *Lease {
	if i, ok := p.last[r]; ok {
		return p.ops[i].New
	}
	l, _, _ := p.leases.Get(r)
	return l
}

// release plans that k gives up a resource, and returns the op's index, or -1 if k doesn't hold it.
func (p *releasePlan) release(r Resource, k vip.ServiceKey, cooldown time.Duration) int {
	l := p.planned(r)
	if l == nil || l.HeldBy(k) < 0 {
		return -1
	}
	i, ok := p.last[r]
	if !ok || p.count[i] >= MaxHolders {
		i = len(p.ops)
		p.ops, p.count = append(p.ops, Op{Old: l}), append(p.count, 0)
		p.last[r] = i
	}
	p.ops[i].New = p.without(*l, k, cooldown)
	p.count[i]++
	return i
}

// without returns a held lease after k has left it: held by the others, cooling, or nil for free.
func (p *releasePlan) without(l Lease, k vip.ServiceKey, cooldown time.Duration) *Lease {
	i := l.HeldBy(k)
	if len(l.Holders) > 1 {
		l.Holders = slices.Delete(slices.Clone(l.Holders), i, i+1)
		return &l
	}
	wait := max(p.cfg.ReuseDelay, cooldown)
	if p.node != "" {
		wait = max(wait, leastCooling)
	}
	if wait <= 0 {
		return nil
	}
	l.State, l.ShareKey, l.Until = Cooling, "", p.now.Add(wait)
	l.Holders = []Holder{{Service: k, Source: l.Holders[i].Source, Port: l.Holders[i].Port, Node: p.node}}
	return &l
}
