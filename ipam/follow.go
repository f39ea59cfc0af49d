package ipam

import (
	"context"
	"errors"
	"fmt"

	"github.com/ironvip/ironvip/internal/backoff"
	"github.com/ironvip/ironvip/ipam/internal/pool"
	"github.com/ironvip/ironvip/vip"
)

// Restore reads every lease of the store. It is called once after Prepare, and before Run, Assign
// and Release; Configure may be called meanwhile. It costs O(leases).
func (a *Allocator) Restore(ctx context.Context) error {
	changes, version, err := a.store.Changes(ctx, 0)
	if err != nil {
		return fmt.Errorf("restore leases: %w", err)
	}
	a.write.Lock()
	defer a.write.Unlock()
	a.mu.Lock()
	defer a.mu.Unlock()
	a.version = version
	newest := make(map[*pool.Ranges]vip.Instant)
	for _, c := range changes {
		if c.Lease == nil {
			continue
		}
		a.record(c.Resource, c.Lease)
		if r := a.dynamicOf(c.Lease); r != nil && !c.Lease.Since.Before(newest[r]) {
			newest[r] = c.Lease.Since
			r.Cursor = c.Resource.number().Plus(1) // automatic allocation continues behind the newest lease
		}
	}
	a.rebuild() // alarms name the holders of addresses that pools must keep clear of
	return nil
}

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
