package api

import (
	"time"

	"github.com/ironvip/ironvip/dns/zone"
	"github.com/ironvip/ironvip/internal/pipeline"
	"github.com/ironvip/ironvip/internal/reconcile"
	"github.com/ironvip/ironvip/internal/status"
	"github.com/ironvip/ironvip/internal/table"
	"github.com/ironvip/ironvip/vip"
)

// statusFeeds are the changes of the tables that the status of a service depends on.
type statusFeeds struct {
	tables      *status.Tables
	services    *table.Feed[vip.ServiceKey, vip.Service]
	allocations *table.Feed[vip.ServiceKey, vip.Allocation]
	compiled    *table.Feed[vip.ServiceKey, pipeline.Compiled]
	states      *table.Feed[vip.BackendKey, vip.BackendState]
	health      *table.Feed[vip.BackendKey, vip.BackendHealth]
	passive     *table.Feed[vip.PassiveKey, vip.PassiveHealth]
	conflicts   *table.Feed[zone.ConflictKey, zone.Conflict] // of DNS names
	frontends   *table.Feed[vip.FrontendKey, vip.Frontend]
	applied     *table.Feed[vip.FrontendKey, reconcile.AppliedFrontend]
}

func watchStatus(t *status.Tables) *statusFeeds {
	return &statusFeeds{tables: t, services: t.Services.Watch(), allocations: t.Allocations.Watch(), compiled: t.Compiled.Watch(),
		states: t.Overrides.Watch(), health: t.Health.Watch(), passive: t.Passive.Watch(), conflicts: t.NameConflicts.Watch(), frontends: t.Frontends.Watch(), applied: t.Applied.Watch()}
}

// close ends the feeds, for which the tables keep tombstones.
func (f *statusFeeds) close() {
	f.services.Close()
	f.allocations.Close()
	f.compiled.Close()
	f.states.Close()
	f.health.Close()
	f.passive.Close()
	f.conflicts.Close()
	f.frontends.Close()
	f.applied.Close()
}

// changed returns the services and frontends with a change since the last call. The first call
// returns all of them.
func (f *statusFeeds) changed() (services map[vip.ServiceKey]struct{}, frontends map[vip.FrontendKey]struct{}) {
	services, frontends = make(map[vip.ServiceKey]struct{}), make(map[vip.FrontendKey]struct{})
	eachChange(f.services, func(s *vip.Service) { services[s.Key] = struct{}{} })
	eachChange(f.allocations, func(a *vip.Allocation) { services[a.Asked.Key] = struct{}{} })
	eachChange(f.compiled, func(c *pipeline.Compiled) { services[c.Service.Key] = struct{}{} })
	eachChange(f.states, func(s *vip.BackendState) { services[s.Backend.Service] = struct{}{} })
	eachChange(f.health, func(h *vip.BackendHealth) { services[h.Backend.Service] = struct{}{} })
	eachChange(f.passive, func(h *vip.PassiveHealth) { services[h.Service] = struct{}{} })
	eachChange(f.conflicts, func(c *zone.Conflict) { services[c.Service] = struct{}{} })
	eachChange(f.frontends, func(fe *vip.Frontend) {
		frontends[fe.Key], services[fe.Service] = struct{}{}, struct{}{}
	})
	eachChange(f.applied, func(a *reconcile.AppliedFrontend) {
		k := a.Tried.Value.Key
		frontends[k] = struct{}{}
		if row := f.tables.Frontends.Row(k); row != nil {
			services[row.Value.Service] = struct{}{}
		}
	})
	return services, frontends
}

// changes are closed by the next change of the tables that the status of a service depends on.
type changes struct {
	services, allocations, compiled, states, health, passive, conflicts, frontends, applied <-chan struct{}
}

func (s *Server) changes() changes {
	return changes{services: s.Services.Changed(), allocations: s.Allocations.Changed(), compiled: s.Compiled.Changed(), states: s.Overrides.Changed(),
		health: s.Health.Changed(), passive: s.Passive.Changed(), conflicts: s.Naming.Stage.Conflicts().Changed(), frontends: s.Frontends.Changed(), applied: s.Applied.Changed()}
}

// happening is why a wait has returned.
type happening int

const (
	rowChanged happening = iota
	ticked
	ended
)

// wait waits for a change, a tick, or the end.
func (c *changes) wait(end <-chan struct{}, tick <-chan time.Time) happening {
	select {
	case <-end:
		return ended
	case <-tick:
		return ticked
	case <-c.services:
	case <-c.allocations:
	case <-c.compiled:
	case <-c.states:
	case <-c.health:
	case <-c.passive:
	case <-c.conflicts:
	case <-c.frontends:
	case <-c.applied:
	}
	return rowChanged
}

// eachChange calls with for the newest value of each changed row, or the last value of a
// deleted one.
func eachChange[K comparable, V any](feed *table.Feed[K, V], with func(*V)) {
	for batch, _ := feed.TryNext(); len(batch) > 0; batch, _ = feed.TryNext() {
		for i := range batch {
			with(&batch[i].Value)
		}
	}
}
