// Package agent is the daemon: it wires the parts of the pipeline by hand, runs them, reloads
// their configuration and stops them. It also opens the stores of a stopped agent for the
// commands that work without one.
//
// The wiring is in agent.go, in the order in which a service passes through the parts. The
// package makes no decision about services.
package agent

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/netip"
	"os"
	"runtime/debug"
	"sync"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/ironvip/ironvip/api"
	"github.com/ironvip/ironvip/configs"
	"github.com/ironvip/ironvip/internal/event"
	"github.com/ironvip/ironvip/internal/fleet"
	"github.com/ironvip/ironvip/internal/healthport"
	"github.com/ironvip/ironvip/internal/hostnet"
	"github.com/ironvip/ironvip/internal/overrides"
	"github.com/ironvip/ironvip/internal/pipeline"
	"github.com/ironvip/ironvip/internal/pipeline/compile"
	"github.com/ironvip/ironvip/internal/reconcile"
	"github.com/ironvip/ironvip/internal/store"
	"github.com/ironvip/ironvip/internal/table"
	"github.com/ironvip/ironvip/ipam"
	"github.com/ironvip/ironvip/ipam/consulstore"
	"github.com/ironvip/ironvip/sources"
	"github.com/ironvip/ironvip/sources/cache"
	"github.com/ironvip/ironvip/sources/rest"
	"github.com/ironvip/ironvip/vip"
	"github.com/ironvip/ironvip/vip/spec"
)

const eventsKept = 1000

// gcPercent is Go's GOGC while the agent runs: half of the default. BENCHMARKS.md has what it
// costs and saves.
const gcPercent = 50

// Options say which agent to run.
type Options struct {
	Config   string // the configuration: a directory with ironvip.toml, or the file
	StateDir string // "": node.state_dir of the configuration
	Version  string // of this binary
	Demo     bool   // run on a configuration with demo backends; Config and StateDir are ignored
	Stdout   io.Writer
}

// Run runs an agent until ctx ends or a part of the agent fails for good. It returns nil after
// ctx ended.
func Run(ctx context.Context, o Options) error {
	if os.Getenv("GOGC") == "" {
		debug.SetGCPercent(gcPercent)
	}
	if !o.Demo {
		return runAgent(ctx, o, nil)
	}
	d, err := newDemo(ctx)
	if err != nil {
		return err
	}
	defer d.close()
	o.Config, o.StateDir = d.dir, ""
	return runAgent(ctx, o, func(a *agent) { d.greet(ctx, a, o.Stdout) })
}

// agent is one running daemon: every part of the pipeline, wired by hand. The
// fields are in the order in which a service passes through them.
type agent struct {
	path    string // of the configuration
	version string
	started time.Time
	log     *slog.Logger
	level   *slog.LevelVar
	systemd systemd
	events  *event.Log

	config    *liveConfig
	reloading sync.Mutex
	db        *store.DB
	stateLost bool // an earlier run's state file is gone
	stores    *stores
	began     chan struct{} // closed once what the stores keep has been taken in

	resolve     *pipeline.Resolve
	supervisor  *sources.Supervisor
	reloaders   map[string]sources.Reloader // the sources that read files, by name
	remembered  []*cache.Source
	beside      []part // what sources write back
	rest        *rest.Source
	overrides   *overrides.Overrides
	services    *table.Table[vip.ServiceKey, vip.Service]
	statuses    *table.Table[string, sources.Status]
	states      *table.Table[vip.BackendKey, vip.BackendState]
	watcher     *hostnet.Watcher
	host        *table.Table[struct{}, hostnet.Snapshot]
	allocator   *ipam.Allocator
	allocations *table.Table[vip.ServiceKey, vip.Allocation]
	frontends   *table.Table[vip.FrontendKey, vip.Frontend]
	compiled    *table.Table[vip.ServiceKey, pipeline.Compiled]
	applied     *table.Table[vip.FrontendKey, reconcile.AppliedFrontend]

	allocate   *pipeline.Allocate
	compile    *pipeline.Compile
	plane      *plane
	reconciler *reconcile.Reconciler[vip.FrontendKey, vip.Frontend]
	health     *healthport.Server
	lag        lag
}

// part is something that runs for as long as the agent, and what it is called
// in the error that it ends with.
type part struct {
	name string
	run  func(context.Context) error
}

