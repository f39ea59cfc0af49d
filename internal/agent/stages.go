package agent

import (
	"time"

	"github.com/ironvip/ironvip/configs"
	"github.com/ironvip/ironvip/internal/healthport"
	"github.com/ironvip/ironvip/internal/pipeline"
	"github.com/ironvip/ironvip/internal/pipeline/compile"
	"github.com/ironvip/ironvip/internal/reconcile"
	"github.com/ironvip/ironvip/internal/store"
	"github.com/ironvip/ironvip/vip"
)

// newStages creates the stages from services to the dataplane.
func (a *agent) newStages(cfg *configs.Config) {
	a.allocate = pipeline.NewAllocate(pipeline.AllocateOptions{
		Services: a.services, Host: a.host, Allocator: a.allocator, Allocations: a.allocations, Events: a.events, Log: a.log,
	})
	connections, _ := a.plane.Plane.(reconcile.Connections)
	a.compile = pipeline.NewCompile(pipeline.CompileOptions{
		Services: a.services, Allocations: a.allocations, States: a.states, Host: a.host,
		NodePorts: nodePortAddresses(cfg),
		Node:      compile.Node{Name: cfg.Node.Name, Zone: cfg.Node.Zone, RealServer: cfg.Dataplane.Role == configs.RoleRealServer},
		Frontends: a.frontends, Compiled: a.compiled,
		Connections: connections, Applied: a.applied, Store: store.NewBucket[vip.Frontend](a.db, "drains"),
		Events: a.events, Log: a.log,
	})
	a.reconciler = reconcile.New(reconcile.Options[vip.FrontendKey, vip.Frontend]{
		Desired: a.frontends, Target: a.plane.Plane, Applied: a.applied, Resync: time.Duration(cfg.Dataplane.ResyncInterval),
		Moved:   a.watcher.Changed(),
		Service: func(f *vip.Frontend) string { return f.Service.String() }, Events: a.events, Log: a.log,
	})
	a.health = healthport.New(healthport.Options{
		Compiled: a.compiled, Host: a.host, NodePorts: nodePortAddresses(cfg),
		Healthy: newPlaneHealth(a.reconciler.Stats).ok, Events: a.events, Log: a.log,
	})
}

// pipeline returns the parts that a service passes through, in that order.
func (a *agent) pipeline() []part {
	var parts []part
	for _, c := range a.caches {
		parts = append(parts, part{"saving services", c.Keep})
	}
	parts = append(parts, part{"watching the host's addresses", a.watcher.Run}, part{"the sources", a.supervisor.Run}, part{"resolve", a.resolve.Run},
		part{"the overrides", a.overrides.Run})
	parts = append(parts, a.background...)
	return append(parts,
		part{"the allocator", a.allocator.Run},
		part{"allocate", a.allocate.Run},
		part{"compile", a.compile.Run},
		part{"reconcile", a.reconciler.Run},
		part{"the health ports", a.health.Run},
	)
}
