// Package agent is the daemon: it wires the parts of the pipeline by hand, runs them, reloads their
// configuration and stops them. It also opens the stores of a stopped agent for the commands that
// work without a running agent. It makes no decision about services.
//
// Source code organization: agent.go creates all parts with stores.go (the stores), plane.go (the
// dataplane), pipeline.go (the stages) and sources.go (the sources). tables.go lists the tables for
// `ironvip debug table`. run.go runs the parts. reload.go applies a changed configuration.
// mode.go chooses the dataplane, former.go ends the one before, and connections.go counts those of both; switch.go moves a
// host to another one. apideps.go, plan.go, nodes.go and health.go answer the API. clean.go and snapshot.go work without a
// running agent.
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
	"runtime/debug"
	"sync"
	"sync/atomic"
	"time"

	"github.com/ironvip/ironvip/agent/announcing"
	"github.com/ironvip/ironvip/agent/deviceuse"
	"github.com/ironvip/ironvip/agent/lostnodes"
	"github.com/ironvip/ironvip/agent/naming"
	"github.com/ironvip/ironvip/api/tokens"
	"github.com/ironvip/ironvip/configs"
	"github.com/ironvip/ironvip/health"
	"github.com/ironvip/ironvip/health/healthport"
	"github.com/ironvip/ironvip/health/probe"
	"github.com/ironvip/ironvip/health/share"
	"github.com/ironvip/ironvip/internal/event"
	"github.com/ironvip/ironvip/internal/hostnet"
	"github.com/ironvip/ironvip/internal/logwriter"
	"github.com/ironvip/ironvip/internal/memlimit"
	"github.com/ironvip/ironvip/internal/openfiles"
	"github.com/ironvip/ironvip/internal/sockets"
	"github.com/ironvip/ironvip/internal/store"
	"github.com/ironvip/ironvip/internal/table"
	"github.com/ironvip/ironvip/ipam"
	"github.com/ironvip/ironvip/pipeline"
	"github.com/ironvip/ironvip/pipeline/overrides"
	"github.com/ironvip/ironvip/plane/reconcile"
	"github.com/ironvip/ironvip/proxy/process"
	"github.com/ironvip/ironvip/sources"
	"github.com/ironvip/ironvip/sources/cache"
	"github.com/ironvip/ironvip/sources/rest"
	"github.com/ironvip/ironvip/vip"
)

const eventsKept = 1000

// stopGrace is the time for the connections of a proxy in this process when the agent stops. New clients are refused
// meanwhile, so it is short.
const stopGrace = 500 * time.Millisecond

// gcPercent is Go's GOGC while the agent runs: half of the default. BENCHMARKS.md gives its cost
// and savings.
const gcPercent = 50

// startReserve is memory that the garbage collector counts as live until the dataplane has every
// service. Nothing touches it, so the kernel provides no page for it. A start of thousands of
// services creates garbage while the heap is small: collections at gcPercent of that would take a
// third of the start's processor time.
var startReserve atomic.Pointer[[]byte]

// startReserveSize allows about 100 MB of garbage, less than such a start needs at its peak anyway.
const startReserveSize = 128 << 20

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
		debug.SetGCPercent(gcPercent)
		startReserve.Store(new(make([]byte, startReserveSize)))
	}
	memlimit.Apply()
	if err := checkFiles(openfiles.Limit()); err != nil {
		return err
	}
	if !o.Demo {
		set, problems := sockets.FromEnvironment()
		return runAgents(ctx, o, inheritance{sockets: set, problems: problems}, nil)
	}
	d, err := newDemo(ctx)
	if err != nil {
		return err
	}
	defer d.close()
	o.Config, o.StateDir = d.dir, ""
	return runAgents(ctx, o, inheritance{sockets: &sockets.Set{}}, func(a *agent) { d.greet(ctx, a, o.Stdout) })
}

// inheritance is what an agent begins with.
type inheritance struct {
	sockets  *sockets.Set
	problems []error        // of inherited descriptors
	reloads  chan os.Signal // requests for a reload
	proxy    *ownProxy
	moved    *move // by the wish of an operator; nil: the dataplane is as configured
}

