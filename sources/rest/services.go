package rest

import (
	"cmp"
	"context"
	"fmt"
	"maps"
	"reflect"
	"slices"
	"time"

	"github.com/ironvip/ironvip/vip"
	"github.com/ironvip/ironvip/vip/spec"
)

// Check may refuse a write by what is in force now: preconditions. It is called
// with the service locked against other writers.
type Check func(now vip.Service, rev uint64, exists bool) error

// Put is one service to be created or replaced. Backends nil (no such key in
// the body) keeps the backends that registered themselves; a list, also an
// empty one, replaces them all, and those of it that had registered with a ttl
// keep that.
type Put struct {
	Spec  spec.Service
	Check Check // may be nil
}

// Action says what became of a service.
type Action string

// What becomes of a service that is put.
const (
	Created   Action = "created"
	Updated   Action = "updated"
	Unchanged Action = "unchanged"
	Refused   Action = "refused"
)

// Result is what became of one Put.
type Result struct {
	Key    vip.ServiceKey
	Action Action
	Row    vip.Service // as it is, or with Propose would be, in force
	Rev    uint64      // of the row; 0 where it is not in force
	Err    error       // of a refused one: *InvalidError, *OwnedError, *ConflictError, or Check's

	before, wrote *entry // of one that is created (before is nil then) or updated
}

// PutService creates or replaces one service and returns when it is durable
// and in force. Its error is Result.Err or ErrStore.
func (s *Source) PutService(ctx context.Context, p Put) (Result, error) {
	results, err := s.PutServices(ctx, []Put{p}, true)
	if err != nil {
		return Result{}, err
	}
	return results[0], results[0].Err
}

// PutServices creates or replaces many services, on one host in one durable
// write. The results are in the order of puts. A service that is refused leaves
// the others alone, unless atomic is set: then nothing is written, or stays so where
// the name turned out to be another source's too late. The error is
// ErrStore, an *InvalidError for more than can be written atomically,
// ErrNotRunning or the context's.
func (s *Source) PutServices(ctx context.Context, puts []Put, atomic bool) ([]Result, error) {
	return s.putServices(ctx, puts, atomic, true)
}

// Propose returns what PutServices would do, and does nothing.
func (s *Source) Propose(ctx context.Context, puts []Put) ([]Result, error) {
	return s.putServices(ctx, puts, false, false)
}

