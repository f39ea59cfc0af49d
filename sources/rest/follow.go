package rest

import (
	"cmp"
	"context"
	"errors"
	"slices"
	"strings"
	"time"

	"github.com/ironvip/ironvip/sources"
	"github.com/ironvip/ironvip/vip"
)

// unread is a record that makes no service here: of which version it is, and
// why.
type unread struct {
	version  uint64
	problems []vip.Problem
}

// drain takes in everything that a registry's feed has, and returns the channel
// that says when there is more.
func drain[V any](feed Feed[V], take func([]Item[V])) <-chan struct{} {
	for {
		items, more := feed.TryNext()
		if len(items) == 0 {
			return more
		}
		take(items)
	}
}

// takeServices takes in what the registry tells: the way of every row that was
// not written here, at the start and later. It costs O(items).
func (s *Source) takeServices(items []Item[Record]) {
	s.mu.Lock()
	defer s.mu.Unlock()
	var t taken
	for i := range items {
		item := &items[i]
		if s.Store.Version(item.Key) != item.Version {
			continue // there is a later one, which is to come
		}
		if key, e := s.entryAt(item.Key); e != nil && e.version == item.Version && e.echo {
			s.entries[key].echo = false
			continue
		}
		s.take(&t, item)
	}
	s.publish(&t)
}

// refresh makes the entry of key the one that the registry has now, so that a
// write is judged by what it will meet. The caller has the name's lock.
func (s *Source) refresh(key vip.ServiceKey) {
	s.mu.Lock()
	defer s.mu.Unlock()
	at := storeKey(key)
	if s.Store.Version(at) == s.known(key) {
		return
	}
	item := Item[Record]{Key: at}
	item.Value, item.Version = s.Store.Get(at)
	var t taken
	s.take(&t, &item)
	for _, e := range t.put {
		e.echo = true
	}
	s.publish(&t)
}

// taken is what a change of entries comes to for the sink.
type taken struct {
	put  []*entry
	gone []vip.ServiceKey
}

// take puts one value of the registry in the place of what was there. One that
// makes no service here, or can't be read, leaves the last that did in force.
// The caller holds mu and publishes.
func (s *Source) take(t *taken, item *Item[Record]) {
	key, old := s.entryAt(item.Key)
	_, was := s.unread[item.Key]
	if item.Version == 0 && old != nil && s.Store.Unreadable(item.Key) {
		s.kept[item.Key] = struct{}{}
		return
	}
	delete(s.kept, item.Key)
	if item.Version == 0 {
		if was {
			s.settle(item.Key, nil)
		}
		if old != nil {
			s.adopt(old, nil)
			t.gone = append(t.gone, key)
		}
		return
	}
	e, problems := s.read(item.Key, &item.Value)
	if was || len(problems) > 0 {
		s.settle(item.Key, &unread{item.Version, problems})
	}
	if e == nil {
		return
	}
	e.version = item.Version
	s.adopt(old, e)
	t.put = append(t.put, e)
}

// settle notes what is wrong with a record; nothing, for nil or without
// problems. The caller holds mu.
func (s *Source) settle(key string, u *unread) {
	if u == nil || len(u.problems) == 0 {
		delete(s.unread, key)
	} else {
		s.unread[key] = *u
		for _, p := range u.problems {
			s.Log.Error("registration not read", "key", key, "service", p.Service, "field", p.Field, "err", p.Message)
		}
	}
	s.tellProblems()
}

func (s *Source) entryAt(at string) (vip.ServiceKey, *entry) {
	namespace, name, _ := strings.Cut(at, "/")
	key := vip.ServiceKey{Namespace: namespace, Name: name}
	return key, s.entries[key]
}

// publish hands what was taken to the sink, and returns the revisions of the
// rows that were put, in order; 0 for each when the source doesn't run, whose
// next Run states them. The caller holds mu, so that rows of one service reach
// the sink in order.
func (s *Source) publish(t *taken) (revs []uint64) {
	revs = make([]uint64, len(t.put))
	if s.sink == nil {
		return revs
	}
	if len(t.put) > 0 {
		rows := make([]vip.Service, len(t.put))
		for i, e := range t.put {
			rows[i] = e.published()
		}
		revs = s.sink.Put(rows...)
	}
	if len(t.gone) > 0 {
		s.sink.Delete(t.gone...)
	}
	return revs
}

