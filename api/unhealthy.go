package api

import (
	"context"
	"maps"
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

// unhealthyIndex contains the services that aren't healthy and the notable frontends, so that a
// status needs no scan of the rest. It follows the tables that a status depends on. A query costs
// O(changes since the last update + unhealthy rows), the first one O(all rows). Memory is
// O(unhealthy rows). It also publishes the changes of states.
type unhealthyIndex struct {
	tables *status.Tables
	events *event.Log // may be nil

	mu        sync.Mutex
	feeds     *indexFeeds // nil before the first update
	served    func() int  // services with frontends
	endpoints func() int  // of all frontends
	backends  func() int  // of all services
	services  map[vip.ServiceKey]unhealthyService
	frontends map[vip.FrontendKey]vip.ServiceKey // the service if endpoints are leaving, else the zero key
	counts    *standing                          // of services; nil: they have changed since

	changed   map[vip.ServiceKey]struct{}     // since the last publish
	published map[vip.ServiceKey]status.State // the bad states that events have, until they end
}

// unhealthyService is what the index knows of a service that isn't healthy.
type unhealthyService struct {
	state   status.State
	down    int // backends that are ready and unhealthy
	ejected int
	panics  bool
	held    int // backends with held traffic, since and until when
	since   vip.Instant
	until   vip.Instant
}

// indexFeeds are the changes that the index follows.
type indexFeeds struct {
	services  *table.Feed[vip.ServiceKey, vip.ServiceKey] // of their statuses
	frontends *table.Feed[vip.FrontendKey, vip.Frontend]
	applied   *table.Feed[vip.FrontendKey, reconcile.AppliedFrontend]
}

// close ends the feeds, for which the tables keep tombstones.
func (f *indexFeeds) close() {
	f.services.Close()
	f.frontends.Close()
	f.applied.Close()
}

// updateInterval bounds how long tables keep tombstones for the feeds, and how soon an event has
// the state of a service. States that last for less have no event. Without changes, an update costs
// one look at each feed.
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
	if s.feeds != nil {
		s.feeds.close()
		s.feeds = nil
	}
}

// standing has the numbers of the services and their backends. Callers share it, so nobody may change it.
type standing struct {
	services, backends int
	states             map[status.State]int // services in each state except Healthy
	down, ejected      int                  // backends that are ready and unhealthy, and ejected ones
	panics             []vip.ServiceKey     // services in panic mode, sorted
	held               int                  // backends with held traffic, since and until when
	since, until       vip.Instant
}

// standing costs O(services that aren't healthy) after a change of a service, and O(1) otherwise.
func (s *unhealthyIndex) standing() standing {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.update()
	if s.counts == nil {
		s.counts = standingOf(s.services)
	}
	out := *s.counts
	out.services, out.backends = s.tables.Services.Len(), s.backends()
	return out
}

// standingOf returns what the services that aren't healthy contribute.
func standingOf(services map[vip.ServiceKey]unhealthyService) *standing {
	out := &standing{states: make(map[status.State]int)}
	for key, service := range services {
		out.states[service.state]++
		out.down += service.down
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
	slices.SortFunc(out.panics, compareKeys)
	return out
}

// notHealthy returns the state of each service that isn't Healthy, and the services with
// leaving endpoints. All backends of the other services are ready and have a weight.
func (s *unhealthyIndex) notHealthy() (states map[vip.ServiceKey]unhealthyService, leave map[vip.ServiceKey]struct{}) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.update()
	leave = make(map[vip.ServiceKey]struct{})
	for _, service := range s.frontends {
		if service != (vip.ServiceKey{}) {
			leave[service] = struct{}{}
		}
	}
	return maps.Clone(s.services), leave
}

// notableFrontends returns, sorted, the frontends with an untried revision, a problem, a warning or
// leaving endpoints. It also returns the number of all services and endpoints.
func (s *unhealthyIndex) notableFrontends() (keys []vip.FrontendKey, services, endpoints int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.update()
	for key := range s.frontends {
		keys = append(keys, key)
	}
	slices.SortFunc(keys, vip.CompareFrontendKeys)
	return keys, s.served(), s.endpoints()
}

// of returns the frontends of a service, some twice. It includes the draining frontends
// of a removed service. It costs O(its own frontends + notable frontends).
func (s *unhealthyIndex) of(key vip.ServiceKey) (keys []vip.FrontendKey) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.update()
	if row := s.tables.Compiled.Row(key); row != nil {
		for _, live := range row.Value.Frontends {
			keys = append(keys, live.Value.Key)
		}
	}
	for k, leaver := range s.frontends {
		if leaver == key {
			keys = append(keys, k)
		}
	}
	return keys
}

// update applies the changes since the last update. The caller holds mu.
func (s *unhealthyIndex) update() {
	t := s.tables
	if s.feeds == nil {
		s.feeds = &indexFeeds{t.Revisions.Watch(), t.Frontends.Watch(), t.Applied.Watch()}
		s.services, s.frontends = make(map[vip.ServiceKey]unhealthyService), make(map[vip.FrontendKey]vip.ServiceKey)
		s.changed, s.published = make(map[vip.ServiceKey]struct{}), make(map[vip.ServiceKey]status.State)
	}
	if s.served == nil {
		s.backends = t.Services.Sum(func(s *vip.Service) int { return len(s.Backends) })
		s.served = t.Compiled.Sum(func(c *pipeline.Compiled) int { return min(len(c.Frontends), 1) })
		s.endpoints = t.Frontends.Sum(func(f *vip.Frontend) int { return len(f.Backends) })
	}
	services, frontends := make(map[vip.ServiceKey]struct{}), make(map[vip.FrontendKey]struct{})
	eachChange(s.feeds.services, func(k *vip.ServiceKey) { services[*k] = struct{}{} })
	eachChange(s.feeds.frontends, func(f *vip.Frontend) { frontends[f.Key] = struct{}{} })
	eachChange(s.feeds.applied, func(a *reconcile.AppliedFrontend) { frontends[a.Tried.Value.Key] = struct{}{} })
	if len(services) > 0 {
		s.counts = nil
	}
	for k := range services {
		s.changed[k] = struct{}{}
		if in := t.Input(k, time.Time{}); in.Service == nil {
			delete(s.services, k)
		} else if r := status.Brief(in); r.State == status.Healthy {
			delete(s.services, k)
		} else {
			s.services[k] = unhealthyService{state: r.State, down: r.Unhealthy, ejected: r.Ejected, panics: r.Panics,
				held: r.Held, since: r.HeldSince, until: r.HeldUntil}
		}
	}
	for k := range frontends {
		if f, there := t.Frontend(k); !there || !isNotable(&f) {
			delete(s.frontends, k)
		} else if f.Leaves() {
			s.frontends[k] = f.Frontend.Service
		} else {
			s.frontends[k] = vip.ServiceKey{}
		}
	}
	// Replace an empty map, because a map never shrinks: after a start, it would keep room for
	// every row.
	if len(s.services) == 0 {
		s.services = make(map[vip.ServiceKey]unhealthyService)
	}
	if len(s.frontends) == 0 {
		s.frontends = make(map[vip.FrontendKey]vip.ServiceKey)
	}
}

func isNotable(f *status.Frontend) bool {
	return f.Pending() || f.Applied.Problem != nil || f.Applied.Warning != nil || f.Leaves()
}
