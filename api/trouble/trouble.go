// Package trouble keeps the services and frontends that don't work as they should.
//
// Its input is the tables that statuses depend on. Its output is the numbers for the status of the node, the metrics and
// the state of the dataplane, without a scan of what works, and events about the states of services. It owns no table.
//
// Files:
//
//	trouble.go  the index
//	states.go   events about the states of services
package trouble

import (
	"context"
	"maps"
	"path"
	"slices"
	"sync"
	"time"

	"github.com/ironvip/ironvip/api/status"
	"github.com/ironvip/ironvip/internal/backoff"
	"github.com/ironvip/ironvip/internal/event"
	"github.com/ironvip/ironvip/internal/table"
	"github.com/ironvip/ironvip/pipeline"
	"github.com/ironvip/ironvip/plane/reconcile"
	"github.com/ironvip/ironvip/vip"
)

// Index contains the services and frontends that have trouble, so that a status and a scrape need no scan of the
// rest. It follows the revisions of statuses, and the frontends with what was applied of them. A query costs O(changes since the
// last update + those with trouble), the first one O(all services). It also publishes the changes of states.
type Index struct {
	tables *status.Tables
	events *event.Log
	chosen func() []string // patterns of services that are always in the tallies
	sums                   // of the tables

	mu        sync.Mutex
	feed      *table.Feed[vip.ServiceKey, vip.ServiceKey] // of the statuses; nil before the first update
	desired   *table.Feed[vip.FrontendKey, vip.Frontend]
	applied   *table.Feed[vip.FrontendKey, reconcile.AppliedFrontend]
	services  map[vip.ServiceKey]troubledService
	kinds     map[vip.ServiceKey]Kind         // of the services that aren't healthy, and of those with trouble
	counts    map[Kind]int                    // of the same services
	frontends map[vip.FrontendKey]struct{}    // that are pending, or have a problem or a warning
	patterns  []string                        // the last result of chosen
	matched   map[vip.ServiceKey]struct{}     // services that match them
	changed   map[vip.ServiceKey]struct{}     // since the last publish
	published map[vip.ServiceKey]status.State // the bad states that events have, until they end
}

// sums are maintained by the tables.
type sums struct {
	sources  func() map[string]int // services by source
	backends func() int            // of all services that this host serves
	Served   func() int            // services with frontends
	Ends     func() int            // endpoints of all frontends
}

// Kind is what services are counted by.
type Kind struct {
	Source string
	State  status.State
}

// Tally counts the backends and frontends of a service.
type Tally struct {
	// Backends by their effective state, including those that are removed and still drain, and how
	// many of them accept new connections.
	Ready, Drain, Maint, Usable int
	// Backends that are ready and unhealthy.
	Unhealthy int
	// Frontends that another program keeps changing.
	Contested int
}

// troubledService is what the index knows of a service that is degraded, down or refused, or has backends that are not
// usable, or contested frontends.
type troubledService struct {
	Tally
	total   int // backends that it lists
	ejected int
	panics  bool
	held    int // backends with held traffic, since and until when
	since   vip.Instant
	until   vip.Instant
}

// New returns an index of the tables. Chosen returns patterns, as of path.Match, of the services (NAMESPACE/NAME) that are
// always in the tallies. Events go to the log while it runs.
func New(t *status.Tables, events *event.Log, chosen func() []string) *Index {
	return &Index{tables: t, events: events, chosen: chosen, sums: sums{
		sources: table.Counts(t.Services, func(s *vip.Service) string { return s.Source }),
		backends: t.Services.Sum(func(s *vip.Service) int {
			if s.NotHere {
				return 0
			}
			return len(s.Backends)
		}),
		Served: t.Compiled.Sum(func(c *pipeline.Compiled) int { return min(len(c.Frontends), 1) }),
		Ends:   t.Frontends.Sum(func(f *vip.Frontend) int { return len(f.Backends) }),
	}}
}

