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
	"github.com/ironvip/ironvip/vip"
)

// unhealthyIndex contains the services that aren't healthy, so that a status needs no scan of the rest. It
// follows the revisions of statuses. A query costs O(changes since the last update + unhealthy services),
// the first one O(all services). Memory is O(unhealthy services). It also publishes the changes of states.
type unhealthyIndex struct {
	tables *status.Tables
	events *event.Log // may be nil

	mu        sync.Mutex
	feed      *table.Feed[vip.ServiceKey, vip.ServiceKey] // of the statuses; nil before the first update
	backends  func() int                                  // of all services
	services  map[vip.ServiceKey]unhealthyService
	changed   map[vip.ServiceKey]struct{}     // since the last publish
	published map[vip.ServiceKey]status.State // the bad states that events have, until they end
}

// unhealthyService is what the index knows of a service that isn't healthy, or that has backends that leave.
type unhealthyService struct {
	tally
	ejected int
	panics  bool
	held    int // backends with held traffic, since and until when
	since   vip.Instant
	until   vip.Instant
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
	if s.feed != nil {
		s.feed.Close() // the table keeps tombstones for it
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

// standing costs O(services that aren't healthy).
func (s *unhealthyIndex) standing() standing {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.update()
	out := standing{services: s.tables.Services.Len(), backends: s.backends(), states: make(map[status.State]int)}
	for key, service := range s.services {
		if service.state != status.Healthy {
			out.states[service.state]++
		}
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
	slices.SortFunc(out.panics, compareKeys)
	return out
}

// known returns what the index knows. All backends of the other services are ready and usable.
func (s *unhealthyIndex) known() map[vip.ServiceKey]unhealthyService {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.update()
	return maps.Clone(s.services)
}

// update applies the changes since the last update. The caller holds mu.
func (s *unhealthyIndex) update() {
	t := s.tables
	if s.feed == nil {
		s.feed = t.Revisions.Watch()
		s.services, s.changed = make(map[vip.ServiceKey]unhealthyService), make(map[vip.ServiceKey]struct{})
		s.published = make(map[vip.ServiceKey]status.State)
	}
	if s.backends == nil {
		s.backends = t.Services.Sum(func(s *vip.Service) int { return len(s.Backends) })
	}
	services := make(map[vip.ServiceKey]struct{})
	eachChange(s.feed, func(k *vip.ServiceKey) { services[*k] = struct{}{} })
	for k := range services {
		s.changed[k] = struct{}{}
		in := t.Input(k, time.Time{})
		r := status.Brief(in)
		if in.Service == nil || r.State == status.Healthy && r.Leaving == 0 {
			delete(s.services, k)
			continue
		}
		s.services[k] = unhealthyService{tally: tallyOf(&in, &r), ejected: r.Ejected, panics: r.Panics, held: r.Held, since: r.HeldSince, until: r.HeldUntil}
	}
	// Replace an empty map, because a map never shrinks: after a start, it would keep room for
	// every row.
	if len(s.services) == 0 {
		s.services = make(map[vip.ServiceKey]unhealthyService)
	}
}
