package rest

import (
	"context"
	"errors"
	"fmt"

	"github.com/ironvip/ironvip/fleet/registry"
)

// withdraw undoes the changes to services that are not in effect because another source has the
// name. Their caller gets an error. Therefore the services must not appear when that source
// releases the name. With atomic it then undoes all changes. A service that another host has changed
// in the meantime stays as it is. The caller holds the services' locks.
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
			switch {
			case now == nil || now.put != c.next.put || !now.same(c.next):
				return nil, errNoChange
			case c.old == nil:
				return nil, nil
			}
			return c.old.edited(), nil
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
