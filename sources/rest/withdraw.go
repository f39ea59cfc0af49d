package rest

import (
	"context"
	"errors"
	"fmt"

	"github.com/ironvip/ironvip/internal/registry"
)

// withdraw undoes the changes to services that turned out to be held aside because
// another source has the name. Their caller gets an error, so the services must not
// appear when that source gives the name up. With atomic it then undoes all
// changes. What another host has put or deleted since stays. The caller holds the
// services' locks.
func (s *Source) withdraw(ctx context.Context, changes []*change, atomic bool) error {
	if !s.running() {
		return nil // nothing is in force now
	}
	var undo []*change
	refused := false
	for _, c := range changes {
		if c.err != nil || c.action != Created && c.action != Updated {
			continue
		}
		if s.heldAside(c) {
			row, _, _ := s.inForce(c.key)
			c.err = &OwnedError{Service: c.key, Source: row.Source, Origin: row.Origin}
			refused = true
		} else if !atomic {
			continue
		}
		undo = append(undo, &change{key: c.key, apply: func(now *entry, _ bool) (*entry, error) {
			if now == nil || now.put != c.next.put {
				return nil, errNoChange
			}
			return s.undone(c, now), nil
		}})
	}
	if !refused {
		return nil
	}
	if atomic {
		for _, c := range changes {
			if c.action != Unchanged {
				c.rev = 0
			}
		}
	}
	// The undo must be completed whether or not the caller waits. Each change is written
	// on its own: a removal takes more of a transaction than the creation did.
	if err := s.transact(context.WithoutCancel(ctx), undo, false); err != nil {
		return registry.Partly(err)
	}
	for _, c := range undo {
		var conflict *registry.ConflictError
		if c.err != nil && !(errors.As(c.err, &conflict) && conflict.Unreadable) {
			return &registry.StoreError{Unknown: true, Err: fmt.Errorf("undo the write of service %q: %w", c.key, c.err)}
		}
	}
	return nil
}

// heldAside reports whether a written service is stored without being in force.
func (s *Source) heldAside(c *change) bool {
	if c.rev != 0 {
		return false
	}
	if now, _ := s.newest(c.key); now == nil || now.put != c.next.put {
		return false
	}
	c.rev = s.ownRev(c.key)
	return c.rev == 0
}

// undone returns the entry before a change, nil for none, with the backends that
// other hosts have added, changed or removed since.
func (s *Source) undone(c *change, now *entry) *entry {
	if c.old == nil {
		return nil
	}
	out, wrote := c.old.edited(), c.next
	for _, b := range wrote.row.Backends {
		if indexOf(now.row.Backends, idOf(b)) < 0 {
			out.remove(idOf(b))
		}
	}
	for _, b := range now.row.Backends {
		id := idOf(b)
		if i := indexOf(wrote.row.Backends, id); i >= 0 && sameBackend(b, wrote.row.Backends[i]) && wrote.registered[id] == now.registered[id] {
			continue
		}
		var reg *registration
		if r, ok := now.registered[id]; ok {
			reg = &r
		}
		if with, err := s.withBackend(out, b, reg); err == nil { // it may serve ports that are gone
			out = with
		}
	}
	return out
}
