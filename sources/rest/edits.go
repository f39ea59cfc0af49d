package rest

import (
	"cmp"
	"context"
	"errors"
	"slices"
	"sync"

	"github.com/ironvip/ironvip/vip"
)

// edit is one change of a part of a service, on its way. Those of one service
// that wait together are one write, so that a thousand backends which register
// at once cost a few writes of a large record, and not a thousand.
type edit struct {
	check Check                            // may be nil
	beat  bool                             // a heartbeat: whether or not the service is in force, and whatever others know of it
	apply func(old *entry) (*entry, error) // may be called again, with another entry
	rev   uint64
	err   error
	done  chan struct{} // closed when rev and err are there
}

func (e *edit) isDone() bool { return isReady(e.done) }

// edits are those that wait, by service.
type edits struct {
	mu      sync.Mutex
	waiting map[vip.ServiceKey][]*edit
}

func (q *edits) add(key vip.ServiceKey, e *edit) {
	q.mu.Lock()
	defer q.mu.Unlock()
	if q.waiting == nil {
		q.waiting = map[vip.ServiceKey][]*edit{}
	}
	q.waiting[key] = append(q.waiting[key], e)
}

// remove takes an edit back, and reports whether it was still waiting.
func (q *edits) remove(key vip.ServiceKey, e *edit) bool {
	q.mu.Lock()
	defer q.mu.Unlock()
	i := slices.Index(q.waiting[key], e)
	if i < 0 {
		return false
	}
	q.keep(key, slices.Delete(q.waiting[key], i, i+1))
	return true
}

// take returns the edits that can be one write: a precondition of one speaks of
// what those before it leave, so it begins the next.
func (q *edits) take(key vip.ServiceKey) []*edit {
	q.mu.Lock()
	defer q.mu.Unlock()
	all := q.waiting[key]
	n := min(1, len(all))
	for n < len(all) && all[n].check == nil {
		n++
	}
	q.keep(key, all[n:])
	return all[:n:n]
}

func (q *edits) keep(key vip.ServiceKey, rest []*edit) {
	if len(rest) == 0 {
		delete(q.waiting, key)
	} else {
		q.waiting[key] = rest
	}
}

// change replaces the entry of a service that exists, as often as it takes, and
// returns the revision of its row.
func (s *Source) change(ctx context.Context, key vip.ServiceKey, check Check, beat bool, apply func(old *entry) (*entry, error)) (uint64, error) {
	if !s.running() {
		return 0, ErrNotRunning
	}
	e := &edit{check: check, beat: beat, apply: apply, done: make(chan struct{})}
	s.edits.add(key, e)
	c, err := s.begin(ctx, []vip.ServiceKey{key})
	if err != nil {
		if s.edits.remove(key, e) {
			return 0, err
		}
		<-e.done // somebody else's write has it
		return e.rev, e.err
	}
	defer c.end()
	// The write is for others, too, who should not fail with this one's context.
	ctx = context.WithoutCancel(ctx)
	for !e.isDone() {
		s.write(ctx, c, key, s.edits.take(key))
	}
	return e.rev, e.err
}

// write makes the edits one write. The caller has the name's lock.
func (s *Source) write(ctx context.Context, c *changes, key vip.ServiceKey, list []*edit) {
	fail := func(err error) {
		for _, e := range list {
			e.rev, e.err = 0, err
		}
	}
	defer func() {
		for _, e := range list {
			close(e.done)
		}
	}()
	looked := false
	for try := 0; ; try++ {
		c.reset()
		old := c.read(key)
		now, rev, exists := s.inForce(key)
		next := old
		applied := false
		for _, e := range list {
			e.rev, e.err = rev, s.admit(key, e, now, rev, exists, old)
			if e.err != nil {
				continue
			}
			var after *entry
			if after, e.err = e.apply(next); e.err == nil {
				next, applied = after, true
			}
		}
		if !applied {
			if looked || !slices.ContainsFunc(list, (*edit).misses) {
				return
			}
			looked = true
			changed, err := s.look(ctx, c, key)
			if changed {
				continue
			}
			for _, e := range list {
				if e.misses() {
					e.err = cmp.Or(err, e.err)
				}
			}
			return
		}
		c.set(key, next)
		if len(c.next) == 0 {
			return
		}
		revs, err := c.commit(ctx, false)
		if err != nil {
			fail(err)
			return
		}
		if c.lost[key] == nil {
			for _, e := range list {
				if e.err == nil {
					e.rev = revs[key]
				}
			}
			return
		}
		if _, err := s.worthATry(ctx, c, key, try); err != nil {
			fail(err)
			return
		}
	}
}

// misses reports whether an edit is refused for the want of what another host may have
// written a moment ago. A heartbeat's refusal only asks for a registration: it is not
// worth a question to the store, which as many may cost as there are heartbeats.
func (e *edit) misses() bool {
	return !e.beat && (errors.Is(e.err, ErrNoService) || errors.Is(e.err, ErrNoBackend))
}

// admit says whether an edit may change the service.
func (s *Source) admit(key vip.ServiceKey, e *edit, now vip.Service, rev uint64, exists bool, old *entry) error {
	if !e.beat {
		if err := s.othersName(key, now, exists, old); err != nil {
			return err
		}
	}
	if old == nil {
		return ErrNoService
	}
	if err := s.editable(key, old); err != nil {
		return err
	}
	if e.check != nil {
		return e.check(now, rev, exists)
	}
	return nil
}
