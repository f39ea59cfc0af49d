package ipam

import (
	"context"
	"errors"
	"slices"

	"github.com/ironvip/ironvip/internal/backoff"
	"github.com/ironvip/ironvip/vip"
)

// follow books what other hosts write to the store, until the context ends.
// One change costs O(its holders).
func (a *Allocator) follow(ctx context.Context) {
	pace := newBackoff()
	for ctx.Err() == nil {
		err := a.followOnce(ctx)
		if err == nil {
			pace.Reset()
			continue
		}
		wait := pace.Next()
		if ctx.Err() == nil {
			a.log.Error("the lease store can't be followed; trying again", "err", err, "in", wait)
		}
		backoff.Sleep(ctx, wait)
	}
}

// followOnce waits for changes and books them.
func (a *Allocator) followOnce(ctx context.Context) error {
	a.write.Lock()
	since, commits := a.version, a.commits
	a.write.Unlock()
	changes, version, err := a.store.Changes(ctx, since)
	a.write.Lock()
	defer a.write.Unlock()
	if err == nil && a.commits != commits {
		// They may be older than what was booked of a commit meanwhile. There are some,
		// so asking again doesn't block.
		changes, version, err = a.store.Changes(ctx, since)
	}
	anew := errors.Is(err, ErrCompacted)
	if anew {
		changes, version, err = a.store.Changes(ctx, 0)
	}
	if err != nil {
		return err
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	for _, c := range changes {
		a.learn(c.Resource, c.Lease)
	}
	if anew {
		a.unlearn(changes)
	}
	a.version = version
	a.nudge()
	return nil
}

// unlearn ends every lease that is not among all those there are.
func (a *Allocator) unlearn(all []LeaseChange) {
	there := make(map[Resource]struct{}, len(all))
	for _, c := range all {
		there[c.Resource] = struct{}{}
	}
	var gone []Resource
	for r := range a.leases.All() {
		if _, ok := there[r]; !ok {
			gone = append(gone, r)
		}
	}
	for r := range a.blocked {
		if _, ok := there[r]; !ok {
			gone = append(gone, r)
		}
	}
	for _, r := range gone {
		a.learn(r, nil)
	}
}

// learn books a lease as somebody else left it, and recalls the services that
// it concerns. The caller holds both locks.
func (a *Allocator) learn(r Resource, now *Lease) {
	old, there := a.lease(r)
	b, blocked := a.blocked[r]
	if !there && blocked {
		old, there = b.told, true
	}
	if there == (now != nil) && (now == nil || now.Equal(old)) {
		return // this host's own
	}
	for _, h := range b.lease.Holders {
		if now == nil { // whoever mended it so will have it back
			a.missing[h.Service] = append(a.missing[h.Service], b.lease)
		}
		a.recall.add(h.Service)
	}
	if now == nil {
		now = &Lease{}
	}
	for i := range old.Holders {
		h := &old.Holders[i]
		g := now.holder(h.Service)
		switch {
		case old.State != Held:
		case now.Resource == (Resource{}):
			a.missing[h.Service] = append(a.missing[h.Service], old)
			a.recall.add(h.Service)
		case now.State == Blocked && g != nil: // see below
		case now.HeldBy(h.Service) < 0:
			if g != nil {
				a.broughtBy(g.Node, h.Service)
			}
			a.revisit.add(h.Service, a.now().Add(returnPatience))
		case g.Node != h.Node && h.Node == a.node: // what this host wrote of it
			a.contend(h.Service)
		case g.Port != h.Port:
			a.recall.add(h.Service)
		}
	}
	if now.State == Blocked {
		for i := range now.Holders {
			a.recall.add(now.Holders[i].Service)
		}
	}
	if now.State == Held {
		for i := range now.Holders {
			k := now.Holders[i].Service
			if old.HeldBy(k) >= 0 {
				continue
			}
			a.recall.add(k)
			a.broughtBy(now.Holders[i].Node, k)
			if _, ended := a.contests[k]; ended {
				a.contend(k)
			}
		}
		if p := a.dynamicOf(now); p != nil && !there {
			p.cursor = numberOf(r.Addr).plus(1)
		}
	}
	if now.Resource == (Resource{}) {
		now = nil
	}
	a.book(r, now)
}

// holder returns a service's place in a lease, held or cooling.
func (l *Lease) holder(k vip.ServiceKey) *Holder {
	if i := slices.IndexFunc(l.Holders, func(h Holder) bool { return h.Service == k }); i >= 0 {
		return &l.Holders[i]
	}
	return nil
}

// Recalls returns a channel that is closed when there are services to be asked
// for again, for TakeRecalls. A closed one is replaced.
func (a *Allocator) Recalls() <-chan struct{} {
	a.mu.RLock()
	defer a.mu.RUnlock()
	return a.recall.some
}

// TakeRecalls returns the services that are to be asked for again, each once:
// another host changed what they hold, or was to and didn't. Whoever calls
// Assign for them takes them.
func (a *Allocator) TakeRecalls() []vip.ServiceKey {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.recall.take()
}

// recalls are services to be asked for again.
type recalls struct {
	keys []vip.ServiceKey
	set  map[vip.ServiceKey]struct{}
	some chan struct{} // closed while there are keys
}

func newRecalls() recalls {
	return recalls{set: make(map[vip.ServiceKey]struct{}), some: make(chan struct{})}
}

func (r *recalls) add(k vip.ServiceKey) {
	if _, there := r.set[k]; there {
		return
	}
	if len(r.keys) == 0 {
		close(r.some)
	}
	r.set[k] = struct{}{}
	r.keys = append(r.keys, k)
}

func (r *recalls) take() []vip.ServiceKey {
	keys := r.keys
	if len(keys) > 0 {
		*r = newRecalls()
	}
	return keys
}
