package rest

import (
	"cmp"
	"context"
	"errors"
	"slices"
	"time"

	"github.com/ironvip/ironvip/fleet/registry"
	"github.com/ironvip/ironvip/internal/table"
	"github.com/ironvip/ironvip/sources"
	"github.com/ironvip/ironvip/vip"
)

// invalid is a stored record with problems.
type invalid struct {
	version  uint64
	problems []vip.Problem
}

// rows are the changes of entries to publish.
type rows struct {
	put     []*entry
	removed []vip.ServiceKey
}

// receive applies changes of the registry: all rows at the start, then those that other hosts
// wrote. It costs O(items).
func (s *Source) receive(items []registry.Item[Record]) {
	s.mu.Lock()
	defer s.mu.Unlock()
	var t rows
	for _, item := range items {
		if s.Store.Version(item.Key) != item.Version || item.Version != 0 && item.Version == s.known(registry.ServiceOf(item.Key)) {
			continue // a later item follows, or this host wrote it
		}
		s.receiveItem(&t, item)
	}
	s.publish(&t)
}

// receiveItem applies one value of the registry. While the stored value is invalid or unreadable,
// the last valid entry stays in effect. The caller holds mu and publishes.
func (s *Source) receiveItem(t *rows, item registry.Item[Record]) {
	key := registry.ServiceOf(item.Key)
	old := s.entries[key]
	if item.Version == 0 && old != nil && s.Store.Unreadable(item.Key) {
		s.kept[item.Key] = struct{}{}
		return
	}
	delete(s.kept, item.Key)
	if item.Version == 0 {
		s.setInvalid(item.Key, nil)
		if old != nil {
			s.removeEntry(old)
			t.removed = append(t.removed, key)
		}
		return
	}
	e, problems := s.decode(item.Key, &item.Value)
	s.setInvalid(item.Key, &invalid{item.Version, problems})
	if e != nil {
		e.version = item.Version
		s.setEntry(old, e)
		t.put = append(t.put, e)
	}
}

// setInvalid records the problems of a stored value; nil for none. The caller holds
// mu.
func (s *Source) setInvalid(key string, to *invalid) {
	_, was := s.invalid[key]
	delete(s.invalid, key)
	if to != nil && len(to.problems) > 0 {
		s.invalid[key] = *to
		for _, p := range to.problems {
			s.Log.Error("registration not read", "key", key, "service", p.Service, "field", p.Field, "err", p.Message)
		}
	} else if !was {
		return
	}
	s.problemsChanged.Set()
}

// publish writes changed rows to the sink and sets the revisions of their entries. While the source
// doesn't run, it does nothing, because the next Run publishes all rows. The caller holds mu, so
// that the sink receives the rows of a service in order.
func (s *Source) publish(t *rows) {
	if s.sink == nil {
		return
	}
	if len(t.put) > 0 {
		list := make([]vip.Service, len(t.put))
		for i, e := range t.put {
			list[i] = e.published()
		}
		for i, rev := range s.sink.Put(list...) {
			t.put[i].rev = rev
		}
	}
	if len(t.removed) > 0 {
		s.sink.Delete(t.removed...)
	}
}

// publishAll writes all rows and problems to the sink. The caller holds mu.
func (s *Source) publishAll() {
	list := make([]vip.Service, 0, len(s.entries))
	for _, e := range s.entries {
		list = append(list, e.published())
	}
	s.published = s.problems()
	s.sink.Replace(list, s.published)
	s.publishStale()
}

// publishStale marks the source stale if the rows may be outdated. The caller holds mu.
func (s *Source) publishStale() {
	if s.stale != "" && s.sink != nil {
		s.sink.Stale(errors.New(s.stale))
	}
}

// problems returns the problems of the registry and of its records. The caller holds mu.
func (s *Source) problems() []vip.Problem {
	out := slices.Clone(s.Store.Problems())
	for _, u := range s.invalid {
		out = append(out, u.problems...)
	}
	slices.SortStableFunc(out, func(a, b vip.Problem) int {
		return cmp.Or(cmp.Compare(a.Service, b.Service), cmp.Compare(a.Place, b.Place), cmp.Compare(a.Message, b.Message))
	})
	return out
}

// startTimeout is how long a start may take before the source is marked stale.
const startTimeout = 250 * time.Millisecond

// waitRead waits until the registry has been read. After startTimeout it publishes the reason for
// the delay.
func (s *Source) waitRead(ctx context.Context, out sources.Sink) error {
	soon := time.NewTimer(startTimeout)
	defer soon.Stop()
	for starting := true; ; {
		unread := s.Store.Ready()
		stale, changed := s.Store.Stale()
		if table.IsClosed(unread) {
			registry.Drain(s.feed, s.receive)
			unread = nil
		}
		s.setStale(stale)
		if unread == nil && (stale == "" || !starting) {
			return nil
		}
		if stale != "" && !starting {
			out.Stale(errors.New(stale))
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-soon.C:
			starting = false
		case <-unread:
		case <-changed:
		}
	}
}

// problemsDelay is the minimum interval of publishing problems, which costs O(problems).
const problemsDelay = 200 * time.Millisecond

// follow applies the registry's changes until the context ends.
func (s *Source) follow(ctx context.Context) error {
	var delay <-chan time.Time // runs while there are problems to publish
	var seen <-chan struct{}
	for {
		stale, staleChanged := s.Store.Stale()
		if staleChanged != seen { // at first, too: problems of an earlier run
			seen = staleChanged
			s.problemsChanged.Set()
		}
		more := registry.Drain(s.feed, s.receive)
		s.setStale(stale)
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-more:
		case <-staleChanged:
		case <-s.problemsChanged:
			if delay == nil {
				delay = time.After(problemsDelay)
			}
		case <-delay:
			delay = nil
			s.recheckKept()
			s.mu.Lock()
			if problems := s.problems(); !slices.Equal(problems, s.published) {
				s.published = problems
				s.sink.Problems(problems)
			}
			s.mu.Unlock()
		}
	}
}

// recheckKept reads again the services with a stored value that could not be read.
func (s *Source) recheckKept() {
	s.mu.Lock()
	defer s.mu.Unlock()
	var t rows
	for at := range s.kept {
		s.receiveItem(&t, s.Store.Get(at))
	}
	s.publish(&t)
}