// runAgent runs an agent until the context ends or a part of it fails for
// good. A demo has a greet, which is called once the agent is ready; and it
// leaves nothing in the kernel.
func runAgent(ctx context.Context, o Options, greet func(*agent)) error {
	cfg, problems := configs.LoadOrLastGood(o.Config, o.StateDir)
	if cfg == nil {
		return problemsError("the configuration can't be used", problems)
	}
	a, err := newAgent(o, cfg, problems)
	if err != nil {
		return err
	}
	err = a.run(ctx, greet)
	if errors.Is(err, context.Canceled) && ctx.Err() != nil {
		err = nil
		a.log.Info("stopped")
	}
	if greet != nil && a.plane.remove != nil {
		end, cancel := context.WithTimeout(context.WithoutCancel(ctx), 10*time.Second)
		defer cancel()
		if removeErr := a.plane.remove(end); removeErr != nil {
			err = errors.Join(err, fmt.Errorf("leave nothing behind: %w", removeErr))
		}
	}
	return errors.Join(err, a.plane.Close(), a.stores.close(), a.db.Close())
}

// newAgent makes every part; nothing runs yet but what keeps a fleet's store in step, no
// kernel is touched, and nothing is waited for.
func newAgent(o Options, cfg *configs.Config, problems []vip.Problem) (_ *agent, err error) {
	clock := table.NewClock(time.Now())
	a := &agent{
		path: o.Config, version: o.Version, started: time.Now(), began: make(chan struct{}),
		level:       &slog.LevelVar{},
		events:      event.NewLog(eventsKept, time.Now),
		reloaders:   map[string]sources.Reloader{},
		services:    table.New(clock, vip.KeyOfService, nil),
		statuses:    table.New(clock, sources.KeyOfStatus, sources.SameStatus),
		states:      table.New(clock, vip.KeyOfBackendState, func(a, b vip.BackendState) bool { return a == b }),
		host:        table.New(clock, hostnet.KeyOf, hostnet.Same),
		allocations: table.New(clock, vip.KeyOfAllocation, compile.SameAllocation),
		frontends:   table.New(clock, vip.KeyOfFrontend, compile.SameFrontend),
		compiled:    table.New(clock, pipeline.KeyOfCompiled, pipeline.SameCompiled),
		applied:     table.New(clock, reconcile.KeyOfApplied, nil),
	}
	a.log = newLogger(cfg, a.level)
	a.systemd = systemd{log: a.log}
	a.config = newLiveConfig(cfg, problems)
	for _, p := range problems {
		a.log.Error("configuration: "+p.Error(), "hint", p.Hint)
	}
	if cfg.Remembered {
		a.log.Error("running on the last good configuration", "config", cfg.Path)
	}

	if _, err := os.Stat(cfg.Path); errors.Is(err, os.ErrNotExist) && !cfg.Remembered {
		a.log.Warn("there is no configuration file: the defaults count, which have no pool", "file", cfg.Path)
	}

	if dir := cfg.UnreadServices(); dir != "" {
		a.log.Warn("services are not read: each source is written out, and none for them", "dir", dir, "hint", `add a [[source]] with type = "static" and path = "services.d"`)
	}

	if a.db, err = openState(cfg); err != nil {
		return nil, err
	}
	defer func() {
		if err != nil {
			a.db.Close()
		}
	}()
	if a.stateLost, err = isStateLost(cfg, a.db); err != nil {
		return nil, err
	}
	if err := checkStore(cfg, a.db); err != nil {
		return nil, err
	}
	if a.stores, err = openStores(cfg, a.db, storeOptions{version: o.Version, clock: clock, events: a.events, log: a.log}); err != nil {
		return nil, err
	}
	defer func() {
		if err != nil {
			_ = a.stores.close() // the error that there is says more
		}
	}()
	if a.stateLost {
		p := a.stateLostProblem()
		a.log.Error("state file: "+p.Error(), "hint", p.Hint)
		a.events.Add(event.Event{Kind: "state_lost", Object: p.Place, Message: p.Message})
	}
	if a.allocator, err = ipam.Prepare(a.stores.Leases, cfg.IPAMConfig(), a.allocatorOptions(clock)); err != nil {
		return nil, err
	}
	if a.rest, err = rest.New(a.restOptions(cfg)); err != nil {
		return nil, err
	}
	a.overrides = overrides.New(a.overrideOptions(cfg))
	if err := a.newSources(cfg, clock); err != nil {
		return nil, err
	}
	if a.plane, err = choosePlane(a.config, a.allocator, ownAddress(a.host), a.log); err != nil {
		return nil, err
	}
	a.watcher = hostnet.NewWatcher(a.host, func(link string, _ netip.Addr) bool { return link == cfg.Dataplane.Device }, a.log)
	a.newStages(cfg)
	if tree := a.stores.tree; tree != nil {
		tree.SetNode(a.node)
	}
	return a, nil
}

