package rest

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"time"

	"github.com/ironvip/ironvip/fleet/registry"
	"github.com/ironvip/ironvip/vip"
	"github.com/ironvip/ironvip/vip/spec"
)

// Check is a precondition. It can refuse a write because of the row in effect. It is called with
// the service locked against other writers.
type Check func(now vip.Service, rev uint64, exists bool) error

// Put creates, replaces or changes one service. If Spec.Backends is nil (no key in the body), the service keeps
// the backends that registered themselves. A list, even an empty one, replaces all backends.
// Backends in the list that registered with a ttl keep it.
type Put struct {
	Spec     spec.Service
	Problems []vip.Problem // of reading Spec or Patch: with any, the put is refused
	Check    Check         // may be nil
	// Permit refuses the service that would result, with the backends that registered themselves. It may be nil.
	Permit func(vip.Service) error

	// Patch, unless it is nil, changes the existing service Key. The result takes the place of Spec.
	Patch spec.Patch
	Key   vip.ServiceKey
}

// Action is the outcome of a Put.
type Action string

// Outcomes of a Put.
const (
	Created   Action = "created"
	Updated   Action = "updated"
	Unchanged Action = "unchanged"
	Refused   Action = "refused"
)

// Result is the outcome of one Put.
type Result struct {
	Key    vip.ServiceKey
	Action Action
	Row    vip.Service // the row in effect, or its proposed value with Propose
	Rev    uint64      // of the row; 0 if it is not in effect
	// Err is why it was refused: *InvalidError, *OwnedError, *ConflictError, ErrNoService of a patch,
	// or Check's.
	Err error
}

// PutService performs one put and returns when it is durable and in effect. Its
// error is Result.Err or ErrStore.
func (s *Source) PutService(ctx context.Context, p Put) (Result, error) {
	results, err := s.PutServices(ctx, []Put{p}, true)
	if err != nil {
		return Result{}, err
	}
	return results[0], results[0].Err
}

// PutServices performs puts. On one host it is one durable write. The results are in
// the order of puts. Without atomic, a refused service does not affect the others. With atomic, a
// refused service means that nothing is written. If a name turns out to belong to another source,
// all writes are undone. The error is ErrStore, an *InvalidError if the puts exceed an atomic
// write or have more than MaxMistakes, ErrNotRunning or the context's.
func (s *Source) PutServices(ctx context.Context, puts []Put, atomic bool) ([]Result, error) {
	return s.putServices(ctx, puts, atomic, true)
}

// MaxMistakes is how many mistakes the puts of one call may have together. With more, all are refused.
const MaxMistakes = 1000

// TooManyMistakes returns why puts with more than MaxMistakes are refused. Last are some of the mistakes.
func TooManyMistakes(last []vip.Problem) []vip.Problem {
	return append([]vip.Problem{{Code: vip.CodeInvalid, Message: fmt.Sprintf("the services have more than %d mistakes together, and nothing was changed", MaxMistakes),
		Hint: "repair some of them; the last ones are listed"}}, last...)
}

// Propose returns the results of PutServices without changing anything.
func (s *Source) Propose(ctx context.Context, puts []Put) ([]Result, error) {
	return s.putServices(ctx, puts, false, false)
}

func (s *Source) putServices(ctx context.Context, puts []Put, atomic, write bool) ([]Result, error) {
	if !s.running() {
		return nil, registry.ErrNotRunning
	}
	results := make([]Result, len(puts))
	first := make(map[vip.ServiceKey]int, len(puts))
	changes, index := make([]*change, 0, len(puts)), make([]int, 0, len(puts)) // the index in puts of each change
	mistakes := 0
	for i := range puts {
		p := &puts[i]
		row, problems := vip.Service{Key: p.Key}, p.Problems
		if len(problems) == 0 && p.Patch == nil {
			row, problems = s.build(&p.Spec)
		}
		results[i] = Result{Key: row.Key}
		if j, twice := first[row.Key]; twice && len(problems) == 0 {
			problems = []vip.Problem{{Code: vip.CodeInvalid, Service: row.Key.String(), Field: "name",
				Message: fmt.Sprintf("services[%d] has this name, too", j), Hint: "keep one of them"}}
		}
		if mistakes += len(problems); mistakes > MaxMistakes {
			return nil, &registry.InvalidError{Problems: TooManyMistakes(problems)}
		}
		if len(problems) > 0 {
			results[i].refuse(&registry.InvalidError{Problems: problems})
			continue
		}
		first[row.Key] = i
		c := &change{key: row.Key}
		if p.Patch != nil { // of the newest version: another host's put is not a conflict
			c.edit = func(now *entry, confirmed bool) (*entry, error) { return s.patched(now, p, confirmed) }
		} else {
			c.unlessReplaced(func(now *entry, _ bool) (*entry, error) { return s.put(now, p, row) })
		}
		changes, index = append(changes, c), append(index, i)
	}
	unlock, err := s.lock(ctx, slices.Collect(maps.Keys(first))...)
	if err != nil {
		return nil, err
	}
	defer unlock()
	if write = write && !(atomic && len(changes) < len(puts)); write {
		err = s.transact(ctx, changes, atomic)
	} else {
		for _, c := range changes {
			_, c.Err = s.apply(c, true)
		}
	}
	if err == nil && write && !(atomic && slices.ContainsFunc(changes, func(c *change) bool { return c.Err != nil })) {
		err = s.withdraw(ctx, changes, atomic)
	}
	if err != nil {
		return nil, err
	}
	for n, c := range changes {
		r := &results[index[n]]
		if r.Action, r.Rev = c.action, c.rev; c.next != nil {
			r.Row = c.next.row
		}
		if c.Err != nil {
			r.refuse(c.Err)
		}
	}
	return results, nil
}

