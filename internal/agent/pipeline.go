package agent

import (
	"time"

	"github.com/ironvip/ironvip/configs"
	"github.com/ironvip/ironvip/internal/healthport"
	"github.com/ironvip/ironvip/internal/pipeline"
	"github.com/ironvip/ironvip/internal/pipeline/compile"
	"github.com/ironvip/ironvip/internal/store"
	"github.com/ironvip/ironvip/vip"
)

// newPipeline creates the stages from claims to the dataplane, and the health ports.
func (a *agent) newPipeline(cfg *configs.Config) {
	a.pipeline = pipeline.New(pipeline.Options{
		Tables: a.tables, Allocator: a.allocator, Shared: a.stores.tree != nil,
		Node:      compile.Node{Name: cfg.Node.Name, Zone: cfg.Node.Zone, RealServer: cfg.Dataplane.Role == configs.RoleRealServer},
		NodePorts: nodePortAddresses(cfg), Drains: store.NewBucket[vip.Frontend](a.db, "drains"),
		Plane: a.plane.Plane, Resync: time.Duration(cfg.Dataplane.ResyncInterval), Moved: a.watcher.Changed(),
		Events: a.events, Log: a.log,
	})
	a.health = healthport.New(healthport.Options{
		Compiled: a.tables.Compiled, Host: a.tables.Host, NodePorts: nodePortAddresses(cfg),
		Healthy: newPlaneHealth(a.pipeline.Reconciler.Stats).ok, Events: a.events, Log: a.log,
	})
}

// parts returns everything that runs once the agent has begun.
func (a *agent) parts() []part {
	parts := append([]part{
		{"watching the host's addresses", a.watcher.Run},
		{"the sources", a.supervisor.Run},
		{"the overrides", a.overrides.Run},
		{"the pipeline", a.pipeline.Run},
		{"the health ports", a.health.Run},
	}, a.background...)
	for _, c := range a.caches {
		parts = append(parts, part{"saving services", c.Keep})
	}
	return parts
}
