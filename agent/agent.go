// Package agent is the daemon: it wires the parts of the pipeline by hand, runs them, reloads their
// configuration and stops them. It makes no decision about services.
//
// Parts that need more wiring than a call of New have a package below, which never imports this one:
//
//	stores      the state file, and the store that hosts share
//	planes      the dataplane that serves, switches, and the ends of others
//	probing     health checks
//	announcing  announcing of VIPs
//	naming      DNS
//	lostnodes   nodes that are silent
//	deviceuse   other agents with the same device
//	demo        the configuration of --demo
//	offline     the commands that work without a running agent
//
// Source code organization: agent.go creates all parts, with pipeline.go (the stages) and sources.go.
// run.go runs them, and reports to the service manager with systemd.go. config.go has the configuration in
// effect; reload.go applies a changed one, and plan.go compares one. access.go decides who may use the
// API, apideps.go gives the API the parts, and nodes.go, status.go, health.go and tables.go answer it.
// check.go reports what keeps an agent from starting.
package agent

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/netip"
	"os"
	"os/signal"
	"runtime/debug"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/ironvip/ironvip/agent/announcing"
	"github.com/ironvip/ironvip/agent/demo"
	"github.com/ironvip/ironvip/agent/deviceuse"
	"github.com/ironvip/ironvip/agent/lostnodes"
	"github.com/ironvip/ironvip/agent/naming"
	"github.com/ironvip/ironvip/agent/planes"
	"github.com/ironvip/ironvip/agent/probing"
	"github.com/ironvip/ironvip/agent/stores"
	"github.com/ironvip/ironvip/api/tokens"
	"github.com/ironvip/ironvip/configs"
	"github.com/ironvip/ironvip/health/healthport"
	"github.com/ironvip/ironvip/hook"
	"github.com/ironvip/ironvip/internal/event"
	"github.com/ironvip/ironvip/internal/firewall"
	"github.com/ironvip/ironvip/internal/hostnet"
	"github.com/ironvip/ironvip/internal/logwriter"
	"github.com/ironvip/ironvip/internal/memlimit"
	"github.com/ironvip/ironvip/internal/metric"
	"github.com/ironvip/ironvip/internal/openfiles"
	"github.com/ironvip/ironvip/internal/sockets"
	"github.com/ironvip/ironvip/internal/store"
	"github.com/ironvip/ironvip/internal/table"
	"github.com/ironvip/ironvip/ipam/allocator"
	"github.com/ironvip/ironvip/pipeline"
	"github.com/ironvip/ironvip/pipeline/overrides"
	"github.com/ironvip/ironvip/sources"
	"github.com/ironvip/ironvip/sources/cache"
	"github.com/ironvip/ironvip/sources/rest"
	"github.com/ironvip/ironvip/vip"
)

const eventsKept = 1000

// gcPercent is Go's GOGC while the agent runs: half of the default. Filling 100,000 services
// then peaks at 0.8 of the memory, with 1.14 of the processor time.
const gcPercent = 50

// startGCPercent is GOGC until the dataplane has every service, with a reserve: memory that the garbage collector counts as live.
// Nothing touches it, so the kernel provides no page for it. Collections at gcPercent would take a third of a start's
// processor time while the heap is small, and a fifth with a million backends. So the heap of a start is bounded by twice the
// live memory and 128 MB.
const startGCPercent, startReserveSize = 100, 64 << 20

// startReserve is nil once the start is over.
var startReserve atomic.Pointer[[]byte]

// endStart makes the garbage collector work as usual.
func endStart() {
	if startReserve.Swap(nil) != nil {
		debug.SetGCPercent(gcPercent)
	}
}

// startTime is when the rest of a start is done beside the dataplane: the services are in the cache, and known to the API.
const startTime = 10 * time.Second

// Options specify which agent to run.
type Options struct {
	Config   string // the configuration: a directory with ironvip.toml, or the file
	StateDir string // "": node.state_dir of the configuration
	// ProxySocket is dataplane.proxy_socket, if the configuration has none.
	ProxySocket string
	Version     string // of this binary
	Demo        bool   // run on a configuration with demo backends; Config and StateDir are ignored
	Stdout      io.Writer
}

