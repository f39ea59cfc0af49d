package allocator

import (
	"cmp"
	"context"
	"fmt"
	"slices"

	"github.com/ironvip/ironvip/ipam"
)

// Restore reads every lease of the store. It is called once after Prepare, and before Run, Assign
// and Release; Configure may be called meanwhile. It costs O(leases).
func (a *Allocator) Restore(ctx context.Context) error {
	feed, err := a.store.Watch(ctx)
	if err != nil {
		return fmt.Errorf("restore leases: %w", err)
	}
	a.write.Lock()
	defer a.write.Unlock()
	changes, _ := ipam.Drain(feed)
	if a.feed = feed; a.state.Node == "" {
		feed.Close() // nobody else writes
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	// Automatic allocation continues behind the newest lease.
	changes = slices.DeleteFunc(changes, func(c ipam.LeaseChange) bool { return c.Lease == nil })
	slices.SortStableFunc(changes, func(a, b ipam.LeaseChange) int { return cmp.Compare(a.Lease.Since, b.Lease.Since) })
	for _, c := range changes {
		a.record(c.Resource, c.Lease)
		a.state.ContinueBehind(c.Lease)
	}
	a.updateAlarms() // they name the holders of addresses that pools must keep clear of
	return nil
}

// follow records what other hosts write to the store, until the context ends. One change costs
// O(its holders).
func (a *Allocator) follow(ctx context.Context) {
	for ctx.Err() == nil {
		select {
		case <-ctx.Done():
		case <-a.receiveChanges():
		}
	}
}

// receiveChanges records the changes so far, and returns the channel that is closed at the next one. It
// reads them with the lock of the writer: they are not older than what this host has written.
func (a *Allocator) receiveChanges() (more <-chan struct{}) {
	a.write.Lock()
	defer a.write.Unlock()
	changes, more := ipam.Drain(a.feed)
	if len(changes) == 0 {
		return more
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	for _, c := range changes {
		a.receive(c.Resource, c.Lease)
	}
	a.wake.Set()
	return more
}
