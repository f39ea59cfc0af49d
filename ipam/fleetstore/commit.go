package fleetstore

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/ironvip/ironvip/fleet"
	"github.com/ironvip/ironvip/internal/wake"
	"github.com/ironvip/ironvip/ipam"
	"github.com/ironvip/ironvip/vip"
)

const (
	// tries is how often an op is written that conflicts with other hosts.
	tries = 8
	// catchUp is how long a commit waits for the rest of a change that the tree has only in part.
	catchUp = time.Second
	// mismatchTimeout is how long a service's leases and holdings must differ, while the tree is
	// in touch with the store, before the holdings are rewritten from the leases: somebody has edited
	// one of them.
	mismatchTimeout = 30 * time.Second
	// commitTimeout is for how long a commit starts to write more chunks. The caller has to try the
	// rest again.
	commitTimeout = 15 * time.Second
	// maxKeys bounds the keys of a batch: each takes at most two operations.
	maxKeys = fleet.MaxBatch / 2
)

// errBehind says that the tree has only a part of a change so far.
var errBehind = errors.New("a part of a change has not arrived yet")

// Commit implements ipam.Store. Ops on the same resource or service are one transaction, all or
// none. After a conflict with another host each is planned again from the current leases.
func (s *Store) Commit(ctx context.Context, ops []ipam.Op) error {
	if err := s.await(ctx); err != nil {
		return err
	}
	pending := make([]*attempt, len(ops))
	for i := range ops {
		ops[i].Err = nil
		pending[i] = &attempt{op: &ops[i], place: i}
	}
	deadline := time.Now().Add(catchUp)
	until := time.Now().Add(commitTimeout)
	stored := false
	for len(pending) > 0 {
		if err := ctx.Err(); err != nil {
			return err
		}
		changed := s.changes.Next() // before looking
		groups, later, behind := s.plan(pending)
		wrote, again, err := s.write(ctx, until, groups)
		stored = stored || wrote
		later = append(later, again...)
		if err != nil && !errors.Is(err, errSmaller) {
			if err = unavailable(err); !stored {
				return err
			}
			for _, a := range append(later, behind...) {
				a.op.Err = err
			}
			return ctx.Err()
		}
		if len(behind) > 0 && !wrote && err == nil && !wait(ctx, deadline, changed) {
			for _, a := range behind {
				a.op.Err = s.fenced(a.op)
			}
			behind = nil
		}
		pending = append(later, behind...)
		slices.SortFunc(pending, func(a, b *attempt) int { return a.place - b.place })
	}
	return nil
}

// unavailable returns the error of ops with an unknown outcome.
func unavailable(err error) error {
	if errors.Is(err, fleet.ErrNoAnswer) && !errors.Is(err, ipam.ErrSlow) {
		err = fmt.Errorf("%w: %w", ipam.ErrSlow, err)
	}
	return fmt.Errorf("%w: %w", ipam.ErrUnavailable, err)
}

// wait waits for changes until the deadline, and reports whether there are any.
func wait(ctx context.Context, deadline time.Time, changed <-chan struct{}) bool {
	ctx, cancel := context.WithDeadline(ctx, deadline)
	defer cancel()
	return wake.Wait(ctx, changed) == nil
}

// finish sets the answers of a group's ops, and returns the attempts to plan again.
func (s *Store) finish(g *group) (again []*attempt) {
	err := g.err
	if err == nil && g.batch != nil {
		err = g.batch.Err
	}
	if err == nil && g.batch != nil {
		s.apply(g)
	}
	_, conflict := errors.AsType[*fleet.ConflictError](err)
	for i, a := range g.attempts {
		switch {
		case err == nil:
			a.op.Err = g.verdicts[i]
		case !conflict:
			a.op.Err = err
		case a.tries+1 >= tries:
			a.op.Err = s.conflict(a.op)
		default:
			a.tries++
			again = append(again, a)
		}
	}
	return again
}

// apply updates the view with what a group wrote, as the caller of Commit does. The tree's feed skips values
// that other hosts have changed again, and the readers of the view would then not get their change.
func (s *Store) apply(g *group) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for r, l := range g.changes {
		if old := s.view.Get(r); (old == nil) != (l == nil) || l != nil && !l.Equal(*old) {
			s.view.Set(r, l)
		}
		s.readLease(keyOf(r))
	}
}

// conflict returns the answer of an op that has conflicted too often.
func (s *Store) conflict(op *ipam.Op) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.sync()
	return &ipam.ConflictError{Resource: op.Resource(), Actual: s.view.Get(op.Resource())}
}

// unreadable says that a service's holdings can't be read.
func unreadable(k vip.ServiceKey, err error) error {
	e := &ipam.FencedError{Service: k, Why: err.Error()}
	if p, ok := errors.AsType[vip.Problem](err); ok {
		e.Why, e.Hint = p.Place+": "+p.Message, p.Hint
	}
	return e
}

// fenced says why an op is held back.
func (s *Store) fenced(op *ipam.Op) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, k := range servicesOf(op) {
		f := fence{}
		if f.holds, f.index, f.err = s.held(k); f.err != nil {
			return unreadable(k, f.err)
		}
		s.sync()
		if agrees, since := s.agrees(k, f); !agrees {
			return s.disagree(k, f, since)
		}
	}
	return &ipam.ConflictError{Resource: op.Resource(), Actual: s.view.Get(op.Resource())} // leases and holdings agree by now
}

// disagree says how a service's leases and holdings differ. The caller holds mu.
func (s *Store) disagree(k vip.ServiceKey, f fence, since time.Time) error {
	return &ipam.FencedError{
		Service: k,
		Why:     fmt.Sprintf("according to tree/%s/%s it holds %s, according to tree/%s/ it holds %s", holdingsFolder, serviceKeyOf(k), textOf(f.holds), leasesFolder, textOf(s.view.Held(k))),
		Hint: fmt.Sprintf("fix the key that was edited, or wait until %s, when the holdings are rewritten from the leases",
			since.Add(mismatchTimeout).UTC().Format(time.RFC3339)),
	}
}

func textOf(list []ipam.Resource) string {
	if len(list) == 0 {
		return "nothing"
	}
	var names []string
	for _, r := range slices.SortedFunc(slices.Values(list), ipam.Resource.Compare) {
		names = append(names, r.String())
	}
	return strings.Join(names, ", ")
}