// allocatorOptions make the allocator one of a fleet where the store is shared.
func (a *agent) allocatorOptions(clock *table.Clock) ipam.Options {
	o := ipam.Options{Clock: clock, Events: a.events, Log: a.log, Unreadable: func(k vip.ServiceKey) bool { return a.rest.Unreadable(k) }}
	if tree := a.stores.tree; tree != nil {
		o.Node, o.Leadership = a.config.get().Node.Name, tree
		o.Away = func(node string) bool { return tree.AwayFor(node) >= goneAfter }
		o.OwnName = tree.OwnName
	}
	return o
}

// goneAfter is after how long without a node its leases may be swept.
const goneAfter = 24 * time.Hour

// newSources makes the first stages of the pipeline: the sources with their supervisor, and resolve.
func (a *agent) newSources(cfg *configs.Config, clock *table.Clock) error {
	a.resolve = pipeline.NewResolve(pipeline.ResolveOptions{
		Clock: clock, Leases: a.allocator, Shared: a.stores.tree != nil, Services: a.services, Events: a.events,
	})
	a.supervisor = sources.NewSupervisor(sources.Options{
		Resolver: a.resolve, Services: a.services, Statuses: a.statuses, PriorServices: a.priorServices, Events: a.events, Log: a.log,
	})
	for i := range cfg.Sources {
		if err := a.newSource(&cfg.Sources[i]); err != nil {
			return err
		}
	}
	if leases, ok := a.stores.Leases.(*consulstore.Store); ok {
		a.rest.Joint = consulstore.Registrar{Allocator: a.allocator, Store: leases}
	}
	a.supervisor.Add(rest.Type, rest.Type, a.rest)
	return nil
}

// restOptions are those of the source that the API writes into, but for what it
// needs of the allocator.
func (a *agent) restOptions(cfg *configs.Config) rest.Options {
	o := rest.Options{
		Store: a.stores.Services, Services: a.services,
		Check:  func(s *spec.Service) []vip.Problem { return spec.CheckAgainstPools(s, a.pools()) },
		Events: a.events, Log: a.log,
	}
	if tree := a.stores.tree; tree != nil {
		o.Fleet, o.Node = tree, cfg.Node.Name
	}
	return o
}

func (a *agent) overrideOptions(cfg *configs.Config) overrides.Options {
	o := overrides.Options{Store: a.stores.States, Table: a.states, Services: a.services, Fetch: a.rest.Fetch, Events: a.events, Log: a.log}
	if tree := a.stores.tree; tree != nil {
		o.Fleet, o.Node = tree, cfg.Node.Name
	}
	return o
}

func (a *agent) pools() []spec.Pool { return a.config.get().SpecPools() }

// newSource makes one source of the configuration.
func (a *agent) newSource(s *configs.Source) error {
	source, err := s.Config.NewSource(sources.Deps{
		Name: s.Name, Node: a.config.get().Node.Name, Version: a.version, DB: a.db, Pools: a.pools,
		SetPodCIDRs: func(ranges []netip.Prefix) { a.allocator.SetPodCIDRs(s.Name, ranges) },
		Services:    a.services, Allocations: a.allocations,
		Withdrawn: func(ctx context.Context, key vip.ServiceKey) error { return a.withdrawn(ctx, s.Name, key) },
		Cache: func(source sources.Source) sources.Source {
			cached := cache.New(s.Name, source, store.NewBucket[cache.Row](a.db, "remembered "+s.Name), a.services, a.log)
			a.remembered = append(a.remembered, cached)
			return cached
		},
		Background: func(what string, run func(context.Context) error) {
			a.beside = append(a.beside, part{"source " + s.Name + ": " + what, run})
		},
		Events: a.events, Log: a.log,
	})
	if err != nil {
		return fmt.Errorf("source %q: %w", s.Name, err)
	}
	if r, ok := source.(sources.Reloader); ok {
		a.reloaders[s.Name] = r
	}
	a.supervisor.Add(s.Name, s.Type, source)
	return nil
}

