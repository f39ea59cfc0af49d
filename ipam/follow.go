package ipam

import (
	"context"
	"errors"
	"time"

	"github.com/ironvip/ironvip/internal/backoff"
)

// reclaimDelay is how long this host waits until it claims back what another host released: the
// deletion of the service may be on its way to this host, too.
const reclaimDelay = 300 * time.Millisecond

// follow records what other hosts write to the store, until the context ends. One change costs
// O(its holders).
func (a *Allocator) follow(ctx context.Context) {
	retry := storeBackoff()
	for ctx.Err() == nil {
		err := a.receiveChanges(ctx)
		if err == nil {
			retry.Reset()
			continue
		}
		wait := retry.Next()
		if ctx.Err() == nil {
			a.log.Error("lease store can't be followed; trying again", "err", err, "in", wait)
		}
		backoff.Sleep(ctx, wait)
	}
}

// receiveChanges waits for changes and records them.
func (a *Allocator) receiveChanges(ctx context.Context) error {
	a.write.Lock()
	since, commits := a.version, a.commits
	a.write.Unlock()
	changes, version, err := a.store.Changes(ctx, since)
	a.write.Lock()
	defer a.write.Unlock()
	if err == nil && a.commits != commits {
		// The changes may be older than a commit that was recorded meanwhile. There are some, so
		// asking again doesn't block.
		changes, version, err = a.store.Changes(ctx, since)
	}
	compacted := errors.Is(err, ErrCompacted)
	if compacted {
		changes, version, err = a.store.Changes(ctx, 0)
	}
	if err != nil {
		return err
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	for _, c := range changes {
		a.receive(c.Resource, c.Lease)
	}
	if compacted {
		a.removeAllBut(changes)
	}
	a.version = version
	a.nudge()
	return nil
}

// removeAllBut removes every lease that isn't among all those in the store.
func (a *Allocator) removeAllBut(stored []LeaseChange) {
	there := make(map[Resource]struct{}, len(stored))
	for _, c := range stored {
		there[c.Resource] = struct{}{}
	}
	var gone []Resource
	for r := range a.leases.All() {
		if _, ok := there[r]; !ok {
			gone = append(gone, r)
		}
	}
	for r := range a.unreadable {
		if _, ok := there[r]; !ok {
			gone = append(gone, r)
		}
	}
	for _, r := range gone {
		a.receive(r, nil)
	}
}

// receive records a lease as the store has it, and recalls the services that a change by another
// host concerns. The caller holds both locks.
func (a *Allocator) receive(r Resource, now *Lease) {
	old, there := a.lease(r)
	u, unreadable := a.unreadable[r]
	if !there && unreadable {
		old, there = u.stored, true
	}
	if there == (now != nil) && (now == nil || now.Equal(old)) {
		return // written by this host
	}
	for _, h := range u.known.Holders {
		if now == nil { // removed to repair the store: the holder gets it back
			a.vanished[h.Service] = append(a.vanished[h.Service], u.known)
		}
		a.recalls.add(h.Service)
	}
	if old.State == Held {
		a.receiveLoss(&old, now)
	}
	switch {
	case now == nil:
	case now.State == Blocked:
		for i := range now.Holders {
			a.recalls.add(now.Holders[i].Service)
		}
	case now.State == Held:
		for i := range now.Holders {
			k := now.Holders[i].Service
			if old.HeldBy(k) >= 0 {
				continue
			}
			a.recalls.add(k)
			a.leaderActed(now.Holders[i].Node, k)
			if _, released := a.undone[k]; released {
				a.wasUndone(k)
			}
		}
		if in := a.dynamicOf(now); in != nil && !there {
			in.cursor = numberOf(r.Addr).plus(1)
		}
	}
	a.record(r, now)
}

// receiveLoss finds what a change means for the services that held old.
func (a *Allocator) receiveLoss(old, now *Lease) {
	for i := range old.Holders {
		h := &old.Holders[i]
		if now == nil {
			a.vanished[h.Service] = append(a.vanished[h.Service], *old)
			a.recalls.add(h.Service)
			continue
		}
		g := now.holder(h.Service)
		switch {
		case now.State == Blocked && g != nil: // receive recalls it
		case now.HeldBy(h.Service) < 0:
			if g != nil {
				a.leaderActed(g.Node, h.Service)
			}
			a.retries.Hasten(h.Service, a.now().Add(reclaimDelay))
		case g.Node != h.Node && h.Node == a.node: // this host's change of it
			a.wasUndone(h.Service)
		case g.Port != h.Port:
			a.recalls.add(h.Service)
		}
	}
}
