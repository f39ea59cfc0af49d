package api

import (
	"context"
	"maps"
	"slices"
	"sync"
	"time"

	"github.com/ironvip/ironvip/internal/backoff"
	"github.com/ironvip/ironvip/internal/pipeline"
	"github.com/ironvip/ironvip/internal/reconcile"
	"github.com/ironvip/ironvip/internal/status"
	"github.com/ironvip/ironvip/internal/table"
	"github.com/ironvip/ironvip/vip"
)

// standing knows what is not as it should be, so that nobody has to look at what
// is. It follows the tables that statuses are made of. A question costs O(what
// changed since the last look, and what isn't well), the first one O(all);
// memory goes to what isn't well.
type standing struct {
	tables *status.Tables

	mu        sync.Mutex
	feeds     *standingFeeds // nil before the first question
	served    func() int     // services with frontends in force
	endpoints func() int     // of all frontends
	services  map[vip.ServiceKey]status.State
	frontends map[vip.FrontendKey]vip.ServiceKey // with the service, while endpoints of it leave; the zero one otherwise
}

type standingFeeds struct {
	services    *table.Feed[vip.ServiceKey, vip.Service]
	allocations *table.Feed[vip.ServiceKey, vip.Allocation]
	compiled    *table.Feed[vip.ServiceKey, pipeline.Compiled]
	states      *table.Feed[vip.BackendKey, vip.BackendState]
	frontends   *table.Feed[vip.FrontendKey, vip.Frontend]
	applied     *table.Feed[vip.FrontendKey, reconcile.AppliedFrontend]
}

// lookEvery bounds how long a table has to keep what was deleted for us.
const lookEvery = 10 * time.Second

// run looks now and then, once somebody has asked, until ctx ends.
func (s *standing) run(ctx context.Context) {
	for backoff.Sleep(ctx, lookEvery) {
		s.mu.Lock()
		if s.feeds != nil {
			s.look()
		}
		s.mu.Unlock()
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if f := s.feeds; f != nil {
		f.services.Close()
		f.allocations.Close()
		f.compiled.Close()
		f.states.Close()
		f.frontends.Close()
		f.applied.Close()
		s.feeds = nil
	}
}

// states returns how many services there are, and how many in each state but
// Healthy.
func (s *standing) states() (all int, count map[status.State]int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.look()
	count = make(map[status.State]int)
	for _, state := range s.services {
		count[state]++
	}
	return s.tables.Services.Len(), count
}

// unwell returns the state of each service that isn't Healthy, and of which services
// endpoints leave. All backends of the others are ready and have a weight.
func (s *standing) unwell() (states map[vip.ServiceKey]status.State, leave map[vip.ServiceKey]struct{}) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.look()
	leave = make(map[vip.ServiceKey]struct{})
	for _, service := range s.frontends {
		if service != (vip.ServiceKey{}) {
			leave[service] = struct{}{}
		}
	}
	return maps.Clone(s.services), leave
}

// remarkable returns the frontends that the dataplane has not tried yet in their
// newest form, of which there is a problem or a warning, or from which endpoints
// leave, sorted; and how many services and endpoints there are in all.
func (s *standing) remarkable() (keys []vip.FrontendKey, services, endpoints int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.look()
	for key := range s.frontends {
		keys = append(keys, key)
	}
	slices.SortFunc(keys, vip.CompareFrontendKeys)
	return keys, s.served(), s.endpoints()
}

// of returns the frontends of a service, some twice, also of one that is gone and whose
// frontends drain. It costs O(its own, and all frontends that are remarkable).
func (s *standing) of(key vip.ServiceKey) (keys []vip.FrontendKey) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.look()
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

// look takes in what has changed. The caller holds mu.
func (s *standing) look() {
	t := s.tables
	if s.feeds == nil {
		s.feeds = &standingFeeds{services: t.Services.Watch(), allocations: t.Allocations.Watch(), compiled: t.Compiled.Watch(),
			states: t.States.Watch(), frontends: t.Frontends.Watch(), applied: t.Applied.Watch()}
		s.services, s.frontends = make(map[vip.ServiceKey]status.State), make(map[vip.FrontendKey]vip.ServiceKey)
	}
	if s.served == nil {
		s.served = t.Compiled.Sum(func(c *pipeline.Compiled) int { return min(len(c.Frontends), 1) })
		s.endpoints = t.Frontends.Sum(func(f *vip.Frontend) int { return len(f.Backends) })
	}
	services, frontends := make(map[vip.ServiceKey]struct{}), make(map[vip.FrontendKey]struct{})
	eachChange(s.feeds.services, func(s *vip.Service) { services[s.Key] = struct{}{} })
	eachChange(s.feeds.allocations, func(a *vip.Allocation) { services[a.Asked.Key] = struct{}{} })
	eachChange(s.feeds.compiled, func(c *pipeline.Compiled) { services[c.Service.Key] = struct{}{} })
	eachChange(s.feeds.states, func(s *vip.BackendState) { services[s.Backend.Service] = struct{}{} })
	eachChange(s.feeds.frontends, func(f *vip.Frontend) {
		frontends[f.Key], services[f.Service] = struct{}{}, struct{}{}
	})
	eachChange(s.feeds.applied, func(a *reconcile.AppliedFrontend) {
		k := a.Tried.Value.Key
		frontends[k] = struct{}{}
		if f := t.Frontends.Row(k); f != nil {
			services[f.Value.Service] = struct{}{}
		}
	})
	for k := range services {
		if in := t.Input(k, time.Time{}); in.Service == nil {
			delete(s.services, k)
		} else if state := status.StateOf(in); state == status.Healthy {
			delete(s.services, k)
		} else {
			s.services[k] = state
		}
	}
	for k := range frontends {
		if f, there := t.Frontend(k); !there || !isRemarkable(&f) {
			delete(s.frontends, k)
		} else if f.Leaves() {
			s.frontends[k] = f.Frontend.Service
		} else {
			s.frontends[k] = vip.ServiceKey{}
		}
	}
	// A map never gives back what it once took: of a start, room for everything.
	if len(s.services) == 0 {
		s.services = make(map[vip.ServiceKey]status.State)
	}
	if len(s.frontends) == 0 {
		s.frontends = make(map[vip.FrontendKey]vip.ServiceKey)
	}
}

func isRemarkable(f *status.Frontend) bool {
	return f.Pending() || f.Applied.Problem != nil || f.Applied.Warning != nil || f.Leaves()
}

// eachChange calls with the newest or last value of all that has changed.
func eachChange[K comparable, V any](feed *table.Feed[K, V], with func(*V)) {
	for batch, _ := feed.TryNext(); len(batch) > 0; batch, _ = feed.TryNext() {
		for i := range batch {
			with(&batch[i].Value)
		}
	}
}
