package agent

import (
	"context"
	"fmt"
	"math"
	"net/netip"
	"runtime/debug"

	"github.com/ironvip/ironvip/configs"
	"github.com/ironvip/ironvip/internal/store"
	"github.com/ironvip/ironvip/ipam/fleetstore"
	"github.com/ironvip/ironvip/pipeline/overrides"
	"github.com/ironvip/ironvip/sources"
	"github.com/ironvip/ironvip/sources/cache"
	"github.com/ironvip/ironvip/sources/rest"
	"github.com/ironvip/ironvip/vip"
	"github.com/ironvip/ironvip/vip/spec"
)

// newSources creates the sources and their supervisor.
func (a *agent) newSources(cfg *configs.Config) error {
	a.supervisor = sources.NewSupervisor(sources.Options{
		Resolver: a.pipeline.Resolve, Services: a.tables.Services, Statuses: a.statuses, Refused: a.refusals, PriorServices: a.priorServices, Events: a.events, Log: a.log,
	})
	for i := range cfg.Sources {
		if err := a.newSource(&cfg.Sources[i]); err != nil {
			return err
		}
	}
	a.supervisor.Add(rest.Type, rest.Type, a.rest)
	return nil
}

// restOptions returns the options of the source that the API writes to.
func (a *agent) restOptions(cfg *configs.Config) rest.Options {
	o := rest.Options{
		Store: a.stores.Services, Services: a.tables.Services,
		Check:  func(s *spec.Service) []vip.Problem { return spec.CheckAgainstPools(s, a.pools()) },
		Events: a.events, Log: a.log, MaxEndpoints: maxEndpoints(),
	}
	if tree := a.stores.Tree; tree != nil {
		o.Fleet, o.Node = tree, cfg.Node.Name
	}
	if leases, ok := a.stores.Leases.(*fleetstore.Store); ok {
		o.Leases = fleetstore.Registrar{Allocator: a.allocator, Store: leases}
	}
	return o
}

// newOverrides creates the overrides. In a fleet, operators can set them while Consul is away: they
// wait in the state file.
func (a *agent) newOverrides(cfg *configs.Config) {
	o := overrides.Options{Store: a.stores.States, Table: a.tables.Overrides, Services: a.tables.Services, Health: a.tables.Health, Passive: a.tables.Passive, Fetch: a.rest.Fetch, Events: a.events, Log: a.log}
	if tree := a.stores.Tree; tree != nil {
		o.Store, o.Fleet, o.Node = a.stores.Pending, tree, cfg.Node.Name
	}
	a.overrides = overrides.New(o)
}

func (a *agent) pools() []spec.Pool { return a.config.get().SpecPools() }

// newSource creates one source of the configuration.
func (a *agent) newSource(s *configs.Source) error {
	bucket := store.NewBucket[cache.Row](a.stores.DB, "cache "+s.Name)
	source, err := s.Config.NewSource(sources.Deps{
		Name: s.Name, Node: a.config.get().Node.Name, Version: a.version, Pools: a.pools,
		SetPodCIDRs: func(ranges []netip.Prefix) { a.allocator.SetPodCIDRs(s.Name, ranges) },
		Services:    a.tables.Services, Allocations: a.tables.Allocations,
		Withdrawn: func(ctx context.Context, key vip.ServiceKey) error { return a.pipeline.WaitWithdrawn(ctx, s.Name, key) },
		Cache: func(source sources.Source) sources.Source {
			if r, ok := source.(sources.Reloader); ok {
				a.reloaders[s.Name] = r
			}
			cached := cache.New(s.Name, source, bucket, a.tables.Services, a.log)
			a.caches = append(a.caches, cached)
			return cached
		},
		Prior: func() []vip.Service {
			prior, _ := cache.Restore(s.Name, bucket, a.log)
			return prior
		},
		Background: func(what string, run func(context.Context) error) {
			name := "source " + s.Name + ": " + what
			a.background = append(a.background, part{name, func(ctx context.Context) error { return sources.KeepRunning(ctx, name, a.log, run) }})
		},
		Events: a.events, Log: a.log,
	})
	if err != nil {
		return fmt.Errorf("source %q: %w", s.Name, err)
	}
	a.supervisor.Add(s.Name, s.Type, source)
	return nil
}

// priorServices returns how many services of a source the last run of the agent had; 0 if that is
// unknown.
func (a *agent) priorServices(source string) int {
	for _, c := range a.caches {
		if c.Name() == source {
			return c.Prior()
		}
	}
	return 0
}

// endpointMemory is how much memory an endpoint of a registered service may need, in bytes: the agent has 1.7 KB for each with
// the proxy, the garbage collector as much again, and a change of all of them a second version.
const endpointMemory = 8 << 10

// maxEndpoints returns how many endpoints the services of the API may have for the limit of memory; 0 without a limit.
func maxEndpoints() int {
	if limit := debug.SetMemoryLimit(-1); limit < math.MaxInt64 {
		return int(limit / endpointMemory)
	}
	return 0
}
