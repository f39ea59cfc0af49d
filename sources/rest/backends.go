package rest

import (
	"context"
	"fmt"
	"maps"
	"time"

	"github.com/ironvip/ironvip/fleet/registry"
	"github.com/ironvip/ironvip/internal/text"
	"github.com/ironvip/ironvip/vip"
	"github.com/ironvip/ironvip/vip/spec"
)

// PutBackend adds or replaces a backend of a service. It returns the revision of the service's row
// when the backend is durable and in effect. A ttl of 0 means no ttl. The call counts as a
// heartbeat. If nothing has changed, it writes nothing. When several hosts register backends at
// once, none is lost. Errors are ErrNoService, *OwnedError, *InvalidError, check's, ErrStore, and
// *ConflictError if other hosts were faster each time or the service can't be read.
func (s *Source) PutBackend(ctx context.Context, key vip.ServiceKey, w spec.Backend, ttl time.Duration, check Check) (rev uint64, created bool, err error) {
	b, problems := w.Build()
	if ttl != 0 && (ttl < MinTTL || ttl > MaxTTL) {
		problems = append(problems, vip.Problem{Code: vip.CodeInvalid, Field: "ttl",
			Message: fmt.Sprintf("%s is out of bounds", spec.Duration(ttl)), Hint: `use "1s" to "24h", or leave it out`})
	}
	if len(problems) > 0 {
		return 0, false, &registry.InvalidError{Problems: problems}
	}
	id := idOf(b)
	reg := registration{ttl: ttl}
	if s.Fleet != nil && ttl != 0 {
		reg.owner = s.Node
	}
	rev, err = s.edit(ctx, key, &edit{check: check, apply: func(now *entry) (*entry, error) {
		created = indexOf(now.row.Backends, id) < 0
		return s.withBackend(now, b, reg)
	}})
	if err != nil {
		return 0, false, err
	}
	if counted, err := s.countHeartbeat(key, id); counted && err == nil && ttl != 0 {
		if _, now, ok := s.inEffect(key); ok {
			rev = now // the backend may have been drained
		}
	}
	return rev, created, nil
}

// withBackend returns a copy of an entry with a registered backend added or replaced.
func (s *Source) withBackend(e *entry, b vip.Backend, reg registration) (*entry, error) {
	id, full := idOf(b), spec.Flat(e.row)
	i := indexOf(e.row.Backends, id)
	if i >= 0 && b.Group == "" {
		b.Group = e.row.Backends[i].Group
	}
	if e.row.GroupOf(&b) == nil && (b.Group != "" || len(e.row.Groups) > 0) {
		return nil, &registry.InvalidError{Problems: []vip.Problem{noGroup(&e.row, b.Group)}}
	}
	if i < 0 {
		full.Backends = append(full.Backends, spec.FromBackend(b))
	} else {
		full.Backends[i] = spec.FromBackend(b)
	}
	row, problems := s.build(&full)
	if len(problems) > 0 {
		return nil, &registry.InvalidError{Problems: problems}
	}
	out := &entry{row: row, registered: maps.Clone(e.registered), put: e.put}
	out.registered[id] = reg
	return out, nil
}

// noGroup is the problem of a backend that names no group, or none of its service's.
func noGroup(s *vip.Service, named string) vip.Problem {
	p := vip.Problem{Code: vip.CodeInvalid, Service: s.Key.String(), Field: "group", Message: fmt.Sprintf("the service has no group %q", named), Hint: "remove it"}
	if named == "" {
		p.Message = "the service has groups, and the backend belongs to one of them"
	}
	if len(s.Groups) > 0 {
		p.Hint = "use " + text.Join(s.Groups, ", ", func(g vip.Group) string { return g.Name })
	}
	return p
}

// DeleteBackend removes a backend from a service and returns the revision of the
// service's row. Errors are ErrNoService, ErrNoBackend, *OwnedError, check's and
// ErrStore.
func (s *Source) DeleteBackend(ctx context.Context, key vip.BackendKey, check Check) (uint64, error) {
	id := backendID{key.Address, key.Port}
	return s.edit(ctx, key.Service, &edit{check: check, apply: func(now *entry) (*entry, error) {
		if indexOf(now.row.Backends, id) < 0 {
			return nil, registry.ErrNoBackend
		}
		next := now.edited()
		next.remove(id)
		return next, nil
	}})
}
