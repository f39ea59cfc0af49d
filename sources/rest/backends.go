package rest

import (
	"context"
	"fmt"
	"maps"
	"time"

	"github.com/ironvip/ironvip/vip"
	"github.com/ironvip/ironvip/vip/spec"
)

// PutBackend adds one backend to a service that exists, or replaces what it
// said before, and returns the revision of the service's row when that is
// durable and in force. A ttl of 0 is none. It counts as a heartbeat; one that
// says nothing new writes nothing. Of registrations through several hosts at
// once none is lost: one that was overtaken is tried again. Errors are
// ErrNoService, *OwnedError, *InvalidError, check's, ErrStore; a *ConflictError
// says that others overtook it each time, or that the service can't be read.
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
	rev, err = s.change(ctx, key, check, false, func(old *entry) (*entry, error) {
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
		e := &entry{row: row, registered: maps.Clone(old.registered), stated: old.stated}
		reg := registration{ttl: ttl}
		if s.Fleet != nil && ttl != 0 {
			reg.keeper = s.Node
		}
		e.registered[id] = reg
		return e, nil
	})
	if err != nil {
		return 0, false, err
	}
	if counted, err := s.heard(key, id); counted && err == nil && ttl != 0 {
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
	return s.change(ctx, key.Service, check, false, func(old *entry) (*entry, error) {
		if indexOf(old.row.Backends, id) < 0 {
			return nil, ErrNoBackend
		}
		e := old.edited()
		e.without(id)
		return e, nil
	})
}