// ownProxy is the proxy that runs in this process, beyond the end of an agent.
type ownProxy struct{ *process.Server } // nil before it is needed

// runAgents runs an agent, and another one in this process when the dataplane is switched. If that one can't run, it runs
// one with the dataplane before.
func runAgents(ctx context.Context, o Options, begin inheritance, greet func(*agent)) error {
	begin.reloads, begin.proxy = catchReloads(), &ownProxy{}
	defer func() {
		if begin.proxy.Server != nil {
			_ = begin.proxy.Close()
		}
	}()
	for {
		var spare *sockets.Set // for the way back
		if begin.moved != nil {
			if copied, err := begin.sockets.Copy(); err == nil {
				spare = copied
			}
		}
		next, err := runAgent(ctx, o, begin, greet)
		if spare == nil {
			spare = &sockets.Set{}
		}
		if next != nil {
			spare.Close()
			begin = *next
			continue
		}
		if m := begin.moved; err == nil || m == nil || m.back || m.done.Load() || ctx.Err() != nil {
			spare.Close()
			return err
		}
		slog.Error("the dataplane is not switched; the one before goes on", "dataplane", begin.moved.to, "err", err)
		begin.sockets, begin.problems = spare, nil
		begin.moved = begin.moved.failed(err)
	}
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
	inheritance
	settled chan struct{} // closed when this agent serves all clients

	config    *liveConfig
	reloading sync.Mutex
	access    *accessControl
	db        *store.DB
	stateLost bool // an earlier run's state file is gone
	stores    *stores
	began     chan struct{} // closed once the contents of the stores are restored

	tables      pipeline.Tables
	supervisor  *sources.Supervisor
	clock       *table.Clock // of all tables
	statuses    *table.Table[string, sources.Status]
	refusals    *table.Table[sources.RefusedKey, sources.Refused]
	reloaders   map[string]sources.Reloader // the sources that read files, by name
	caches      []*cache.Source
	background  []part // parts of sources that write back
	rest        *rest.Source
	overrides   *overrides.Overrides
	watcher     *hostnet.Watcher
	allocator   *ipam.Allocator
	plane       *plane
	device      *deviceuse.Use
	connections *connections
	former      atomic.Pointer[former] // the dataplane that this one replaces; nil: none
	wish        atomic.Pointer[string] // the dataplane to switch to; nil: none
	wished      chan string            // the same; has room for one
	pipeline    *pipeline.Pipeline
	probes      *health.Stage // nil on a real server
	prober      *probe.Engine
	paths       *reconcile.Reconciler[vip.ProbePath, vip.ProbePath] // of the probes; nil: the dataplane has none
	share       *share.Share                                        // nil without a fleet
	probed      *table.Table[probe.Target, probe.Result]            // what the prober finds; nil: no prober
	health      *healthport.Server
	announcing  *announcing.Announcing
	naming      *naming.Naming
	lost        *lostnodes.Follower
	firewall    firewallWatch
	troubled    func() int // the number of services with problems
	lag         lag
}

// runAgent runs an agent until the context ends, a part of it fails permanently, or the dataplane is switched: then, it
// returns what the next agent begins with. Greet is
// called once the agent is ready. Only a demo has it, and a demo leaves nothing in the kernel.
func runAgent(ctx context.Context, o Options, begin inheritance, greet func(*agent)) (next *inheritance, err error) {
	defer begin.sockets.Close()
	cfg, problems := configs.LoadOrLastGood(o.Config, o.StateDir)
	if cfg == nil {
		return nil, problemsError("configuration refused", problems)
	}
	cfg.Dataplane.ProxySocket = cmp.Or(cfg.Dataplane.ProxySocket, o.ProxySocket)
	log := newLogger(cfg, &slog.LevelVar{})
	for _, err := range begin.problems {
		log.Warn("inherited socket not used", "err", err)
	}
	a, err := newAgent(o, cfg, problems, begin)
	if err != nil {
		return nil, err
	}
	err = a.run(ctx, greet)
	if m, ok := errors.AsType[*move](err); ok {
		return &inheritance{sockets: m.sockets, reloads: a.reloads, proxy: a.proxy, moved: m}, a.close()
	}
	if errors.Is(err, context.Canceled) && ctx.Err() != nil {
		err = nil
		a.drain(context.WithoutCancel(ctx))
		a.log.Info("stopped")
	}
	if greet != nil && a.plane.remove != nil {
		end, cancel := context.WithTimeout(context.WithoutCancel(ctx), 10*time.Second)
		defer cancel()
		if removeErr := a.plane.remove(end); removeErr != nil {
			err = errors.Join(err, fmt.Errorf("leave nothing behind: %w", removeErr))
		}
	}
	return nil, errors.Join(err, a.close())
}