// problems are those of both registries and of single records. The caller holds
// mu.
func (s *Source) problems() []vip.Problem {
	out := slices.Concat(s.Store.Problems(), s.Overrides.Problems())
	for _, u := range s.unread {
		out = append(out, u.problems...)
	}
	for _, p := range s.oddStates {
		out = append(out, p)
	}
	slices.SortStableFunc(out, func(a, b vip.Problem) int {
		return cmp.Or(cmp.Compare(a.Service, b.Service), cmp.Compare(a.Place, b.Place), cmp.Compare(a.Message, b.Message))
	})
	return out
}

// tellProblems makes Run state the problems anew before long.
func (s *Source) tellProblems() {
	select {
	case s.problemsChanged <- struct{}{}:
	default:
	}
}

// state gives the sink the full list and what is wrong. The caller holds mu.
func (s *Source) state() {
	rows := make([]vip.Service, 0, len(s.entries))
	for _, e := range s.entries {
		rows = append(rows, e.published())
	}
	s.told = s.problems()
	s.sink.Replace(rows, s.told)
	s.tellStale()
}

// tellStale says that the rows may be old, if so. The caller holds mu.
func (s *Source) tellStale() {
	if s.stale != "" && s.sink != nil {
		s.sink.Stale(errors.New(s.stale))
	}
}

// isReady reports whether a registry has been read in full.
func isReady(ready <-chan struct{}) bool {
	select {
	case <-ready:
		return true
	default:
		return false
	}
}

// startPatience is how long a registry that has been read may take to be in touch: a
// start that waits for it is not told as a loss of touch.
const startPatience = 250 * time.Millisecond

// await takes in what the registries tell until they have been read in full. The
// sink knows why there is nothing where that takes longer than startPatience.
func (s *Source) await(ctx context.Context, out sources.Sink) error {
	late, soon := time.NewTimer(sources.DefaultSyncTimeout), time.NewTimer(startPatience)
	defer late.Stop()
	defer soon.Stop()
	starting := true
	for {
		services, states := s.Store.Ready(), s.Overrides.Ready()
		servicesStale, servicesChanged := s.Store.Stale()
		statesStale, statesChanged := s.Overrides.Stale()
		if isReady(states) {
			drain(s.statesFeed, s.takeStates)
			s.statesReady()
			states = nil
		}
		if isReady(services) {
			drain(s.servicesFeed, s.takeServices)
			services = nil
		}
		stale := cmp.Or(servicesStale, statesStale)
		s.setStale(stale)
		if services == nil && states == nil && (stale == "" || !starting) {
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
		case <-services:
		case <-states:
		case <-servicesChanged:
		case <-statesChanged:
		case <-late.C: // the services of other sources don't wait any longer for what operators said
			s.Log.Error("the backends' states have not been read; going on without them", "after", sources.DefaultSyncTimeout, "why", stale)
			s.statesReady()
		}
	}
}

// problemsPause is how soon changed problems are told: a telling costs
// O(problems).
const problemsPause = 200 * time.Millisecond

// follow keeps the source at its registries until the context ends.
func (s *Source) follow(ctx context.Context) error {
	var pause <-chan time.Time // runs while there are problems to tell
	s.tellProblems()           // what an earlier run was to look at again, too
	for {
		servicesStale, servicesChanged := s.Store.Stale()
		statesStale, statesChanged := s.Overrides.Stale()
		moreServices := drain(s.servicesFeed, s.takeServices)
		moreStates := drain(s.statesFeed, s.takeStates)
		s.setStale(cmp.Or(servicesStale, statesStale))
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-moreServices:
		case <-moreStates:
		case <-servicesChanged:
			s.tellProblems()
		case <-statesChanged:
			s.tellProblems()
		case <-s.problemsChanged:
			if pause == nil {
				pause = time.After(problemsPause)
			}
		case <-pause:
			pause = nil
			s.recheck()
			s.mu.Lock()
			if problems := s.problems(); !slices.Equal(problems, s.told) {
				s.told = problems
				s.sink.Problems(problems)
			}
			s.mu.Unlock()
		}
	}
}

// recheck looks again at services and states that were kept because what came
// in their place could not be read.
func (s *Source) recheck() {
	s.mu.Lock()
	defer s.mu.Unlock()
	var t taken
	for at := range s.kept {
		if !s.Store.Unreadable(at) {
			item := Item[Record]{Key: at}
			item.Value, item.Version = s.Store.Get(at)
			s.take(&t, &item)
		}
	}
	s.publish(&t)
	for at := range s.keptStates {
		if !s.Overrides.Unreadable(at) {
			item := Item[Override]{Key: at}
			item.Value, item.Version = s.Overrides.Get(at)
			s.takeState(&item)
		}
	}
}
