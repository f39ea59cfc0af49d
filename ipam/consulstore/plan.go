package consulstore

import (
	"errors"
	"slices"
	"time"

	"github.com/ironvip/ironvip/internal/fleet"
	"github.com/ironvip/ironvip/ipam"
	"github.com/ironvip/ironvip/ipam/internal/leasetable"
	"github.com/ironvip/ironvip/vip"
)

// attempt is an op that is being committed.
type attempt struct {
	op    *ipam.Op
	place int // among the ops of the commit
	tries int
}

// group is ops that share resources or services, and their batch.
type group struct {
	attempts  []*attempt
	verdicts  []error // the answer of each if the batch succeeds
	resources []ipam.Resource
	services  []vip.ServiceKey
	changes   map[ipam.Resource]*ipam.Lease // by the batch
	batch     *fleet.Batch                  // nil: nothing to write
	err       error                         // why it can't be written
}

// plan tries ops one after the other and groups those that share resources or services. A group has
// a bounded size: ops that don't fit, and all that build on them, are for later. Ops on something of
// which the tree has only a part are behind.
func (s *Store) plan(pending []*attempt) (groups []*group, later, behind []*attempt) {
	s.mu.Lock()
	defer s.mu.Unlock()
	p := &plan{store: s, fences: make(map[vip.ServiceKey]fence), of: make(map[any]*group), closed: make(map[any]bool)}
	// The fences first, then the leases: if a lease is newer than its fence, the write of the fence
	// fails. In the other order nothing would fail.
	for _, a := range pending {
		for _, k := range servicesOf(a.op) {
			p.fence(k)
		}
	}
	s.sync()
	p.trial = leasetable.NewTrial(s.view, len(pending))
	for _, a := range pending {
		switch err := p.add(a); {
		case errors.Is(err, errBehind):
			behind = append(behind, a)
		case err != nil:
			later = append(later, a)
		}
	}
	for _, g := range p.groups {
		if len(g.attempts) > 0 {
			p.compose(g)
			groups = append(groups, g)
		}
	}
	return groups, later, behind
}

// plan is one round of a commit.
type plan struct {
	store  *Store
	trial  *leasetable.Trial
	fences map[vip.ServiceKey]fence
	groups []*group
	of     map[any]*group // by resource and by service
	closed map[any]bool   // resources and services that have to wait for the next round
}

// fence is a service's holdings.
type fence struct {
	holds []ipam.Resource
	index uint64
	err   error
}

func (p *plan) fence(k vip.ServiceKey) {
	if _, there := p.fences[k]; !there {
		holds, index, err := p.store.held(k)
		p.fences[k] = fence{holds, index, err}
	}
}

var errFull = errors.New("the batch is full")

// add tries an op and adds it to the groups that it shares resources or services with, as one.
func (p *plan) add(a *attempt) error {
	services := servicesOf(a.op)
	resource, bad := leasetable.ResourceOf(a.op)
	keys := []any{resource}
	for _, k := range services {
		keys = append(keys, k)
	}
	shut := func(err error) error {
		for _, k := range keys {
			p.closed[k] = true
		}
		return err
	}
	if bad != nil {
		keys, services = nil, nil
	}
	for _, k := range keys {
		if p.closed[k] {
			return shut(errFull)
		}
	}
	g := &group{}
	for _, k := range services {
		f := p.fences[k]
		refuse := func(err error) error {
			p.groups = append(p.groups, &group{attempts: []*attempt{a}, verdicts: []error{nil}, err: err})
			return nil
		}
		if f.err != nil {
			return refuse(unreadable(k, f.err))
		}
		if p.of[k] != nil || restores(a.op, k, p.store.view.Held(k), f) {
			continue
		}
		switch agrees, since := p.store.agrees(k, f); {
		case agrees:
		case time.Since(since) >= catchUp: // more than a delay
			return refuse(p.store.disagree(k, f, since))
		default:
			return shut(errBehind)
		}
	}
	size := 0
	var joined []*group
	for _, k := range keys {
		if o := p.of[k]; o != nil && !slices.Contains(joined, o) {
			joined = append(joined, o)
			size += len(o.resources) + len(o.services)
		} else if o == nil {
			size++
		}
	}
	if len(joined) > 0 && size > maxKeys {
		return shut(errFull)
	}
	for _, o := range joined {
		g.attempts, g.verdicts = append(g.attempts, o.attempts...), append(g.verdicts, o.verdicts...)
		g.resources, g.services = append(g.resources, o.resources...), append(g.services, o.services...)
		o.attempts = nil // all of it is in g now
	}
	for i, k := range keys {
		if p.of[k] == nil && i == 0 {
			g.resources = append(g.resources, resource)
		} else if p.of[k] == nil {
			g.services = append(g.services, services[i-1])
		}
	}
	g.attempts, g.verdicts = append(g.attempts, a), append(g.verdicts, p.trial.Try(a.op))
	for _, r := range g.resources {
		p.of[r] = g
	}
	for _, k := range g.services {
		p.of[k] = g
	}
	p.groups = append(p.groups, g)
	return nil
}

