package rest

import (
	"context"
	"errors"
	"fmt"
	"reflect"

	"github.com/ironvip/ironvip/vip"
	"github.com/ironvip/ironvip/vip/spec"
)

// withdraw takes back what was written of services that are held aside, because
// another source turned out to hold the name: a caller who is told that the
// name is taken must not find the service there when that source lets go. Where the
// write was to be all or nothing, it takes back the others, too. What another host has
// stated anew or deleted since was written all the same, and what is there now is that
// host's. The caller has the names' locks.
func (s *Source) withdraw(ctx context.Context, results []Result, atomic bool) error {
	if !s.running() {
		return nil // nothing gets a revision now
	}
	c := s.changes(func() {})
	var todo []*Result
	taken := false
	for i := range results {
		r := &results[i]
		if r.Action != Created && r.Action != Updated {
			continue
		}
		if r.Rev == 0 && s.heldAside(c, r) {
			now, _, _ := s.inForce(r.Key)
			r.refuse(&OwnedError{Service: r.Key, Source: now.Source, Origin: now.Origin})
			taken = true
		} else if !atomic {
			continue
		}
		todo = append(todo, r)
	}
	if !taken {
		return nil
	}
	// What is begun here is to be brought to its end, whether or not the caller waits.
	ctx = context.WithoutCancel(ctx)
	for try := 0; len(todo) > 0; try++ {
		c.reset()
		for _, r := range todo {
			r.Rev = 0
			if now := c.read(r.Key); now != nil && now.stated == r.wrote.stated {
				c.set(r.Key, s.undone(r, now))
			}
		}
		// Each for itself: a removal takes more of a transaction than the creation did.
		if _, err := c.commit(ctx, false); err != nil {
			return partly(err)
		}
		var again []*Result
		for _, r := range todo {
			if c.lost[r.Key] == nil {
				continue
			}
			conflict := (*ConflictError)(nil)
			switch _, err := s.worthATry(ctx, c, r.Key, try); {
			case err == nil:
				again = append(again, r)
			case errors.As(err, &conflict) && conflict.Unreadable: // somebody else's
			default:
				return &StoreError{Unknown: true, Err: fmt.Errorf("take back what was written of service %q: %w", r.Key, err)}
			}
		}
		todo = again
	}
	return nil
}

// heldAside reports whether a service that was written, and got no revision, is
// there without being in force.
func (s *Source) heldAside(c *changes, r *Result) bool {
	now := c.read(r.Key)
	if now == nil || now.stated != r.wrote.stated {
		return false
	}
	r.Rev = s.ownRev(r.Key)
	return r.Rev == 0
}

// undone is what a service is to be again whose write is taken back: what it was
// before, with the backends that came, went or changed since through other hosts. Nil
// is none.
func (s *Source) undone(r *Result, now *entry) *entry {
	if r.before == nil {
		return nil
	}
	e := r.before.edited()
	for _, b := range r.wrote.row.Backends {
		if indexOf(now.row.Backends, idOf(b)) < 0 {
			e.without(idOf(b))
		}
	}
	for _, b := range now.row.Backends {
		id := idOf(b)
		if i := indexOf(r.wrote.row.Backends, id); i < 0 || !reflect.DeepEqual(b, r.wrote.row.Backends[i]) || r.wrote.registered[id] != now.registered[id] {
			s.carry(e, now, b)
		}
	}
	return e
}

// carry puts a backend of another entry of the service into an edited one, unless it
// doesn't fit there: it may name ports that are no more.
func (s *Source) carry(e, from *entry, b vip.Backend) {
	id, full := idOf(b), spec.FromService(e.row)
	if i := indexOf(e.row.Backends, id); i >= 0 {
		full.Backends[i] = spec.FromBackend(b)
	} else {
		full.Backends = append(full.Backends, spec.FromBackend(b))
	}
	row, problems := s.build(&full)
	if len(problems) > 0 {
		return
	}
	e.row = row
	if reg, registered := from.registered[id]; registered {
		e.registered[id] = reg
	} else {
		delete(e.registered, id)
	}
}