// Run runs an agent until ctx ends or a part of the agent fails permanently. It returns nil after
// ctx ended.
func Run(ctx context.Context, o Options) error {
	defer func() { stderr().Flush(logwriter.MostFlush) }() // before others write to stderr
	if os.Getenv("GOGC") == "" {
		debug.SetGCPercent(startGCPercent)
		startReserve.Store(new(make([]byte, startReserveSize)))
	}
	memlimit.Apply()
	if err := checkFiles(openfiles.Limit()); err != nil {
		return err
	}
	if !o.Demo {
		set, problems := sockets.FromEnvironment()
		return runAgent(ctx, o, set, problems, nil)
	}
	d, err := demo.New(ctx)
	if err != nil {
		return err
	}
	defer d.Close()
	o.Config, o.StateDir = d.Dir, ""
	return runAgent(ctx, o, &sockets.Set{}, nil, func(a *agent) {
		d.Greet(demo.Running{Version: a.version, Dataplane: a.planes.Mode(), Reason: a.planes.Reason(), Config: a.config.get(), Frontends: a.tables.Frontends.All()}, o.Stdout)
	})
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
	sockets *sockets.Set
	reloads chan os.Signal // requests for a reload
	settled chan struct{}  // closed when this agent serves all clients

	config    *liveConfig
	reloading sync.Mutex
	access    *accessControl
	stores    *stores.Stores
	began     chan struct{} // closed once the contents of the stores are restored

	tables     pipeline.Tables
	supervisor *sources.Supervisor
	clock      *table.Clock // of all tables
	statuses   *table.Table[string, sources.Status]
	refusals   *table.Table[sources.RefusedKey, sources.Refused]
	reloaders  map[string]sources.Reloader // the sources that read files, by name
	caches     []*cache.Source
	background []part // parts of sources that write back
	rest       *rest.Source
	overrides  *overrides.Overrides
	watcher    *hostnet.Watcher
	allocator  *allocator.Allocator
	planes     *planes.Planes
	device     *deviceuse.Use
	metrics    []metric.Collector
	pipeline   *pipeline.Pipeline
	probing    *probing.Probing // nil on a real server
	health     *healthport.Server
	announcing *announcing.Announcing
	naming     *naming.Naming
	lost       *lostnodes.Follower
	hooks      *hook.Hooks
	firewall   firewall.Watch
	troubled   func() int // the number of services with problems
	serving    func() map[serving]int
	lag        lag
}

// runAgent runs an agent until the context ends, or a part of it fails permanently. Set are the inherited sockets, with the
// problems of others. Greet is called once the agent is ready. Only a demo has it, and a demo leaves nothing in the kernel.
func runAgent(ctx context.Context, o Options, set *sockets.Set, inherited []error, greet func(*agent)) error {
	// For the whole life of the process, so that the signal never ends it: one during the start waits for the agent.
	reloads := make(chan os.Signal, 1)
	signal.Notify(reloads, syscall.SIGHUP)
	defer set.Close()
	cfg, problems := configs.LoadOrLastGood(o.Config, o.StateDir)
	if cfg == nil {
		return configs.Refusal("configuration refused", problems)
	}
	cfg.Dataplane.ProxySocket = cmp.Or(cfg.Dataplane.ProxySocket, o.ProxySocket)
	log := newLogger(cfg, &slog.LevelVar{})
	for _, err := range inherited {
		log.Warn("inherited socket not used", "err", err)
	}
	a, err := newAgent(o, cfg, problems, set)
	if err != nil {
		return err
	}
	a.reloads = reloads
	err = a.run(ctx, greet)
	if errors.Is(err, context.Canceled) && ctx.Err() != nil {
		err = nil
		a.planes.Drain(context.WithoutCancel(ctx))
		a.log.Info("stopped")
	}
	if greet != nil {
		end, cancel := context.WithTimeout(context.WithoutCancel(ctx), 10*time.Second)
		defer cancel()
		if removeErr := a.planes.Remove(end); removeErr != nil {
			err = errors.Join(err, fmt.Errorf("leave nothing behind: %w", removeErr))
		}
	}
	return errors.Join(err, a.close())
}

// close closes what newAgent has opened.
func (a *agent) close() error {
	var errs []error
	if a.planes != nil {
		errs = append(errs, a.planes.Close())
	}
	if a.stores != nil {
		errs = append(errs, a.stores.Close())
	}
	return errors.Join(errs...)
}

