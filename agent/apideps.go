package agent

import (
	"context"
	"time"

	"github.com/ironvip/ironvip/api"
	"github.com/ironvip/ironvip/api/snapshot"
	v1 "github.com/ironvip/ironvip/api/v1"
	"github.com/ironvip/ironvip/health/probe"
	"github.com/ironvip/ironvip/internal/openfiles"
	"github.com/ironvip/ironvip/vip"
)

// apiAnnouncing is what the API shows of announcements.
func (a *agent) apiAnnouncing() *api.Announcing {
	tables := a.announcing.Tables
	return &api.Announcing{Announcements: tables.Announcements, Announced: tables.Announced, Peers: tables.Peers, Stale: a.announcing.Stale,
		Drains: a.announcing.Nodes.Drains, SetDrain: a.announcing.Nodes.SetDrain}
}

// apiDeps is what the API reads and calls.
func (a *agent) apiDeps() api.Deps {
	var probes func() probe.Stats
	var lastFailure func(*vip.Service, *vip.Backend) (vip.Instant, string)
	if a.probing != nil {
		probes, lastFailure = a.probing.Stats, a.probing.LastFailure
	}
	return api.Deps{
		Node: a.config.get().Node.Name, Version: a.version, Started: a.started,
		Policy: a.access.policy.Load, Tokens: a.access.tokens,
		Registrar: a.rest, SetState: a.overrides.Set, LocalOverrides: a.overrides.Local,
		Clock: a.clock, Services: a.tables.Services, Sources: a.statuses, Refused: a.refusals, Conflicts: a.pipeline.Resolve.Conflicts(), Overrides: a.tables.Overrides, Health: a.tables.Health, Passive: a.tables.Passive, Leases: a.allocator.Leases(),
		Allocations: a.tables.Allocations, Compiled: a.tables.Compiled, Frontends: a.tables.Frontends, Applied: a.tables.Applied,
		Begun: a.began, Awaits: a.stores.Awaits, Ready: a.pipeline.Loop.Synced(), Overridden: a.pipeline.Compile.WaitOverridden, DrainsKept: a.pipeline.Compile.WaitKept,
		Events: a.events,
		Pools:  a.allocator.Pools, Reservations: a.allocator,
		Resync:    a.resync,
		Stats:     a.pipeline.Loop.Stats,
		Dataplane: a.planes.Dataplane, Switch: a.planes.Switch, Left: a.planes.Left(),
		Diff:    a.pipeline.Loop.Diff,
		Repair:  a.pipeline.Loop.Repair,
		Preview: a.allocator.Preview,
		Config: api.Config{
			Check: func() v1.Check { return a.config.check(a.planes.Mode()) }, Validate: a.validate, Plan: a.plan, Reload: a.reload,
			Loaded: func() (bool, time.Time) {
				problems, at, lastGood := a.config.last()
				return len(problems) == 0 && !lastGood, at
			},
		},
		Nodes: a.nodes, ForgetNode: a.forgetNode, CompareChecks: a.probing.Compare,
		Announcing: a.apiAnnouncing(),
		Naming:     api.Naming{Stage: a.naming.Stage, Zone: a.naming.Zone},
		Snapshot:   func(ctx context.Context) (snapshot.Document, error) { return a.stores.Document(ctx, a.version) },
		Tables:     a.debugTables(),
		Checks:     a.checks,
		Metrics:    a.metrics,
		Statistics: a.planes, Connections: a.planes, ConnectionLister: a.planes, Proxy: a.planes.Report,
		MaxConnections: openfiles.Divide(openfiles.Limit()).API / 2, // on the socket, and on TCP
		ClientRate:     func() int { return a.config.get().API.RateLimit },
		Probes:         probes, LastFailure: lastFailure, BackendMetrics: func() []string { return a.config.get().Metrics.Backends },
		Log: a.log,
	}
}