func (r *Result) refuse(err error) { r.Action, r.Err = Refused, err }

// build validates a service.
func (s *Source) build(w *spec.Service) (vip.Service, []vip.Problem) {
	row, problems := w.Build(s.Name, "")
	if len(problems) == 0 && s.Check != nil {
		problems = s.Check(w)
	}
	row.Origin = origin
	return row, problems
}

// put returns the entry that results from a put of a spec. Row is the valid row of the spec. The
// caller holds the service's lock.
func (s *Source) put(now *entry, p *Put, row vip.Service) (*entry, error) {
	old, rev, exists := s.inEffect(row.Key)
	if err := s.checkOwner(row.Key, old, exists, now); err != nil {
		return nil, err
	}
	if p.Check != nil {
		if err := p.Check(old, rev, exists); err != nil {
			return nil, err
		}
	}
	return s.replaced(now, p, &p.Spec, row)
}

// patched returns the entry that results from a put of a patch. The caller holds the service's lock.
func (s *Source) patched(now *entry, p *Put, confirmed bool) (*entry, error) {
	old, rev, exists := s.inEffect(p.Key)
	switch err := s.admit(p.Key, &edit{check: p.Check}, old, rev, exists, now); {
	case err == registry.ErrNoService && !confirmed:
		return nil, registry.ErrConfirm
	case err != nil:
		return nil, err
	}
	w, problems := p.Patch.Apply(spec.FromService(now.row))
	problems = append(problems, w.SetKey(p.Key)...)
	if len(problems) == 0 {
		row, bad := s.build(&w)
		if problems = bad; len(problems) == 0 {
			return s.replaced(now, p, &w, row)
		}
	}
	return nil, &registry.InvalidError{Problems: problems}
}

// replaced returns the entry of a put's spec that takes the place of the current one. Row is the valid row
// of the spec.
func (s *Source) replaced(now *entry, p *Put, w *spec.Service, row vip.Service) (*entry, error) {
	next := &entry{row: row, registered: map[backendID]registration{}}
	if s.Fleet != nil {
		next.put = putID{node: s.Node, at: time.Now().UnixNano()}
	}
	if now == nil {
		now = &entry{}
	}
	unstated := w.Backends == nil && !slices.ContainsFunc(w.Groups, func(g spec.Group) bool { return g.Backends != nil })
	if unstated && len(now.registered) > 0 {
		full := *w
		for _, b := range now.row.Backends {
			if _, ok := now.registered[idOf(b)]; ok {
				full.Backends = append(full.Backends, spec.FromBackend(b))
			}
		}
		var problems []vip.Problem
		if next.row, problems = s.build(&full); len(problems) > 0 {
			return nil, &registry.InvalidError{Problems: problems}
		}
	}
	if p.Permit != nil {
		if err := p.Permit(next.row); err != nil {
			return nil, err
		}
	}
	for _, b := range next.row.Backends {
		if reg, ok := now.registered[idOf(b)]; ok {
			next.registered[idOf(b)] = reg
		}
	}
	return next, nil
}

// checkOwner refuses a write to a name that belongs to another source. If an entry of this source
// has no row in effect, the source that had the name before the restart has precedence. A write
// could then not take effect. The caller holds the service's lock.
func (s *Source) checkOwner(key vip.ServiceKey, row vip.Service, exists bool, own *entry) error {
	if exists && row.Source != s.Name {
		return ownedBy(row)
	}
	if !exists && own != nil && s.Services != nil {
		return &OwnedError{Service: key}
	}
	return nil
}

// DeleteService removes a service and returns the revision of its removal. Errors
// are ErrNoService, *OwnedError, *ConflictError, Check's and ErrStore.
func (s *Source) DeleteService(ctx context.Context, key vip.ServiceKey, check Check) (uint64, error) {
	if !s.running() {
		return 0, registry.ErrNotRunning
	}
	unlock, err := s.lock(ctx, key)
	if err != nil {
		return 0, err
	}
	defer unlock()
	c := &change{key: key}
	c.unlessReplaced(func(now *entry, confirmed bool) (*entry, error) {
		row, rev, exists := s.inEffect(key)
		switch {
		case now == nil && exists && row.Source != s.Name:
			return nil, ownedBy(row)
		case now == nil && !s.Unreadable(key) && !confirmed:
			return nil, registry.ErrConfirm
		case now == nil && !s.Unreadable(key):
			return nil, registry.ErrNoService
		case check != nil:
			return nil, check(row, rev, exists)
		}
		return nil, nil
	})
	if err := s.transact(ctx, []*change{c}, false); err != nil {
		return 0, err
	}
	return c.rev, c.Err
}

// Unreadable reports whether the registration of a service is damaged or invalid on this host, so
// that it has no row. Its leases must be kept until the registration is replaced or deleted.
func (s *Source) Unreadable(key vip.ServiceKey) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	at := registry.Key(key)
	_, invalid := s.invalid[at]
	return s.entries[key] == nil && (invalid || s.Store.Unreadable(at))
}
