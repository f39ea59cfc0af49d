package agent

import (
	"net/netip"
	"time"

	"github.com/ironvip/ironvip/agent/announcing"
	"github.com/ironvip/ironvip/agent/lostnodes"
	"github.com/ironvip/ironvip/agent/naming"
	"github.com/ironvip/ironvip/agent/probing"
	"github.com/ironvip/ironvip/announce/nodes"
	"github.com/ironvip/ironvip/configs"
	"github.com/ironvip/ironvip/health/healthport"
	"github.com/ironvip/ironvip/internal/store"
	"github.com/ironvip/ironvip/pipeline"
	"github.com/ironvip/ironvip/pipeline/compile"
	"github.com/ironvip/ironvip/vip"
)

// newPipeline creates the stages from claims to the dataplane, the health checks, and the health
// ports.
func (a *agent) newPipeline(cfg *configs.Config) {
	a.probing = probing.New(probing.Options{Stores: a.stores, Tables: a.tables, Mark: a.planes.Mark, Events: a.events, Log: a.log})
	var nodePorts []netip.Prefix
	for _, r := range cfg.Dataplane.NodePortAddresses {
		nodePorts = append(nodePorts, r.Prefix)
	}
	a.pipeline = pipeline.New(pipeline.Options{
		Tables: a.tables, Allocator: a.allocator, Shared: a.stores.Tree != nil, Scope: cfg.Dataplane.Serves,
		Node:      compile.Node{Name: cfg.Node.Name, Zone: cfg.Node.Zone, RealServer: cfg.Dataplane.Role == configs.RoleRealServer},
		NodePorts: nodePorts, Drains: store.NewBucket[vip.Frontend](a.stores.DB, "drains"),
		Plane: a.planes.Serving(), Connections: a.planes, Resync: time.Duration(cfg.Dataplane.ResyncInterval), Together: a.planes.Together(),
		Events: a.events, Log: a.log,
	})
	a.health = healthport.New(healthport.Options{
		Compiled: a.tables.Compiled, Host: a.tables.Host, NodePorts: nodePorts,
		Healthy: newPlaneHealth(a.pipeline.Loop.Stats).ok, Synced: a.pipeline.Loop.Synced(), Sockets: a.sockets, Events: a.events, Log: a.log,
	})
}

// newAnnouncing creates the part that tells the announcer what to do.
func (a *agent) newAnnouncing() {
	balancers := func() int { return 1 }
	if a.stores.Roster != nil {
		balancers = a.stores.Roster.Probing
	}
	a.announcing = announcing.New(announcing.Options{
		Balancers: balancers, Config: a.config.get, Store: a.stores.Announce, Fleet: a.stores.Tree != nil, Host: a.tables.Host, Applied: a.tables.Applied, Services: a.tables.Services, Leases: a.allocator.Leases(),
		Synced: a.pipeline.Loop.Synced(), Healthy: newPlaneHealth(a.pipeline.Loop.Stats).ok, Forwards: a.planes.Forwards, Hangs: a.hangs,
		Clock: a.tables.Clock, Events: a.events, Log: a.log,
	})
	o := lostnodes.Options{Peers: a.announcing.Peers, Draining: a.announcing.Nodes.Draining, Configured: a.announcing.IsPeer, Clock: a.tables.Clock, Events: a.events}
	if a.stores.Roster != nil {
		o.Roster = a.stores.Roster
	}
	a.lost = lostnodes.New(o)
	if a.stores.Roster != nil {
		a.stores.Roster.Keep(nodeRecords{a.announcing.Nodes, a.lost})
	}
	a.metrics = append(a.metrics, a.announcing.Collector(), a.lost.Collect)
}

// newNaming creates the part that answers DNS queries for the names of services.
func (a *agent) newNaming() (err error) {
	a.naming, err = naming.New(naming.Options{
		Config: a.config.get, Services: a.tables.Services, Allocations: a.tables.Allocations, Leases: a.allocator.Leases(),
		Store: store.NewBucket[vip.ServiceKey](a.stores.DB, "contested names"), Host: a.tables.Host, Sockets: a.sockets, Clock: a.tables.Clock, Events: a.events, Log: a.log,
	})
	if err != nil {
		return err
	}
	a.metrics = append(a.metrics, a.naming.Collect)
	return nil
}

// nodeRecords are what the roster's leader ends when it forgets a node.
type nodeRecords struct {
	*nodes.Nodes
	*lostnodes.Follower
}

// parts returns everything that runs once the agent has begun.
func (a *agent) parts() []part {
	parts := append([]part{
		{"watching the host's addresses", a.watcher.Run},
		{"the sources", a.supervisor.Run},
		{"watching the state file", a.stores.WatchState},
		{"the overrides", a.overrides.Run},
		{"the pipeline", a.pipeline.Run},
		{"the health ports", a.health.Run},
		{"announcing", a.announcing.Run},
		{"the tokens", a.access.tokens.Run},
		{"the lost nodes", a.lost.Run},
		{"DNS names", a.naming.Run},
	}, a.background...)
	if a.stores.Tree != nil {
		parts = append(parts, part{"the list of the fleet's hosts", a.stores.Roster.Run})
	}
	if a.probing != nil {
		parts = append(parts, part{"the health checks", a.probing.Run})
	}
	for _, c := range a.caches {
		parts = append(parts, part{"saving services", c.Keep})
	}
	return parts
}
