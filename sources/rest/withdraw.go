package rest

import (
	"context"
	"errors"
	"fmt"

	"github.com/ironvip/ironvip/fleet/registry"
)

// withdraw undoes the changes to services that are not in effect because another source has the
// name. Their caller gets an error. Therefore the services must not appear when that source
// releases the name. With atomic it then undoes all changes. Later puts and deletions by other
// hosts stay. The caller holds the services' locks.
func (s *Source) withdraw(ctx context.Context, changes []*change, atomic bool) error {
	if !s.running() {
		return nil // nothing is in effect now
	}
	var undo []*change
	refused := false
	for _, c := range changes {
		if c.Err != nil || c.action != Created && c.action != Updated {
			continue
		}
		if s.heldAside(c) {
			row, _, _ := s.inEffect(c.key)
			c.Err = &OwnedError{Service: c.key, Source: row.Source, Origin: row.Origin}
			refused = true
		} else if !atomic {
			continue
		}
		undo = append(undo, &change{key: c.key, edit: func(now *entry, _ bool) (*entry, error) {
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
	// The undo must be completed even if the caller does not wait. Each change is written on its
	// own, because a removal takes more of a transaction than the creation.
	if err := s.transact(context.WithoutCancel(ctx), undo, false); err != nil {
		return registry.Partly(err)
	}
	for _, c := range undo {
		var conflict *registry.ConflictError
		if c.Err != nil && !(errors.As(c.Err, &conflict) && conflict.Unreadable) {
			return &registry.StoreError{Unknown: true, Err: fmt.Errorf("undo the write of service %q: %w", c.key, c.Err)}
		}
	}
	return nil
}

// heldAside reports whether a written service is stored without being in effect.
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

// undone returns the entry from before a change, or nil, with the later changes of backends by
// other hosts.
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
		if with, err := s.withBackend(out, b, reg); err == nil { // fails if it serves ports that no longer exist
			out = with
		}
	}
	return out
}
