package rest

import (
	"context"
	"errors"
	"fmt"
	"slices"

	"github.com/ironvip/ironvip/fleet"
	"github.com/ironvip/ironvip/fleet/registry"
	"github.com/ironvip/ironvip/vip"
)

// change is the write of one service in a transaction.
type change struct {
	registry.Op[Record] // see transact
	key                 vip.ServiceKey
	// edit returns the new entry of the service, or nil to remove it. Now is nil if the service does
	// not exist. It is called again after a conflict. It may return errNoChange, and
	// registry.ErrConfirm while confirmed is false.
	edit func(now *entry, confirmed bool) (*entry, error)

	old, next *entry // of the last edit
	grown     *int   // endpoints that the transaction adds, by its edits so far
	grew      int    // those of this edit
	action    Action
	rev       uint64 // of the row in effect, or of its removal; 0 if it is not in effect
}

// errNoChange is returned by an edit that leaves the service unchanged.
var errNoChange = errors.New("no change")

// lock locks services against other writers.
func (s *Source) lock(ctx context.Context, keys ...vip.ServiceKey) (unlock func(), err error) {
	texts := make([]string, len(keys))
	for i, k := range keys {
		texts[i] = registry.Key(k)
	}
	return s.locks.Lock(ctx, texts...)
}

// transact writes the changes in one transaction and publishes them. Each is written on its own.
// With atomic set, all are written or none. Every write of this package uses it. The caller holds
// the services' locks. The error is a *registry.StoreError.
func (s *Source) transact(ctx context.Context, changes []*change, atomic bool) error {
	ops, grown := make([]*registry.Op[Record], len(changes)), 0
	for i, c := range changes {
		c.grown = &grown
		c.Key, c.Apply = registry.Key(c.key), func(confirmed bool) (*registry.Edit[Record], error) { return s.apply(c, confirmed) }
		ops[i] = &c.Op
	}
	err := registry.Transact(ctx, s.Store, ops, atomic, func(done []int) {
		s.publishWritten(changes, done)
		for _, i := range done {
			changes[i].grow(0) // all services together have them now
		}
	})
	for _, c := range changes {
		if errors.Is(c.Err, registry.ErrTooLarge) {
			c.Err = &registry.InvalidError{Problems: []vip.Problem{{Code: vip.CodeInvalid, Service: c.key.String(), Message: c.Err.Error(),
				Hint: "use fewer services in an atomic apply, or fewer backends in a service"}}}
		}
		if c.Err == nil && c.action == Unchanged {
			c.rev = s.ownRev(c.key)
		}
	}
	return err
}

// grow notes how many endpoints the edit of a change adds.
func (c *change) grow(by int) {
	if c.grown != nil { // a proposal writes nothing
		*c.grown += by - c.grew
		c.grew = by
	}
}

