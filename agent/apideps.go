package agent

import (
	"context"
	"time"

	"github.com/ironvip/ironvip/api"
	"github.com/ironvip/ironvip/api/addresses"
	"github.com/ironvip/ironvip/api/forwarding"
	"github.com/ironvip/ironvip/api/nodes"
	"github.com/ironvip/ironvip/api/server"
	"github.com/ironvip/ironvip/api/services"
	"github.com/ironvip/ironvip/api/snapshot"
	"github.com/ironvip/ironvip/api/status"
	v1 "github.com/ironvip/ironvip/api/v1"
	"github.com/ironvip/ironvip/health/probe"
	"github.com/ironvip/ironvip/internal/openfiles"
	"github.com/ironvip/ironvip/vip"
)

// apiDeps is what the API reads and calls.
func (a *agent) apiDeps() api.Deps {
	var probes func() probe.Stats
	var lastFailure func(*vip.Service, *vip.Backend) (vip.Instant, string)
	if a.probing != nil {
		probes, lastFailure = a.probing.Stats, a.probing.LastFailure
	}
	announced := a.announcing.Tables
	return api.Deps{
		Options: server.Options{Node: a.config.get().Node.Name, Version: a.version, Policy: a.access.policy.Load, Log: a.log,
			Connections: openfiles.Divide(openfiles.Limit()).API / 2, // on the socket, and on TCP
			ClientRate:  func() int { return a.config.get().API.RateLimit }},
		Started: a.started, Tokens: a.access.tokens,
		Services: services.Deps{Registrar: a.rest, SetState: a.overrides.Set, LocalOverrides: a.overrides.Local, Overridden: a.pipeline.Compile.WaitOverridden, DrainsKept: a.pipeline.Compile.WaitKept,
			Preview: a.allocator.Preview, LastFailure: lastFailure, Proxy: a.planes.Report, Mode: a.planes.Mode},
		Tables: status.Tables{Clock: a.clock, Services: a.tables.Services, Allocations: a.tables.Allocations, Compiled: a.tables.Compiled, Frontends: a.tables.Frontends, Applied: a.tables.Applied,
			Overrides: a.tables.Overrides, Health: a.tables.Health, Passive: a.tables.Passive, Refused: a.refusals, Naming: a.naming.Stage, Left: a.planes.Left()},
		Sources: a.statuses, Conflicts: a.pipeline.Resolve.Conflicts(),
		Begun: a.began, Awaits: a.stores.Awaits, Ready: a.pipeline.Loop.Synced(),
		Events: a.events,
		Resync: a.resync,
		Forwarding: forwarding.Deps{Stats: a.pipeline.Loop.Stats, Dataplane: a.planes.Dataplane, Switch: a.planes.Switch, Statistics: a.planes, Connections: a.planes, ConnectionLister: a.planes,
			Diff: a.pipeline.Loop.Diff, Repair: a.pipeline.Loop.Repair},
		Config: api.Config{
			Check: func() v1.Check { return a.config.check(a.planes.Mode()) }, Validate: a.validate, Plan: a.plan, Reload: a.reload,
			Loaded: func() (bool, time.Time) {
				problems, at, lastGood := a.config.last()
				return len(problems) == 0 && !lastGood, at
			},
		},
		Nodes: nodes.Deps{List: a.nodes, Forget: a.forgetNode, Announcements: announced.Announcements, Announced: announced.Announced, Peers: announced.Peers,
			Stale: a.announcing.Stale, Drains: a.announcing.Nodes.Drains, SetDrain: a.announcing.Nodes.SetDrain,
			Moves: a.announcing.Nodes.Moves, SetMove: a.announcing.Nodes.SetMove, EndMove: a.announcing.Nodes.EndMove},
		Addresses:   addresses.Deps{Leases: a.allocator.Leases(), Pools: a.allocator.Pools, Reservations: a.allocator, Zone: a.naming.Zone},
		Snapshot:    func(ctx context.Context) (snapshot.Document, error) { return a.stores.Document(ctx, a.version) },
		DebugTables: a.debugTables(),
		Checks:      a.checks,
		Metrics:     a.metrics,
		Probes:      probes, BackendMetrics: func() []string { return a.config.get().Metrics.Backends },
	}
}