// updateInterval bounds how long tables keep tombstones for the feed, and how soon an event has
// the state of a service. States that last for less have no event. Without changes, an update costs
// one look at the feed.
const updateInterval = time.Second

// Run updates the index at intervals, until ctx ends.
func (s *Index) Run(ctx context.Context) {
	for ok := true; ok; ok = backoff.Sleep(ctx, updateInterval) {
		s.mu.Lock()
		s.update()
		s.publish()
		s.mu.Unlock()
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.feed != nil { // the tables keep tombstones for them
		s.feed.Close()
		s.desired.Close()
		s.applied.Close()
		s.feed = nil
	}
}

// Standing has the numbers of the services and their backends.
type Standing struct {
	Services, Backends int
	States             map[status.State]int // services in each state except Healthy
	Down, Ejected      int                  // backends that are ready and unhealthy, and ejected ones
	Panics             []vip.ServiceKey     // services in panic mode, sorted
	Held               int                  // backends with held traffic, since and until when
	Since, Until       vip.Instant
}

// Standing costs O(services with trouble).
func (s *Index) Standing() Standing {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.update()
	out := Standing{Services: s.tables.Services.Len(), Backends: s.backends(), States: make(map[status.State]int)}
	for kind, n := range s.counts {
		if kind.State != status.Healthy {
			out.States[kind.State] += n
		}
	}
	for key, service := range s.services {
		out.Down += service.Unhealthy
		out.Ejected += service.ejected
		if service.panics {
			out.Panics = append(out.Panics, key)
		}
		if service.held > 0 && (out.Held == 0 || out.Since.After(service.since)) {
			out.Since = service.since
		}
		if out.Held += service.held; service.until.After(out.Until) {
			out.Until = service.until
		}
	}
	slices.SortFunc(out.Panics, vip.ServiceKey.Compare)
	return out
}

// Tallies returns the tallies of the services with trouble and of the chosen ones, and the sum over all services. It costs
// O(these services).
func (s *Index) Tallies() (of map[vip.ServiceKey]Tally, sum Tally) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.update()
	of = make(map[vip.ServiceKey]Tally, len(s.services)+len(s.matched))
	for key := range s.matched {
		if row := s.tables.Services.Row(key); row != nil {
			n := len(row.Value.Backends)
			of[key] = Tally{Ready: n, Usable: n}
		}
	}
	n := s.backends()
	sum = Tally{Ready: n, Usable: n}
	for key, t := range s.services {
		of[key] = t.Tally
		sum.Ready += t.Ready - t.total
		sum.Usable += t.Usable - t.total
		sum.Drain += t.Drain
		sum.Maint += t.Maint
		sum.Unhealthy += t.Unhealthy
	}
	return of, sum
}

// States returns how many services there are of each kind. It costs O(kinds).
func (s *Index) States() map[Kind]int {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.update()
	out := maps.Clone(s.counts)
	for source, n := range s.sources() {
		healthy := Kind{source, status.Healthy}
		out[healthy] += n
		for k, n := range s.counts {
			if k.Source == source {
				out[healthy] -= n
			}
		}
		if out[healthy] <= 0 { // less: services were removed meanwhile
			delete(out, healthy)
		}
	}
	return out
}

// Chosen returns the services that match the patterns.
func (s *Index) Chosen() []vip.ServiceKey {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.update()
	return slices.Collect(maps.Keys(s.matched))
}

// EachFrontend calls f with the frontends that are pending, or have a problem or a warning. It costs O(those).
func (s *Index) EachFrontend(f func(*status.Frontend)) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.update()
	for key := range s.frontends {
		if row, ok := s.tables.Frontend(key); ok {
			f(&row)
		}
	}
}

