package plan

import (
	"slices"
	"time"

	"github.com/ironvip/ironvip/ipam"
	"github.com/ironvip/ironvip/vip"
)

// leastCooling is how long a lease cools down at least if hosts share the store: a host that still
// names the service must be able to claim it back.
const leastCooling = 10 * time.Second

// Releases computes the ops that have services give up resources. Like a Plan, it reads a state
// and changes nothing. A shared address may lose several holders at once: that is one op for each
// MaxHolders of them, and each builds on the one before.
type Releases struct {
	state *State
	now   vip.Instant
	Ops   []ipam.Op             // in order
	last  map[ipam.Resource]int // each resource's last op
}

// NewReleases returns an empty plan.
func NewReleases(s *State, now time.Time) *Releases {
	return &Releases{state: s, now: vip.InstantOf(now), last: make(map[ipam.Resource]int)}
}

// planned returns the lease as the ops make it, or nil.
func (p *Releases) planned(r ipam.Resource) *ipam.Lease {
	if i, ok := p.last[r]; ok {
		return p.Ops[i].New
	}
	l, _, _ := p.state.leases.Get(r)
	return l
}

// Release plans that k gives up a resource, and returns the op's index, or -1 if k doesn't hold it.
func (p *Releases) Release(r ipam.Resource, k vip.ServiceKey, cooldown time.Duration) int {
	l := p.planned(r)
	if l == nil || l.HeldBy(k) < 0 {
		return -1
	}
	i, ok := p.last[r]
	if !ok || len(p.Ops[i].Old.Holders)-len(l.Holders) >= ipam.MaxHolders {
		i = len(p.Ops)
		p.Ops = append(p.Ops, ipam.Op{Old: l})
		p.last[r] = i
	}
	p.Ops[i].New = p.without(*l, k, cooldown)
	return i
}

// ReleaseAll plans that a service gives up everything that it may, or everything if may is nil, and returns the indexes of the ops.
func (p *Releases) ReleaseAll(gone ipam.Released, may func(ipam.Holder) bool) (ops []int) {
	for r := range p.state.index.owned.Of(gone.Service) {
		if may != nil {
			l := p.planned(r)
			if l == nil || l.HeldBy(gone.Service) < 0 || !may(*l.HolderOf(gone.Service)) {
				continue
			}
		}
		if op := p.Release(r, gone.Service, gone.Cooldown); op >= 0 {
			ops = append(ops, op)
		}
	}
	return ops
}

// without returns a held lease after k has left it: held by the others, reserved, cooling, or nil for
// free.
func (p *Releases) without(l ipam.Lease, k vip.ServiceKey, cooldown time.Duration) *ipam.Lease {
	i := l.HeldBy(k)
	if len(l.Holders) > 1 {
		l.Holders = slices.Delete(slices.Clone(l.Holders), i, i+1)
		return &l
	}
	if l.Reservation != nil {
		return l.Unheld(&ipam.Holder{Service: k, Source: l.Holders[i].Source, Node: p.state.Node})
	}
	wait := max(p.state.Config.ReuseDelay, cooldown)
	if p.state.Node != "" {
		wait = max(wait, leastCooling)
	}
	if wait <= 0 {
		return nil
	}
	l.State, l.ShareKey, l.Until = ipam.Cooling, "", p.now.Add(wait)
	l.Holders = []ipam.Holder{{Service: k, Source: l.Holders[i].Source, Port: l.Holders[i].Port, Node: p.state.Node}}
	return &l
}
