package rest

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"time"

	"github.com/ironvip/ironvip/vip"
	"github.com/ironvip/ironvip/vip/spec"
)

// without is the entry less one backend. Only row and registered are used of
// it; what it shares with e is not changed.
func (e *entry) without(id backendID) *entry {
	out := &entry{row: e.row, registered: maps.Clone(e.registered), lives: e.lives}
	delete(out.registered, id)
	out.row.Backends = slices.DeleteFunc(slices.Clone(e.row.Backends), func(b vip.Backend) bool { return idOf(b) == id })
	return out
}

// PutBackend adds one backend to a service that exists, or replaces what it
// said before, and returns the revision of the service's row when that is
// durable and in force. A ttl of 0 is none. It counts as a heartbeat; one that
// says nothing new writes nothing. Errors are ErrNoService, *OwnedError,
// *InvalidError, check's, ErrStore.
func (s *Source) PutBackend(ctx context.Context, key vip.ServiceKey, w spec.Backend, ttl time.Duration, check Check) (rev uint64, created bool, err error) {
	b, problems := w.Build()
	if ttl != 0 && (ttl < MinTTL || ttl > MaxTTL) {
		problems = append(problems, vip.Problem{Code: vip.CodeInvalid, Field: "ttl",
			Message: fmt.Sprintf("%s is out of bounds", spec.Duration(ttl)), Hint: `use "1s" to "24h", or leave it out`})
	}
	if len(problems) > 0 {
		return 0, false, &InvalidError{problems}
	}
	id := idOf(b)
	rev, err = s.change(ctx, key, check, func(old *entry) (*entry, error) {
		full := spec.FromService(old.row)
		i := indexOf(old.row.Backends, id)
		if created = i < 0; created {
			full.Backends = append(full.Backends, spec.FromBackend(b))
		} else {
			full.Backends[i] = spec.FromBackend(b)
		}
		row, problems := s.build(&full)
		if len(problems) > 0 {
			return nil, &InvalidError{problems}
		}
		e := &entry{row: row, registered: maps.Clone(old.registered)}
		e.registered[id] = ttl
		return e, nil
	})
	if err != nil {
		return 0, false, err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if e := s.entries[key]; e != nil && e.lives[id] != nil {
		s.revive(e, e.lives[id])
		if _, now, ok := s.inForce(key); ok {
			rev = now // it may have been drained
		}
	}
	return rev, created, nil
}

// DeleteBackend takes one backend out of a service and returns the revision of
// the service's row. Errors are ErrNoService, ErrNoBackend, *OwnedError,
// check's, ErrStore.
func (s *Source) DeleteBackend(ctx context.Context, key vip.BackendKey, check Check) (uint64, error) {
	id := backendID{key.Address, key.Port}
	return s.change(ctx, key.Service, check, func(old *entry) (*entry, error) {
		if indexOf(old.row.Backends, id) < 0 {
			return nil, ErrNoBackend
		}
		return old.without(id), nil
	})
}

// change replaces the entry of a service that exists.
func (s *Source) change(ctx context.Context, key vip.ServiceKey, check Check, edit func(old *entry) (*entry, error)) (uint64, error) {
	if !s.running() {
		return 0, ErrNotRunning
	}
	c, err := s.begin(ctx, map[vip.ServiceKey]int{key: 0})
	if err != nil {
		return 0, err
	}
	defer c.end()
	now, rev, exists := s.inForce(key)
	old := s.entry(key)
	if err := s.othersName(key, now, exists, old); err != nil {
		return 0, err
	}
	if old == nil {
		return 0, ErrNoService
	}
	if check != nil {
		if err := check(now, rev, exists); err != nil {
			return 0, err
		}
	}
	e, err := edit(old)
	if err != nil {
		return 0, err
	}
	if c.set(key, e) == Unchanged {
		return rev, nil
	}
	revs, err := c.commit()
	return revs[key], err
}