// close closes what newAgent has opened.
func (a *agent) close() error {
	var err error
	if a.plane != nil {
		err = a.plane.Close()
	}
	return errors.Join(err, a.closeStores())
}

// closeStores leaves the fleet and closes the state file.
func (a *agent) closeStores() error {
	var errs []error
	if a.stores != nil {
		errs = append(errs, a.stores.close())
	}
	if a.db != nil {
		errs = append(errs, a.db.Close())
	}
	return errors.Join(errs...)
}

// newAgent creates every part. Only the watch of a fleet's store runs already. It does not wait,
// and does not change the kernel.
func newAgent(o Options, cfg *configs.Config, problems []vip.Problem, begin inheritance) (_ *agent, err error) {
	clock := table.NewClock(time.Now())
	a := &agent{
		path: o.Config, version: o.Version, started: time.Now(), began: make(chan struct{}), settled: make(chan struct{}), wished: make(chan string, 1),
		level:       &slog.LevelVar{},
		inheritance: begin,
		events:      event.NewLog(eventsKept, time.Now),
		tables:      pipeline.NewTables(clock),
		clock:       clock,
		statuses:    table.New(clock, sources.KeyOfStatus, sources.SameStatus),
		refusals:    table.New(clock, sources.KeyOfRefused, sources.SameRefused),
		reloaders:   map[string]sources.Reloader{},
	}
	defer func() {
		if err != nil {
			_ = a.close() // the first error is more informative
		}
	}()
	a.troubled = a.tables.Compiled.Sum(func(c *pipeline.Compiled) int { return min(len(c.Problems), 1) })
	a.log = newLogger(cfg, a.level)
	slog.SetDefault(a.log) // for what has no log of its own, such as parallel.Recovered
	a.systemd = systemd{log: a.log}
	if a.moved != nil && a.moved.back {
		a.events.Add(a.moved.event())
	}
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

	if a.db, err = openState(cfg); err != nil {
		return nil, err
	}
	if a.stateLost, err = isStateLost(cfg, a.db); err != nil {
		return nil, err
	}
	if err := checkStore(cfg, a.db); err != nil {
		return nil, err
	}
	if a.stores, err = openStores(cfg, a.db, storeOptions{version: o.Version, clock: clock, events: a.events, log: a.log}); err != nil {
		return nil, err
	}
	a.access = newAccessControl(tokens.New(a.stores.tokens, time.Now), a.log)
	if a.stateLost {
		p := a.stateLostProblem()
		a.logProblem("state file", p)
		a.events.Add(event.Event{Kind: "state_lost", Object: p.Place, Message: p.Message})
	}
	if a.allocator, err = ipam.Prepare(a.stores.Leases, cfg.IPAMConfig(), a.allocatorOptions(clock)); err != nil {
		return nil, err
	}
	if a.rest, err = rest.New(a.restOptions(cfg)); err != nil {
		return nil, err
	}
	a.newOverrides(cfg)
	last, _, err := planeNote(a.db).Get(lastPlaneKey)
	if err != nil {
		return nil, err
	}
	a.watcher = hostnet.NewWatcher(a.tables.Host, func(link string, _ netip.Addr) bool { return link == cfg.Dataplane.Device }, a.log)
	if a.plane, err = a.choosePlane(last.Mode); err != nil {
		return nil, err
	}
	a.device = deviceuse.New(cfg.Dataplane.Device, a.events, a.log)
	a.connections = newConnections(a.plane)
	a.newPipeline(cfg)
	a.newAnnouncing()
	if err := a.newNaming(); err != nil {
		return nil, err
	}
	if err := a.newSources(cfg); err != nil {
		return nil, err
	}
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