// update applies the changes since the last update. The caller holds mu.
func (s *Index) update() {
	t := s.tables
	if s.feed == nil {
		s.feed, s.desired, s.applied = t.Revisions.Watch(), t.Frontends.Watch(), t.Applied.Watch()
		s.services, s.changed = make(map[vip.ServiceKey]troubledService), make(map[vip.ServiceKey]struct{})
		s.kinds, s.counts = make(map[vip.ServiceKey]Kind), make(map[Kind]int)
		s.frontends, s.matched = make(map[vip.FrontendKey]struct{}), make(map[vip.ServiceKey]struct{})
		s.published = make(map[vip.ServiceKey]status.State)
	}
	s.desired.Each(func(f *vip.Frontend) { s.lookFrontend(f.Key) })
	s.applied.Each(func(a *reconcile.AppliedFrontend) { s.lookFrontend(a.Tried.Value.Key) })
	s.feed.Each(func(k *vip.ServiceKey) { s.look(*k) })
	s.services, s.kinds, s.frontends = emptied(s.services), emptied(s.kinds), emptied(s.frontends)
	if patterns := s.chosen(); !slices.Equal(patterns, s.patterns) {
		s.patterns, s.matched = patterns, make(map[vip.ServiceKey]struct{})
		for key := range t.Services.All() {
			s.match(key)
		}
	}
}

// emptied returns a new map for an empty one, because a map never shrinks: after a start, it would keep room for every row.
func emptied[K comparable, V any](m map[K]V) map[K]V {
	if len(m) == 0 {
		return make(map[K]V)
	}
	return m
}

// look takes in the status of a service.
func (s *Index) look(k vip.ServiceKey) {
	s.changed[k] = struct{}{}
	if before, counted := s.kinds[k]; counted {
		if s.counts[before]--; s.counts[before] == 0 {
			delete(s.counts, before)
		}
	}
	delete(s.services, k)
	delete(s.kinds, k)
	delete(s.matched, k)
	in := s.tables.Input(k, time.Time{})
	if in.Service == nil {
		return
	}
	s.match(k)
	r := status.Brief(in)
	if t := tallyOf(&in, &r); in.Service.NotHere {
		delete(s.matched, k)
	} else if t.Usable < r.Total || t.Drain+t.Contested+r.Held > 0 || isBad(r.State) {
		s.services[k] = troubledService{Tally: t, total: r.Total, ejected: r.Ejected, panics: r.Panics, held: r.Held, since: r.HeldSince, until: r.HeldUntil}
	}
	if r.State != status.Healthy {
		now := Kind{in.Service.Source, r.State}
		s.kinds[k] = now
		s.counts[now]++
	}
}

// match adds a service to the chosen ones if a pattern matches it.
func (s *Index) match(k vip.ServiceKey) {
	for _, p := range s.patterns {
		if ok, _ := path.Match(p, k.Namespace+"/"+k.Name); ok {
			s.matched[k] = struct{}{}
			return
		}
	}
}

// lookFrontend takes in a frontend and what was applied of it.
func (s *Index) lookFrontend(k vip.FrontendKey) {
	if f, ok := s.tables.Frontend(k); ok && (f.Pending() || f.Applied.Problem != nil || f.Applied.Warning != nil) {
		s.frontends[k] = struct{}{}
	} else {
		delete(s.frontends, k)
	}
}

// isBad reports whether a service in this state does not work as it should.
func isBad(s status.State) bool {
	return s == status.Degraded || s == status.Down || s == status.Refused
}

// tallyOf counts the backends and frontends of a service.
func tallyOf(in *status.Input, r *status.Report) Tally {
	t := Tally{Usable: r.Ready, Unhealthy: r.Unhealthy}
	if r.Leaving > 0 {
		t.Drain = len(status.UsesOf(in).Removed)
	}
	for i := range in.Service.Backends {
		switch in.StateOf(&in.Service.Backends[i]) {
		case vip.Ready:
			t.Ready++
		case vip.Drain:
			t.Drain++
		case vip.Maint:
			t.Maint++
		}
	}
	for i := range in.Frontends {
		if a := in.Frontends[i].Applied; a != nil && a.Warning != nil {
			t.Contested++
		}
	}
	return t
}