// compose makes the batch of a group.
func (p *plan) compose(g *group) {
	var writes []fleet.Write
	g.changes = make(map[ipam.Resource]*ipam.Lease, len(g.resources))
	for _, r := range g.resources {
		now, changed := p.trial.Changes[r]
		if !changed {
			continue
		}
		g.changes[r] = now
		w := p.store.leases.Remove(keyOf(r), p.store.index[r])
		if now != nil {
			if w, g.err = p.store.leases.Put(keyOf(r), p.store.index[r], *now); g.err != nil {
				return
			}
		} else if p.store.index[r] == 0 {
			continue // the group creates and removes it
		}
		writes = append(writes, w)
	}
	for _, k := range g.services {
		f, holds := p.fences[k], slices.SortedFunc(slices.Values(p.trial.Held(k)), ipam.Resource.Compare)
		key := serviceKeyOf(k)
		switch {
		case len(writes) == 0 || len(holds) == 0 && f.index == 0:
		case len(holds) == 0:
			writes = append(writes, p.store.holdings.Remove(key, f.index))
		default:
			w, err := p.store.holdings.Put(key, f.index, holdings{holds})
			if g.err = err; err != nil {
				return
			}
			writes = append(writes, w)
		}
	}
	if len(writes) > 0 {
		g.batch = &fleet.Batch{Writes: writes}
	}
}

// servicesOf returns the services that gain or lose the resource of an op, and its claimer.
func servicesOf(op *ipam.Op) []vip.ServiceKey {
	out := slices.AppendSeq(slices.Collect(leasetable.Lost(op.Old, op.New)), leasetable.Lost(op.New, op.Old))
	if op.Claim != nil && !slices.Contains(out, op.Claim.Service) {
		out = append(out, op.Claim.Service)
	}
	return out
}

// mismatch is a service whose leases and holdings differ.
type mismatch struct {
	index uint64 // of the fence
	since time.Time
}

// restores reports whether an op gives a service back a vanished lease that its fence still names,
// while the fence names all its other leases. Such an op need not wait: if the lease or the fence is
// outdated, the op fails on the version of the other.
func restores(op *ipam.Op, k vip.ServiceKey, held []ipam.Resource, f fence) bool {
	return op.Old == nil && op.New != nil && op.Claim != nil && op.Claim.Service == k && slices.Contains(f.holds, op.New.Resource) &&
		!slices.ContainsFunc(held, func(r ipam.Resource) bool { return !slices.Contains(f.holds, r) })
}

// agrees reports whether a service's leases and holdings agree, and otherwise since when they differ.
// They differ only for moments, unless somebody has edited one of them. The caller holds mu.
func (s *Store) agrees(k vip.ServiceKey, f fence) (bool, time.Time) {
	held := s.view.Held(k)
	if len(held) == len(f.holds) && !slices.ContainsFunc(held, func(r ipam.Resource) bool { return !slices.Contains(f.holds, r) }) {
		delete(s.mismatch, k)
		return true, time.Time{}
	}
	now := time.Now()
	o, there := s.mismatch[k]
	if !there || o.index != f.index || s.tree.Stale() != "" {
		s.mismatch[k] = mismatch{f.index, now}
		return false, now
	}
	return now.Sub(o.since) >= mismatchTimeout, o.since
}
