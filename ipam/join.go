package ipam

import (
	"context"
	"time"

	"github.com/ironvip/ironvip/vip"
)

// joinPatience is how long a service waits for an allocator that is busy: longer
// than it takes to take in a change, not longer than a commit that it would save.
const joinPatience = 5 * time.Millisecond

// AssignWith gives a service that is about to be written what Assign would give
// it once it is, so that both can be in the store at once. Commit is called in place
// of the Store's, at most once: it is to make ops durable together with the service,
// all or nothing, and to leave in each op's Err why not.
//
// Nothing is asked of commit, and the service is left to Assign, where there is more
// to it than new leases: while the allocator is busy or doesn't know yet what there
// is, and for a service that something can't be granted, or that gives something up.
// In a fleet it is the node that the service comes to that draws for it, whose turn it
// is or not: there is no stampede of one. The error is commit's.
func (a *Allocator) AssignWith(ctx context.Context, s vip.Service, commit func(ctx context.Context, ops []Op) error) error {
	if !a.write.LockWithin(joinPatience) {
		return nil
	}
	defer a.write.Unlock()
	if _, leaves := a.leaving.at[s.Key]; leaves || a.known == nil {
		return nil
	}
	now := a.now()
	a.mu.Lock()
	d := newDraft(a, 1)
	w := d.service(&s)
	if w.stays || w.putOff || len(w.wants) == 0 || len(w.drops) > 0 || len(w.problems) > 0 {
		d.undo()
		a.mu.Unlock()
		return nil
	}
	a.mu.Unlock()
	if err := d.commit(ctx, commit); err != nil {
		return err
	}
	for _, op := range d.ops {
		if op.Err != nil {
			return nil // it is asked for again
		}
	}
	a.tell(w)
	a.settle(w, now)
	return nil
}
