package api

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

// unhealthyIndex contains the services and frontends that have trouble, so that a status and a scrape need no scan of the
// rest. It follows the revisions of statuses, and the frontends with what was applied of them. A query costs O(changes since the
// last update + those with trouble), the first one O(all services). It also publishes the changes of states.
type unhealthyIndex struct {
	tables *status.Tables
	events *event.Log
	chosen func() []string // patterns of services that are always in the tallies
	sums                   // of the tables

	mu        sync.Mutex
	feed      *table.Feed[vip.ServiceKey, vip.ServiceKey] // of the statuses; nil before the first update
	desired   *table.Feed[vip.FrontendKey, vip.Frontend]
	applied   *table.Feed[vip.FrontendKey, reconcile.AppliedFrontend]
	services  map[vip.ServiceKey]troubledService
	kinds     map[vip.ServiceKey]kind         // of the services that aren't healthy, and of those with trouble
	counts    map[kind]int                    // of the same services
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
	served   func() int            // services with frontends
	ends     func() int            // endpoints of all frontends
}

// kind is what services are counted by.
type kind struct {
	source string
	state  status.State
}

// tally counts the backends and frontends of a service.
type tally struct {
	// Backends by their effective state, including those that are removed and still drain, and how
	// many of them accept new connections.
	ready, drain, maint, usable int
	// Backends that are ready and unhealthy.
	unhealthy int
	// Frontends that another program keeps changing.
	contested int
}

// troubledService is what the index knows of a service that is degraded, down or refused, or has backends that are not
// usable, or contested frontends.
type troubledService struct {
	tally
	total   int // backends that it lists
	ejected int
	panics  bool
	held    int // backends with held traffic, since and until when
	since   vip.Instant
	until   vip.Instant
}

func newUnhealthyIndex(t *status.Tables, events *event.Log, chosen func() []string) *unhealthyIndex {
	return &unhealthyIndex{tables: t, events: events, chosen: chosen, sums: sums{
		sources: table.Counts(t.Services, func(s *vip.Service) string { return s.Source }),
		backends: t.Services.Sum(func(s *vip.Service) int {
			if s.NotHere {
				return 0
			}
			return len(s.Backends)
		}),
		served: t.Compiled.Sum(func(c *pipeline.Compiled) int { return min(len(c.Frontends), 1) }),
		ends:   t.Frontends.Sum(func(f *vip.Frontend) int { return len(f.Backends) }),
	}}
}

// updateInterval bounds how long tables keep tombstones for the feed, and how soon an event has
// the state of a service. States that last for less have no event. Without changes, an update costs
// one look at the feed.
const updateInterval = time.Second

// run updates the index at intervals, until ctx ends.
func (s *unhealthyIndex) run(ctx context.Context) {
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

// standing has the numbers of the services and their backends.
type standing struct {
	services, backends int
	states             map[status.State]int // services in each state except Healthy
	down, ejected      int                  // backends that are ready and unhealthy, and ejected ones
	panics             []vip.ServiceKey     // services in panic mode, sorted
	held               int                  // backends with held traffic, since and until when
	since, until       vip.Instant
}

// standing costs O(services with trouble).
func (s *unhealthyIndex) standing() standing {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.update()
	out := standing{services: s.tables.Services.Len(), backends: s.backends(), states: make(map[status.State]int)}
	for kind, n := range s.counts {
		if kind.state != status.Healthy {
			out.states[kind.state] += n
		}
	}
	for key, service := range s.services {
		out.down += service.unhealthy
		out.ejected += service.ejected
		if service.panics {
			out.panics = append(out.panics, key)
		}
		if service.held > 0 && (out.held == 0 || out.since.After(service.since)) {
			out.since = service.since
		}
		if out.held += service.held; service.until.After(out.until) {
			out.until = service.until
		}
	}
	slices.SortFunc(out.panics, vip.ServiceKey.Compare)
	return out
}

// tallies returns the tallies of the services with trouble and of the chosen ones, and the sum over all services. It costs
// O(these services).
func (s *unhealthyIndex) tallies() (of map[vip.ServiceKey]tally, sum tally) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.update()
	of = make(map[vip.ServiceKey]tally, len(s.services)+len(s.matched))
	for key := range s.matched {
		if row := s.tables.Services.Row(key); row != nil {
			n := len(row.Value.Backends)
			of[key] = tally{ready: n, usable: n}
		}
	}
	n := s.backends()
	sum = tally{ready: n, usable: n}
	for key, t := range s.services {
		of[key] = t.tally
		sum.ready += t.ready - t.total
		sum.usable += t.usable - t.total
		sum.drain += t.drain
		sum.maint += t.maint
		sum.unhealthy += t.unhealthy
	}
	return of, sum
}

// states returns how many services there are of each kind. It costs O(kinds).
func (s *unhealthyIndex) states() map[kind]int {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.update()
	out := maps.Clone(s.counts)
	for source, n := range s.sources() {
		healthy := kind{source, status.Healthy}
		out[healthy] += n
		for k, n := range s.counts {
			if k.source == source {
				out[healthy] -= n
			}
		}
		if out[healthy] <= 0 { // less: services were removed meanwhile
			delete(out, healthy)
		}
	}
	return out
}

// chosenServices returns the services that match the patterns.
func (s *unhealthyIndex) chosenServices() []vip.ServiceKey {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.update()
	return slices.Collect(maps.Keys(s.matched))
}

// eachFrontend calls f with the frontends that are pending, or have a problem or a warning. It costs O(those).
func (s *unhealthyIndex) eachFrontend(f func(*status.Frontend)) {
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
func (s *unhealthyIndex) update() {
	t := s.tables
	if s.feed == nil {
		s.feed, s.desired, s.applied = t.Revisions.Watch(), t.Frontends.Watch(), t.Applied.Watch()
		s.services, s.changed = make(map[vip.ServiceKey]troubledService), make(map[vip.ServiceKey]struct{})
		s.kinds, s.counts = make(map[vip.ServiceKey]kind), make(map[kind]int)
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
func (s *unhealthyIndex) look(k vip.ServiceKey) {
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
	} else if t.usable < r.Total || t.drain+t.contested+r.Held > 0 || isBad(r.State) {
		s.services[k] = troubledService{tally: t, total: r.Total, ejected: r.Ejected, panics: r.Panics, held: r.Held, since: r.HeldSince, until: r.HeldUntil}
	}
	if r.State != status.Healthy {
		now := kind{in.Service.Source, r.State}
		s.kinds[k] = now
		s.counts[now]++
	}
}

// match adds a service to the chosen ones if a pattern matches it.
func (s *unhealthyIndex) match(k vip.ServiceKey) {
	for _, p := range s.patterns {
		if ok, _ := path.Match(p, k.Namespace+"/"+k.Name); ok {
			s.matched[k] = struct{}{}
			return
		}
	}
}

// lookFrontend takes in a frontend and what was applied of it.
func (s *unhealthyIndex) lookFrontend(k vip.FrontendKey) {
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
func tallyOf(in *status.Input, r *status.Report) tally {
	t := tally{usable: r.Ready, unhealthy: r.Unhealthy}
	if r.Leaving > 0 {
		t.drain = len(status.UsesOf(in).Removed)
	}
	for i := range in.Service.Backends {
		switch in.StateOf(&in.Service.Backends[i]) {
		case vip.Ready:
			t.ready++
		case vip.Drain:
			t.drain++
		case vip.Maint:
			t.maint++
		}
	}
	for i := range in.Frontends {
		if a := in.Frontends[i].Applied; a != nil && a.Warning != nil {
			t.contested++
		}
	}
	return t
}