// apply computes the edit of one change on the newest entry.
func (s *Source) apply(c *change, confirmed bool) (*registry.Edit[Record], error) {
	c.grow(0) // it may be tried again after a conflict
	old, version := s.newest(c.key)
	next, err := c.edit(old, confirmed)
	if err == nil {
		err = s.checkSize(c, old, next)
	}
	if err == errNoChange {
		c.old, c.next, c.action = old, old, Unchanged
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	c.old, c.next = old, next
	edit := &registry.Edit[Record]{Key: registry.Key(c.key), Version: version}
	switch {
	case next == nil:
		return edit, nil
	case old == nil:
		c.action = Created
		if s.Leases != nil {
			edit.With = func(ctx context.Context, b *fleet.Batch) (bool, error) { return s.Leases.Commit(ctx, next.row, b) }
		}
	case old.version == version && next.same(old):
		c.action = Unchanged
		if s.Fleet == nil {
			return nil, nil
		}
		// Another host may have changed the service. Committing the same value again detects that,
		// and otherwise writes nothing.
		c.next = old.edited()
	default:
		c.action = Updated
	}
	edit.Value = c.next.record()
	return edit, nil
}

// checkSize refuses an edit with which the services would have too many endpoints.
func (s *Source) checkSize(c *change, old, next *entry) error {
	grows := next.endpoints() - old.endpoints()
	if s.MaxEndpoints == 0 || c.grown == nil {
		return nil
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if n := s.endpoints + *c.grown + grows; grows > 0 && n > s.MaxEndpoints {
		return &registry.InvalidError{Problems: []vip.Problem{{Code: vip.CodeInvalid, Service: c.key.String(), Field: "backends",
			Message: fmt.Sprintf("all registered services together would have %d ports x backends, more than the %d that this host has memory for", n, s.MaxEndpoints),
			Hint:    "delete services or backends, use ranges of ports, or raise MemoryHigh and MemoryMax of the agent's unit"}}}
	}
	c.grow(grows)
	return nil
}

// newest returns the entry of the registry's current value, nil for none, and the version to base a
// write on.
func (s *Source) newest(key vip.ServiceKey) (*entry, uint64) {
	s.mu.Lock()
	defer s.mu.Unlock()
	at := registry.Key(key)
	if s.Store.Version(at) != s.known(key) {
		var t rows
		s.receiveItem(&t, s.Store.Get(at))
		s.publish(&t)
	}
	return s.entries[key], s.known(key)
}

// known returns the version of key that this host has in memory. The caller holds mu.
func (s *Source) known(key vip.ServiceKey) uint64 {
	if u, ok := s.invalid[registry.Key(key)]; ok {
		return u.version
	}
	if e := s.entries[key]; e != nil {
		return e.version
	}
	return 0
}

// publishWritten publishes the changes that a transaction has written.
func (s *Source) publishWritten(changes []*change, done []int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	var t rows
	for _, i := range done {
		s.setWritten(&t, changes[i])
	}
	s.publish(&t)
	for _, i := range done {
		switch c := changes[i]; {
		case c.next != nil && c.next.rev != 0:
			c.rev = c.next.rev
		case c.next != nil: // the registry's feed was faster, or the row is not in effect
			c.rev = s.ownRev(c.key)
		case s.Services != nil && s.sink != nil:
			c.rev = s.Services.Revision()
		}
	}
}

// setWritten stores a written entry in memory. The caller holds mu and publishes.
func (s *Source) setWritten(t *rows, c *change) {
	version := s.Store.Version(c.Key)
	if version != c.Edit.Written { // another host has replaced it in the meantime
		s.receiveItem(t, s.Store.Get(c.Key))
		return
	}
	old := s.entries[c.key]
	s.setInvalid(c.Key, nil)
	switch {
	case c.next == nil && old != nil:
		s.removeEntry(old)
		t.removed = append(t.removed, c.key)
	case c.next != nil && (old == nil || old.version != version): // else the feed has delivered it
		c.next.version = version
		s.setEntry(old, c.next)
		t.put = append(t.put, c.next)
	}
}

// unlessReplaced makes edit refuse the change with a *registry.ConflictError if another host has
// put or removed the service since the last attempt. The same put or removal is not a conflict.
// Registrations of backends don't count.
func (c *change) unlessReplaced(edit func(now *entry, confirmed bool) (*entry, error)) {
	tried := false
	c.edit = func(now *entry, confirmed bool) (next *entry, err error) {
		same := now == c.old || now == nil && c.next == nil || now != nil && c.next != nil && c.next.same(now) ||
			now != nil && c.old != nil && c.old.put == now.put && now.put.at != 0
		switch {
		case tried && now == nil && !same:
			return nil, &registry.ConflictError{Service: c.key, Removed: true}
		case tried && !same:
			return nil, &registry.ConflictError{Service: c.key, Node: now.put.node}
		}
		next, err = edit(now, confirmed)
		tried = tried || err == nil
		return next, err
	}
}

// checkDecoded returns an error if this host can't decode the service completely. A partial change
// would lose the rest.
func (s *Source) checkDecoded(key vip.ServiceKey, e *entry) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if u, ok := s.invalid[registry.Key(key)]; ok && u.version != e.version {
		return &registry.InvalidError{Problems: u.problems}
	}
	return nil
}

// editMany edits the existing services, each on its own. It calls edit again with a newer entry if
// another host was faster.
func (s *Source) editMany(ctx context.Context, keys []vip.ServiceKey, edit func(key vip.ServiceKey, now *entry) *entry) error {
	unlock, err := s.lock(ctx, keys...)
	if err != nil {
		return err
	}
	defer unlock()
	changes := make([]*change, len(keys))
	for i, key := range keys {
		changes[i] = &change{key: key, edit: func(now *entry, _ bool) (*entry, error) {
			if now == nil || s.checkDecoded(key, now) != nil {
				return nil, errNoChange
			}
			next := edit(key, now)
			if next.same(now) {
				return nil, errNoChange
			}
			return next, nil
		}}
	}
	if err := s.transact(ctx, changes, false); err != nil {
		return err
	}
	if i := slices.IndexFunc(changes, func(c *change) bool { return c.Err != nil }); i >= 0 {
		return fmt.Errorf("change service %q: %w", changes[i].key, changes[i].Err)
	}
	return nil
}