// priorServices returns how many services the last run of the agent had of a
// source, where that is known.
func (a *agent) priorServices(source string) int {
	for _, memory := range a.remembered {
		if memory.Name() == source {
			return memory.Prior()
		}
	}
	return 0
}

// newStages makes what joins the tables and brings them to the dataplane.
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

// run starts every part and waits for the end of all of them. What answers and
// tells runs at once; the pipeline begins with what the store has, however long
// that takes.
func (a *agent) run(ctx context.Context, greet func(*agent)) error {
	listeners, err := listen(a.config.get())
	if err != nil {
		return err
	}
	group, ctx := errgroup.WithContext(ctx)
	run := func(p part) {
		group.Go(func() error {
			err := p.run(ctx)
			if ctx.Err() != nil {
				return ctx.Err()
			}
			if _, refused := errors.AsType[*fleet.DuplicateNodeError](err); refused {
				return err
			}
			return fmt.Errorf("%s ended: %w", p.name, err)
		})
	}
	run(part{"the store", a.stores.run})
	group.Go(func() error {
		if err := a.begin(ctx); err != nil {
			return err
		}
		for _, p := range a.pipeline() {
			run(p)
		}
		return nil
	})
	group.Go(func() error {
		// Its routes take as long to make as thousands of services: nothing waits for them.
		server := api.New(a.apiDeps())
		run(part{"the API", server.Run})
		for _, l := range listeners {
			run(part{"the API at " + l.Addr().String(), func(ctx context.Context) error { return server.Serve(ctx, l) }})
		}
		return nil
	})
	group.Go(func() error { a.followSignals(ctx); return nil })
	group.Go(func() error {
		a.systemd.watch(ctx, func() time.Time { return a.reconciler.Stats().LastRound })
		return nil
	})
	group.Go(func() error { a.tellSystemd(ctx, greet); return nil })
	return group.Wait()
}

// pipeline are the parts that a service passes through, in that order, and what
// goes with them.
func (a *agent) pipeline() []part {
	var parts []part
	for _, memory := range a.remembered {
		parts = append(parts, part{"remembering services", memory.Keep})
	}
	parts = append(parts, part{"watching the host's addresses", a.watcher.Run}, part{"the sources", a.supervisor.Run}, part{"resolve", a.resolve.Run},
		part{"the overrides", a.overrides.Run})
	parts = append(parts, a.beside...)
	return append(parts,
		part{"the allocator", a.allocator.Run},
		part{"allocate", a.allocate.Run},
		part{"compile", a.compile.Run},
		part{"reconcile", a.reconciler.Run},
		part{"the health ports", a.health.Run},
	)
}

// tellSystemd says when the agent is ready, then how it fares, and that it
// stops.
func (a *agent) tellSystemd(ctx context.Context, greet func(*agent)) {
	defer a.systemd.stopping()
	select {
	case <-ctx.Done():
		return
	case <-a.reconciler.Synced():
	}
	a.log.Info("ready", "dataplane", a.plane.about.Mode, "why", a.plane.about.Reason, "services", a.services.Len(), "frontends", a.frontends.Len())
	a.systemd.ready(a.summary())
	if greet != nil {
		greet(a)
	}
	tick := time.NewTicker(10 * time.Second)
	defer tick.Stop()
	for last := ""; ; {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
		if s := a.summary(); s != last {
			a.systemd.status(s)
			last = s
		}
	}
}

// summary is the line that `systemctl status` shows.
func (a *agent) summary() string {
	s := a.reconciler.Stats()
	line := fmt.Sprintf("%s: %d services, %d frontends", a.plane.about.Mode, a.services.Len(), s.Wanted)
	if s.Failing > 0 {
		line += fmt.Sprintf(", %d failing", s.Failing)
	}
	if s.TargetError != "" {
		line += ", the dataplane is out of reach: " + s.TargetError
	}
	return line
}
