// Package agent is the daemon: it wires the parts of the pipeline by hand, runs them, reloads their
// configuration and stops them. It also opens the stores of a stopped agent for the commands that
// work without a running agent. It makes no decision about services.
//
// Source code organization: agent.go creates all parts with sources.go (sources), stages.go (the
// stages behind them), plane.go (the dataplane) and stores.go (the stores). agent.go also creates
// most tables. tables.go lists the tables for `ironvip debug table`. run.go runs the parts.
// reload.go applies a changed configuration. apideps.go, plan.go, nodes.go and health.go answer the
// API. clean.go and snapshot.go work without a running agent.
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

	"github.com/ironvip/ironvip/configs"
	"github.com/ironvip/ironvip/internal/event"
	"github.com/ironvip/ironvip/internal/healthport"
	"github.com/ironvip/ironvip/internal/hostnet"
	"github.com/ironvip/ironvip/internal/overrides"
	"github.com/ironvip/ironvip/internal/pipeline"
	"github.com/ironvip/ironvip/internal/pipeline/compile"
	"github.com/ironvip/ironvip/internal/reconcile"
	"github.com/ironvip/ironvip/internal/store"
	"github.com/ironvip/ironvip/internal/table"
	"github.com/ironvip/ironvip/ipam"
	"github.com/ironvip/ironvip/sources"
	"github.com/ironvip/ironvip/sources/cache"
	"github.com/ironvip/ironvip/sources/rest"
	"github.com/ironvip/ironvip/vip"
)

const eventsKept = 1000

// gcPercent is Go's GOGC while the agent runs: half of the default. BENCHMARKS.md gives its cost
// and savings.
const gcPercent = 50

// Options specify which agent to run.
type Options struct {
	Config   string // the configuration: a directory with ironvip.toml, or the file
	StateDir string // "": node.state_dir of the configuration
	Version  string // of this binary
	Demo     bool   // run on a configuration with demo backends; Config and StateDir are ignored
	Stdout   io.Writer
}

// Run runs an agent until ctx ends or a part of the agent fails permanently. It returns nil after
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

// agent is one running daemon. The fields are in the order in which a service passes through
// them.
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
	began     chan struct{} // closed once the contents of the stores are restored

	resolve     *pipeline.Resolve
	supervisor  *sources.Supervisor
	reloaders   map[string]sources.Reloader // the sources that read files, by name
	caches      []*cache.Source
	background  []part // parts of sources that write back
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

// runAgent runs an agent until the context ends or a part of it fails permanently. Greet is called
// once the agent is ready. Only a demo has it, and a demo leaves nothing in the kernel.
func runAgent(ctx context.Context, o Options, greet func(*agent)) error {
	cfg, problems := configs.LoadOrLastGood(o.Config, o.StateDir)
	if cfg == nil {
		return problemsError("configuration refused", problems)
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

// newAgent creates every part. Only the watch of a fleet's store runs already. It does not wait,
// and does not change the kernel.
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
	if cfg.IsLastGood {
		a.log.Error("running on the last good configuration", "config", cfg.Path)
	}

	if _, err := os.Stat(cfg.Path); errors.Is(err, os.ErrNotExist) && !cfg.IsLastGood {
		a.log.Warn("config file not found; using defaults (no pools)", "file", cfg.Path)
	}

	if dir := cfg.UnreadServices(); dir != "" {
		a.log.Warn("services.d ignored: no static source configured", "dir", dir, "hint", `add a [[source]] with type = "static" and path = "services.d"`)
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
			_ = a.stores.close() // the first error is more informative
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

// allocatorOptions adds what the allocator of a fleet needs, if the store is shared.
func (a *agent) allocatorOptions(clock *table.Clock) ipam.Options {
	o := ipam.Options{Clock: clock, Events: a.events, Log: a.log, Unreadable: func(k vip.ServiceKey) bool { return a.rest.Unreadable(k) }}
	if tree := a.stores.tree; tree != nil {
		o.Node, o.Leadership = a.config.get().Node.Name, tree
		o.Away = func(node string) bool { return tree.AwayFor(node) >= goneAfter }
		o.OwnName = tree.OwnName
	}
	return o
}

// goneAfter is the time after which the leases of an absent node may be swept.
const goneAfter = 24 * time.Hour
