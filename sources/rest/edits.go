package rest

import (
	"context"
	"errors"
	"slices"
	"sync"

	"github.com/ironvip/ironvip/fleet/registry"
	"github.com/ironvip/ironvip/internal/table"
	"github.com/ironvip/ironvip/vip"
)

// edit is a waiting change of a part of a service. Waiting edits of one service are combined into
// one write. A thousand backends that register at once cost a few writes of a large record instead
// of a thousand.
type edit struct {
	check     Check                            // may be nil
	heartbeat bool                             // does not need the name or the newest value
	apply     func(now *entry) (*entry, error) // called again after a conflict
	rev       uint64
	err       error
	done      chan struct{} // closed when rev and err are set
}

// editQueue holds the waiting edits by service.
type editQueue struct {
	mu      sync.Mutex
	waiting map[vip.ServiceKey][]*edit
}

func (q *editQueue) add(key vip.ServiceKey, e *edit) {
	q.mu.Lock()
	defer q.mu.Unlock()
	if q.waiting == nil {
		q.waiting = map[vip.ServiceKey][]*edit{}
	}
	q.waiting[key] = append(q.waiting[key], e)
}

// remove removes an edit and reports whether it was still waiting.
func (q *editQueue) remove(key vip.ServiceKey, e *edit) bool {
	q.mu.Lock()
	defer q.mu.Unlock()
	i := slices.Index(q.waiting[key], e)
	if i < 0 {
		return false
	}
	q.set(key, slices.Delete(q.waiting[key], i, i+1))
	return true
}

// next removes and returns the edits of the next write. An edit with a precondition begins a new
// write, because it must see the result of the earlier edits.
func (q *editQueue) next(key vip.ServiceKey) []*edit {
	q.mu.Lock()
	defer q.mu.Unlock()
	all := q.waiting[key]
	n := min(1, len(all))
	for n < len(all) && all[n].check == nil {
		n++
	}
	q.set(key, all[n:])
	return all[:n:n]
}

func (q *editQueue) set(key vip.ServiceKey, waiting []*edit) {
	if len(waiting) == 0 {
		delete(q.waiting, key)
	} else {
		q.waiting[key] = waiting
	}
}

// edit performs one edit of a service and returns the revision of the row.
func (s *Source) edit(ctx context.Context, key vip.ServiceKey, e *edit) (uint64, error) {
	if !s.running() {
		return 0, registry.ErrNotRunning
	}
	e.done = make(chan struct{})
	s.edits.add(key, e)
	unlock, err := s.lock(ctx, key)
	if err != nil {
		if s.edits.remove(key, e) {
			return 0, err
		}
		<-e.done // another caller writes it
		return e.rev, e.err
	}
	defer unlock()
	// The write includes other callers' edits, which must not fail with this context.
	ctx = context.WithoutCancel(ctx)
	for !table.IsClosed(e.done) {
		s.writeEdits(ctx, key, s.edits.next(key))
	}
	return e.rev, e.err
}

// writeEdits performs the edits in one write. The caller holds the service's lock.
func (s *Source) writeEdits(ctx context.Context, key vip.ServiceKey, list []*edit) {
	applied := false
	c := &change{key: key}
	c.edit = func(now *entry, confirmed bool) (*entry, error) {
		next := now
		applied = false
		row, rev, exists := s.inEffect(key)
		for _, e := range list {
			if e.rev, e.err = rev, s.admit(key, e, row, rev, exists, now); e.err != nil {
				continue
			}
			var after *entry
			if after, e.err = e.apply(next); e.err == nil {
				next, applied = after, true
			}
		}
		switch {
		case applied:
			return next, nil
		case !confirmed && slices.ContainsFunc(list, (*edit).notFound):
			return nil, registry.ErrConfirm
		}
		return nil, errNoChange
	}
	err := s.transact(ctx, []*change{c}, false)
	if err == nil {
		err = c.Err
	}
	for _, e := range list {
		switch {
		case err != nil && (applied || e.notFound()):
			e.rev, e.err = 0, err
		case e.err == nil:
			e.rev = c.rev
		}
		close(e.done)
	}
}

// notFound reports whether an edit is refused because something is missing that another host may
// have just written. It is false for heartbeats. After a refused heartbeat the sender only
// registers again, so a read for every heartbeat would cost too much.
func (e *edit) notFound() bool {
	return !e.heartbeat && (errors.Is(e.err, registry.ErrNoService) || errors.Is(e.err, registry.ErrNoBackend))
}

// admit returns why an edit must not change the service, or nil.
func (s *Source) admit(key vip.ServiceKey, e *edit, row vip.Service, rev uint64, exists bool, now *entry) error {
	if !e.heartbeat {
		if err := s.checkOwner(key, row, exists, now); err != nil {
			return err
		}
	}
	if now == nil {
		return registry.ErrNoService
	}
	if err := s.checkDecoded(key, now); err != nil {
		return err
	}
	if e.check != nil {
		return e.check(row, rev, exists)
	}
	return nil
}
