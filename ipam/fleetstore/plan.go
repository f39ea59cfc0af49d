package fleetstore

import (
	"errors"
	"slices"
	"time"

	"github.com/ironvip/ironvip/fleet"
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
	attempts []*attempt
	verdicts []error                       // the answer of each if the batch succeeds
	keys     []any                         // resources and services
	changes  map[ipam.Resource]*ipam.Lease // by the batch
	batch    *fleet.Batch                  // nil: nothing to write
	err      error                         // why it can't be written
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

// add tries an op as a part of its group. It returns errFull or errBehind if the op, and all that
// share something with it, have to wait.
func (p *plan) add(a *attempt) error {
	services := servicesOf(a.op)
	keys := []any{a.op.Resource()}
	for _, k := range services {
		keys = append(keys, k)
	}
	g, err := &group{}, p.admit(a.op, keys, services)
	if err == nil {
		g, err = p.group(keys)
	}
	switch {
	case errors.Is(err, errFull), errors.Is(err, errBehind):
		for _, k := range keys {
			p.closed[k] = true
		}
		return err
	case err != nil:
		p.groups = append(p.groups, &group{attempts: []*attempt{a}, err: err})
		return nil
	}
	g.attempts, g.verdicts = append(g.attempts, a), append(g.verdicts, p.trial.Try(a.op))
	return nil
}

// admit returns why an op can't be in this round.
func (p *plan) admit(op *ipam.Op, keys []any, services []vip.ServiceKey) error {
	if err := leasetable.Check(op); err != nil {
		return err
	}
	if slices.ContainsFunc(keys, func(k any) bool { return p.closed[k] }) {
		return errFull
	}
	for _, k := range services {
		f := p.fences[k]
		if f.err != nil {
			return unreadable(k, f.err)
		}
		if p.of[k] != nil || restores(op, k, p.store.view.Held(k), f) {
			continue
		}
		switch agrees, since := p.store.agrees(k, f); {
		case agrees:
		case time.Since(since) >= catchUp: // more than a delay
			return p.store.disagree(k, f, since)
		default:
			return errBehind
		}
	}
	return nil
}

// group returns the group of an op with these keys. It joins all groups that have one of them.
func (p *plan) group(keys []any) (*group, error) {
	var fresh []any
	var joined []*group
	size := 0
	for _, k := range keys {
		if o := p.of[k]; o == nil {
			fresh = append(fresh, k)
		} else if !slices.Contains(joined, o) {
			joined = append(joined, o)
			size += len(o.keys)
		}
	}
	if len(joined) > 0 && size+len(fresh) > maxKeys {
		return nil, errFull
	}
	g := &group{keys: fresh}
	for _, o := range joined {
		g.attempts, g.verdicts, g.keys = append(g.attempts, o.attempts...), append(g.verdicts, o.verdicts...), append(g.keys, o.keys...)
		o.attempts = nil // all of it is in g now
	}
	for _, k := range g.keys {
		p.of[k] = g
	}
	p.groups = append(p.groups, g)
	return g, nil
}

// compose makes the batch of a group: the leases, then the holdings as their fences.
func (p *plan) compose(g *group) {
	var writes, fences []fleet.Write
	g.changes = make(map[ipam.Resource]*ipam.Lease, len(g.keys))
	for _, k := range g.keys {
		switch k := k.(type) {
		case ipam.Resource:
			now, changed := p.trial.Changes[k]
			if !changed {
				continue
			}
			g.changes[k] = now
			writes, g.err = appendWrite(writes, p.store.leases, keyOf(k), p.store.index[k], now)
		case vip.ServiceKey:
			var now *holdings
			if held := p.trial.Held(k); len(held) > 0 {
				now = &holdings{slices.SortedFunc(slices.Values(held), ipam.Resource.Compare)}
			}
			fences, g.err = appendWrite(fences, p.store.holdings, serviceKeyOf(k), p.fences[k].index, now)
		}
		if g.err != nil {
			return
		}
	}
	if len(writes) > 0 {
		g.batch = &fleet.Batch{Writes: append(writes, fences...)}
	}
}

// appendWrite appends the write that makes now the value at key, which has that version; nil is none.
func appendWrite[V any](to []fleet.Write, folder *fleet.Collection[V], key string, index uint64, now *V) ([]fleet.Write, error) {
	if now == nil {
		if index != 0 { // else it was never written
			to = append(to, folder.Remove(key, index))
		}
		return to, nil
	}
	w, err := folder.Put(key, index, *now)
	return append(to, w), err
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
	if leasetable.SameSet(s.view.Held(k), f.holds) {
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
