package fleetstore

import (
	"context"
	"errors"

	"github.com/ironvip/ironvip/fleet"
	"github.com/ironvip/ironvip/ipam"
	"github.com/ironvip/ironvip/ipam/allocator"
	"github.com/ironvip/ironvip/vip"
)

// Registrar commits the registration of a new service together with its leases, in one
// transaction. Both are writes to the same tree: this is the only place that knows the tree's batch
// and the allocator. sources/rest calls it. docs/decisions/07 has the reason.
type Registrar struct {
	Allocator *allocator.Allocator
	Store     *Store // the allocator's
}

// Commit commits a batch that registers a service, and the leases that the service gets, all or
// nothing. It reports whether the batch has its outcome. If not, nothing has happened, and the
// caller commits the batch alone; the service is then assigned its leases once it is registered. The
// error is the tree's.
func (r Registrar) Commit(ctx context.Context, service vip.Service, b *fleet.Batch) (done bool, err error) {
	err = r.Allocator.AssignWith(ctx, service, func(ctx context.Context, ops []ipam.Op) error {
		done, err = r.Store.commitWith(ctx, ops, b)
		return err
	})
	return done, err
}

// errApart says that ops can't be in one transaction with other writes.
var errApart = errors.New("not written together with the registration")

// commitWith commits ops in one transaction with a batch of other folders, and reports whether the
// batch has its outcome. It tries once.
func (s *Store) commitWith(ctx context.Context, ops []ipam.Op, with *fleet.Batch) (done bool, err error) {
	if err := s.await(ctx); err != nil {
		return false, err
	}
	attempts := make([]*attempt, len(ops))
	for i := range ops {
		ops[i].Err = errApart
		attempts[i] = &attempt{op: &ops[i], place: i, tries: tries}
	}
	groups, _, _ := s.plan(attempts)
	if len(groups) != 1 || len(groups[0].attempts) != len(ops) || groups[0].batch == nil {
		return false, nil
	}
	g := groups[0]
	for _, refused := range g.verdicts {
		if refused != nil {
			return false, nil
		}
	}
	own := len(g.batch.Writes)
	g.batch.Writes = append(g.batch.Writes, with.Writes...)
	if err := s.tree.Commit(ctx, []*fleet.Batch{g.batch}); err != nil {
		return false, unavailable(err)
	}
	s.finish(g)
	if g.batch.Err == nil {
		with.Err, with.Indexes = nil, g.batch.Indexes[own:]
		return true, nil
	}
	if conflict, ok := errors.AsType[*fleet.ConflictError](g.batch.Err); ok {
		if theirs := conflictsOf(conflict, with); len(theirs) > 0 {
			with.Err = &fleet.ConflictError{Writes: theirs}
			return true, nil
		}
	}
	return false, nil
}

// conflictsOf returns the writes of a conflict that belong to a batch.
func conflictsOf(conflict *fleet.ConflictError, b *fleet.Batch) (out []fleet.Write) {
	for _, c := range conflict.Writes {
		for _, w := range b.Writes {
			if w.Folder == c.Folder && w.Key == c.Key {
				out = append(out, c)
			}
		}
	}
	return out
}