// newAgent creates every part. Only the watch of a fleet's store runs already. It does not wait,
// and does not change the kernel.
func newAgent(o Options, cfg *configs.Config, problems []vip.Problem, set *sockets.Set) (_ *agent, err error) {
	clock := table.NewClock(time.Now())
	a := &agent{
		path: o.Config, version: o.Version, started: time.Now(), began: make(chan struct{}), settled: make(chan struct{}),
		level:     &slog.LevelVar{},
		sockets:   set,
		events:    event.NewLog(eventsKept, time.Now),
		tables:    pipeline.NewTables(clock),
		clock:     clock,
		statuses:  table.New(clock, sources.KeyOfStatus, sources.SameStatus),
		refusals:  table.New(clock, sources.KeyOfRefused, sources.SameRefused),
		reloaders: map[string]sources.Reloader{},
	}
	defer func() {
		if err != nil {
			_ = a.close() // the first error is more informative
		}
	}()
	a.troubled = a.tables.Compiled.Sum(func(c *pipeline.Compiled) int { return min(len(c.Problems), 1) })
	a.serving = countServing(a.tables.Services)
	a.log = newLogger(cfg, a.level)
	slog.SetDefault(a.log) // for what has no log of its own, such as parallel.Recovered
	a.systemd = systemd{log: a.log}
	a.config = newLiveConfig(cfg, problems)
	for _, p := range problems {
		a.logProblem("configuration", p)
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

	if a.stores, err = stores.Start(cfg, stores.Options{Version: o.Version, Clock: clock, Events: a.events, Log: a.log}); err != nil {
		return nil, err
	}
	a.hooks = hook.New(hook.Options{Node: cfg.Node.Name, Store: store.NewBucket[hook.Row](a.stores.DB, "hooks"), Events: a.events, Clock: clock, Log: a.log}, cfg.Hooks)
	a.metrics = append(a.metrics, a.hooks.Collect)
	a.access = newAccessControl(tokens.New(a.stores.Tokens, time.Now), a.log)
	if a.stores.Lost {
		p := a.stores.LostProblem()
		a.logProblem("state file", p)
		a.events.Add(event.Event{Kind: "state_lost", Object: p.Place, Message: p.Message})
	}
	if a.allocator, err = allocator.Prepare(a.stores.Leases, cfg.IPAMConfig(), a.allocatorOptions(clock)); err != nil {
		return nil, err
	}
	if a.rest, err = rest.New(a.restOptions(cfg)); err != nil {
		return nil, err
	}
	a.newOverrides(cfg)
	a.watcher = hostnet.NewWatcher(a.tables.Host, func(link string, _ netip.Addr) bool { return link == cfg.Dataplane.Device }, a.log)
	if a.planes, err = planes.New(planes.Options{
		Config: a.config.get, Started: cfg, DB: a.stores.DB, Tables: a.tables, Owns: a.allocator.Owns, Watcher: a.watcher, Sockets: set, ForgetBPF: a.systemd.forgetBPF,
		Settled: a.settled, Version: o.Version, Demo: o.Demo, Events: a.events, Log: a.log,
	}); err != nil {
		return nil, err
	}
	a.metrics = append(a.metrics, a.planes.Collect)
	a.device = deviceuse.New(cfg.Dataplane.Device, a.events, a.log)
	a.newPipeline(cfg)
	a.newAnnouncing()
	if err := a.newNaming(); err != nil {
		return nil, err
	}
	if err := a.newSources(cfg); err != nil {
		return nil, err
	}
	if tree := a.stores.Tree; tree != nil {
		tree.SetNode(a.node)
	}
	return a, nil
}

// allocatorOptions adds what the allocator of a fleet needs, if the store is shared.
func (a *agent) allocatorOptions(clock *table.Clock) allocator.Options {
	o := allocator.Options{Clock: clock, Events: a.events, Log: a.log, Unreadable: func(k vip.ServiceKey) bool { return a.rest.Unreadable(k) }}
	if tree := a.stores.Tree; tree != nil {
		o.Node, o.Leadership = a.config.get().Node.Name, tree
		o.Away = func(node string) bool { return tree.AwayFor(node) >= goneAfter }
		o.OwnName = tree.OwnName
	}
	return o
}

// goneAfter is the time after which the leases of an absent node may be swept.
const goneAfter = 24 * time.Hour