func (s *Source) putServices(ctx context.Context, puts []Put, atomic, write bool) ([]Result, error) {
	if !s.running() {
		return nil, ErrNotRunning
	}
	results := make([]Result, len(puts))
	seen := make(map[vip.ServiceKey]int, len(puts))
	for i := range puts {
		row, problems := s.build(&puts[i].Spec)
		results[i].Key = row.Key
		if len(problems) == 0 {
			if j, twice := seen[row.Key]; twice {
				problems = []vip.Problem{{Code: vip.CodeInvalid, Service: row.Key.String(), Field: "name",
					Message: fmt.Sprintf("services[%d] has this name, too", j), Hint: "keep one of them"}}
			} else {
				seen[row.Key] = i
			}
		}
		if len(problems) > 0 {
			results[i].refuse(&InvalidError{problems})
		}
	}
	changes, err := s.begin(ctx, slices.Collect(maps.Keys(seen)))
	if err != nil {
		return nil, err
	}
	defer changes.end()

	refused, wrote := len(seen) < len(puts), false
	todo := seen
	for try := 0; len(todo) > 0; try++ {
		changes.reset()
		for key, i := range todo {
			if e, err := s.replaced(changes, key, &puts[i]); err != nil {
				results[i].refuse(err)
				refused = true
			} else {
				results[i].Action, results[i].Row = changes.set(key, e), e.row
				results[i].before, results[i].wrote = changes.old[key], e
			}
		}
		if !write || atomic && refused {
			return results, nil
		}
		revs, err := changes.commit(ctx, atomic)
		if wrote {
			err = partly(err)
		}
		if err != nil {
			return nil, err
		}
		wrote = wrote || len(revs) > 0
		again := map[vip.ServiceKey]int{}
		for key, i := range todo {
			if results[i].Action == Refused {
				continue
			}
			if lost := changes.lost[key]; lost != nil {
				if err := s.overtaken(ctx, changes, key, try); err != nil {
					results[i].refuse(err)
					refused = true
				} else {
					again[key] = i
				}
				continue
			}
			rev, changed := revs[key]
			if !changed {
				_, rev, _ = s.inForce(key)
			}
			results[i].Rev = rev
		}
		if atomic && len(changes.lost) > 0 {
			if refused {
				return results, nil
			}
			again = seen // nothing was written of any
		}
		todo = again
	}
	return results, s.withdraw(ctx, results, atomic)
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

// replaced is the entry that a Put makes of the one there is. The caller has
// the name's lock.
func (s *Source) replaced(c *changes, key vip.ServiceKey, p *Put) (*entry, error) {
	old := c.read(key)
	now, rev, exists := s.inForce(key)
	if err := s.othersName(key, now, exists, old); err != nil {
		return nil, err
	}
	if p.Check != nil {
		if err := p.Check(now, rev, exists); err != nil {
			return nil, err
		}
	}
	w := p.Spec
	if w.Backends == nil && old != nil {
		for _, b := range old.row.Backends {
			if _, ok := old.registered[idOf(b)]; ok {
				w.Backends = append(w.Backends, spec.FromBackend(b))
			}
		}
	}
	row, problems := s.build(&w)
	if len(problems) > 0 {
		return nil, &InvalidError{problems}
	}
	e := &entry{row: row, registered: map[backendID]registration{}}
	if s.Fleet != nil {
		e.stated = statement{node: s.Node, at: time.Now().UnixNano()}
	}
	if old != nil {
		for _, b := range row.Backends {
			if reg, ok := old.registered[idOf(b)]; ok {
				e.registered[idOf(b)] = reg
			}
		}
	}
	return e, nil
}

// othersName refuses a write to a name that is another source's. One that this
// source has an entry for and that nobody has in force is held aside for the
// source that had it before the restart, so that a write could not be waited
// for. The caller has the name's lock.
func (s *Source) othersName(key vip.ServiceKey, now vip.Service, exists bool, own *entry) error {
	if exists && now.Source != s.Name {
		return &OwnedError{Service: key, Source: now.Source, Origin: now.Origin}
	}
	if !exists && own != nil && s.Services != nil {
		return &OwnedError{Service: key}
	}
	return nil
}

// DeleteService removes a service and returns the revision of its removal.
// Errors are ErrNoService, *OwnedError, *ConflictError, Check's, ErrStore.
func (s *Source) DeleteService(ctx context.Context, key vip.ServiceKey, check Check) (uint64, error) {
	if !s.running() {
		return 0, ErrNotRunning
	}
	c, err := s.begin(ctx, []vip.ServiceKey{key})
	if err != nil {
		return 0, err
	}
	defer c.end()
	looked := false
	for try := 0; ; try++ {
		c.reset()
		old := c.read(key)
		now, rev, exists := s.inForce(key)
		if old == nil && exists && now.Source != s.Name {
			return 0, &OwnedError{Service: key, Source: now.Source, Origin: now.Origin}
		}
		if old == nil && !s.Unreadable(key) {
			if looked {
				return 0, ErrNoService
			}
			looked = true
			if changed, err := s.look(ctx, c, key); err != nil || !changed {
				return 0, cmp.Or(err, ErrNoService)
			}
			continue
		}
		if check != nil {
			if err := check(now, rev, exists); err != nil {
				return 0, err
			}
		}
		c.set(key, nil)
		revs, err := c.commit(ctx, false)
		if err != nil {
			return 0, err
		}
		if c.lost[key] == nil {
			return revs[key], nil
		}
		if err := s.overtaken(ctx, c, key, try); err != nil {
			return 0, err
		}
	}
}

// Unreadable reports whether a service is registered, but its registration is damaged or not
// valid here, so that no row stands for the service. Its leases have to be kept until the
// registration is replaced or deleted.
func (s *Source) Unreadable(key vip.ServiceKey) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	_, invalid := s.unread[storeKey(key)]
	return s.entries[key] == nil && (invalid || s.Store.Unreadable(storeKey(key)))
}

func (s *Source) entry(key vip.ServiceKey) *entry {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.entries[key]
}

func sameRow(a, b *vip.Service) bool { return reflect.DeepEqual(a, b) }
