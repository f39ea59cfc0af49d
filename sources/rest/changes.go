package rest

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"time"

	"github.com/ironvip/ironvip/internal/backoff"
	"github.com/ironvip/ironvip/internal/fleet"
	"github.com/ironvip/ironvip/vip"
)

// changes is a set of new entries, under their names' locks, on the way to the
// registry and from there to the sink.
type changes struct {
	s      *Source
	unlock func()
	old    map[vip.ServiceKey]*entry // as read; nil: there was none
	based  map[vip.ServiceKey]uint64 // the version of what is to be replaced
	next   map[vip.ServiceKey]*entry // nil: removed
	lost   map[vip.ServiceKey]error  // by the last commit: what was not written, and why
}

// begin locks the names.
func (s *Source) begin(ctx context.Context, keys []vip.ServiceKey) (*changes, error) {
	unlock, err := s.names.lock(ctx, keys)
	if err != nil {
		return nil, err
	}
	return s.changes(unlock), nil
}

func (s *Source) changes(unlock func()) *changes {
	c := &changes{s: s, unlock: unlock}
	c.reset()
	return c
}

func (c *changes) end() { c.unlock() }

// reset makes the set empty.
func (c *changes) reset() {
	c.old, c.based = map[vip.ServiceKey]*entry{}, map[vip.ServiceKey]uint64{}
	c.next, c.lost = map[vip.ServiceKey]*entry{}, map[vip.ServiceKey]error{}
}

// read returns the entry of key as the registry has it now, nil for none. What
// becomes of it is written on condition that it is still that.
func (c *changes) read(key vip.ServiceKey) *entry {
	c.s.refresh(key)
	c.s.mu.Lock()
	defer c.s.mu.Unlock()
	old := c.s.entries[key]
	c.old[key], c.based[key] = old, c.s.known(key)
	return old
}

// look asks the registry for what a change of key was refused for the want of, and
// reports whether there is something else than was read. The error is a *StoreError:
// nothing has changed.
func (s *Source) look(ctx context.Context, c *changes, key vip.ServiceKey) (changed bool, err error) {
	if s.Fleet == nil {
		return false, nil // nobody else writes
	}
	if err := s.Store.Look(ctx, storeKey(key)); err != nil {
		return false, err
	}
	return s.Store.Version(storeKey(key)) != c.based[key], nil
}

// set notes what becomes of key, which has been read. Of one that stays as it is
// there is nothing to note on a host alone; in a fleet it has to be confirmed,
// for another host may have changed it and this one not heard of that yet.
func (c *changes) set(key vip.ServiceKey, e *entry) Action {
	old := c.old[key]
	switch {
	case old == nil:
		c.next[key] = e
		return Created
	case e != nil && e.same(old) && old.version == c.based[key]:
		if c.s.Fleet != nil {
			c.next[key] = old.edited() // the same value again, which writes nothing
		}
		return Unchanged
	}
	c.next[key] = e
	return Updated
}

// commit makes the changes durable and then visible, and returns the revisions
// of their rows. Each stands for itself, unless atomic is set; those that could
// not be written are in lost. The error is ErrStore.
func (c *changes) commit(ctx context.Context, atomic bool) (map[vip.ServiceKey]uint64, error) {
	if len(c.next) == 0 {
		return nil, nil
	}
	s := c.s
	keys := make(map[string]vip.ServiceKey, len(c.next))
	var batches []*Batch[Record]
	for key, e := range c.next {
		edit := Edit[Record]{Key: storeKey(key), Version: c.based[key]}
		if e != nil {
			edit.Value = e.record()
		}
		keys[edit.Key] = key
		if !atomic || len(batches) == 0 {
			batches = append(batches, &Batch[Record]{})
		}
		last := batches[len(batches)-1]
		last.Edits = append(last.Edits, edit)
		// Of many new ones, what they hold is packed together later on.
		if s.Joint != nil && e != nil && c.old[key] == nil && len(c.next) == 1 {
			last.With = func(ctx context.Context, b *fleet.Batch) (bool, error) { return s.Joint.Commit(ctx, e.row, b) }
		}
	}
	if err := s.Store.Commit(ctx, batches); err != nil {
		return nil, err
	}

	s.mu.Lock()
	defer s.mu.Unlock()
	revs := make(map[vip.ServiceKey]uint64, len(c.next))
	var t taken
	for _, b := range batches {
		if b.Err != nil {
			for i := range b.Edits {
				c.lost[keys[b.Edits[i].Key]] = b.Err
			}
			continue
		}
		for i := range b.Edits {
			edit := &b.Edits[i]
			key := keys[edit.Key]
			s.written(&t, key, edit, c.next[key])
			revs[key] = 0
		}
	}
	for i, rev := range s.publish(&t) {
		revs[t.put[i].row.Key] = rev
	}
	for key, rev := range revs {
		switch {
		case c.next[key] == nil && s.Services != nil && s.sink != nil:
			revs[key] = s.Services.Revision()
		case c.next[key] != nil && rev == 0:
			revs[key] = s.ownRev(key) // the registry's feed was quicker
		}
	}
	return revs, nil
}

// written takes in what this host has written. The caller holds mu and
// publishes.
func (s *Source) written(t *taken, key vip.ServiceKey, edit *Edit[Record], e *entry) {
	version := s.Store.Version(edit.Key)
	if version != edit.Written { // another host was quick to replace it
		item := Item[Record]{Key: edit.Key}
		item.Value, item.Version = s.Store.Get(edit.Key)
		s.take(t, &item)
		return
	}
	old := s.entries[key]
	if _, was := s.unread[edit.Key]; was {
		s.settle(edit.Key, nil)
	}
	switch {
	case e == nil && old != nil:
		s.adopt(old, nil)
		t.gone = append(t.gone, key)
	case e != nil && (old == nil || old.version != version): // else it has come by the feed
		e.version, e.echo = version, true
		s.adopt(old, e)
		t.put = append(t.put, e)
	}
}

// known returns the version that this host has taken in of key. The caller
// holds mu.
func (s *Source) known(key vip.ServiceKey) uint64 {
	if u, ok := s.unread[storeKey(key)]; ok {
		return u.version
	}
	if e := s.entries[key]; e != nil {
		return e.version
	}
	return 0
}

// editTries is how often a write is tried that others keep overtaking. Of
// writers that meet, one gets through each time.
const editTries = 40

// overtaken judges a change of key that met another version than it was based
// on. Nil says that it is worth another try: the service itself is still the one
// that the writer knew, and only backends have come, gone, or been heard of; or
// what is asked for is there already. Otherwise the writer has to know.
func (s *Source) overtaken(ctx context.Context, c *changes, key vip.ServiceKey, try int) error {
	old, wanted := c.old[key], c.next[key]
	now, err := s.worthATry(ctx, c, key, try)
	switch {
	case err != nil:
		return err
	case now == old, now == nil && wanted == nil:
		return nil
	case now == nil:
		return &ConflictError{Service: key, Removed: true}
	case wanted != nil && wanted.same(now):
		return nil
	case old != nil && old.stated == now.stated && now.stated.at != 0:
		return nil
	}
	return &ConflictError{Service: key, Node: now.stated.node}
}

// worthATry takes in what a change of key ran into, and returns it, after a
// short pause if this has gone on for long. It may be what the change was based on,
// where something came and went again.
func (s *Source) worthATry(ctx context.Context, c *changes, key vip.ServiceKey, try int) (*entry, error) {
	if lost := c.lost[key]; errors.Is(lost, ErrTooLarge) {
		return nil, &InvalidError{[]vip.Problem{{Code: vip.CodeInvalid, Service: key.String(), Message: lost.Error(),
			Hint: "what the hosts share is bounded: use fewer services in an atomic apply, fewer backends in a service"}}}
	}
	s.refresh(key)
	s.mu.Lock()
	now := s.entries[key]
	s.mu.Unlock()
	switch outdated := (*OutdatedError)(nil); {
	case errors.As(c.lost[key], &outdated) && !slices.Contains(outdated.Keys, storeKey(key)):
		// another key of its batch was
	case s.Store.Unreadable(storeKey(key)):
		return nil, &ConflictError{Service: key, Unreadable: true}
	case try >= editTries:
		conflict := &ConflictError{Service: key, Removed: now == nil}
		if now != nil {
			conflict.Node = now.stated.node
		}
		return nil, conflict
	}
	if try > 2 && !backoff.Sleep(ctx, rand.N(time.Millisecond<<min(try, 6))) {
		return nil, ctx.Err()
	}
	return now, nil
}

// editable refuses to change a part of what this host can't read: the rest would
// be lost.
func (s *Source) editable(key vip.ServiceKey, e *entry) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if u, ok := s.unread[storeKey(key)]; ok && u.version != e.version {
		return &InvalidError{u.problems}
	}
	return nil
}

// changeMany changes the entries of those services that exist, each for itself.
// Edit gets them as they are, and again when another host was quicker.
func (s *Source) changeMany(ctx context.Context, keys []vip.ServiceKey, edit func(key vip.ServiceKey, old *entry) *entry) error {
	c, err := s.begin(ctx, keys)
	if err != nil {
		return err
	}
	defer c.end()
	todo := slices.Clone(keys)
	for try := 0; len(todo) > 0; try++ {
		c.reset()
		for _, key := range todo {
			if old := c.read(key); old != nil && s.editable(key, old) == nil {
				if c.set(key, edit(key, old)) == Unchanged {
					delete(c.next, key)
				}
			}
		}
		if _, err := c.commit(ctx, false); err != nil {
			return err
		}
		todo = todo[:0]
		for key := range c.lost {
			if _, err := s.worthATry(ctx, c, key, try); err != nil {
				return fmt.Errorf("change service %q: %w", key, err)
			}
			todo = append(todo, key)
		}
	}
	return nil
}
