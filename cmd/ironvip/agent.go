package main

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/netip"
	"os"
	"os/signal"
	"path/filepath"
	"sync"
	"syscall"
	"time"

	"github.com/spf13/cobra"
	"golang.org/x/sync/errgroup"

	"github.com/ironvip/ironvip/api"
	"github.com/ironvip/ironvip/cmd/ironvip/cli"
	"github.com/ironvip/ironvip/configs"
	"github.com/ironvip/ironvip/hostnet"
	"github.com/ironvip/ironvip/ipam"
	"github.com/ironvip/ironvip/ipam/boltstore"
	"github.com/ironvip/ironvip/sources"
	"github.com/ironvip/ironvip/sources/rest"
	"github.com/ironvip/ironvip/sources/static"
	"github.com/ironvip/ironvip/state"
	"github.com/ironvip/ironvip/vip"
	"github.com/ironvip/ironvip/vip/compile"
	"github.com/ironvip/ironvip/vip/control"
	"github.com/ironvip/ironvip/vip/event"
	"github.com/ironvip/ironvip/vip/reconcile"
	"github.com/ironvip/ironvip/vip/spec"
	"github.com/ironvip/ironvip/vip/table"
)

const eventsKept = 1000

// agentCommand is `ironvip agent`.
func agentCommand() *cobra.Command {
	var path, stateDir string
	var isDemo bool
	cmd := &cobra.Command{
		Use:   "agent",
		Short: "run the daemon",
		Long: `Run the daemon in the foreground: learn services from the configured sources, give each its
VIP, and program this host's dataplane. SIGHUP reloads the configuration; SIGTERM ends the
daemon and leaves a kernel dataplane forwarding.`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			ctx, stop := signal.NotifyContext(cmd.Context(), syscall.SIGINT, syscall.SIGTERM)
			defer stop()
			if !isDemo {
				return runAgent(ctx, path, stateDir, nil)
			}
			d, err := newDemo(ctx)
			if err != nil {
				return err
			}
			defer d.close()
			return runAgent(ctx, d.dir, "", func(a *agent) { d.greet(ctx, a, cmd.OutOrStdout()) })
		},
	}
	flags := cmd.Flags()
	flags.StringVar(&path, "config", cli.DefaultConfig, "configuration: a directory with ironvip.toml, or such a file")
	flags.StringVar(&stateDir, "state-dir", "", "where leases and registrations are kept (default: node.state_dir of the configuration)")
	flags.BoolVar(&isDemo, "demo", false, "run with demo backends and two services in 127.0.0.0/8; needs no root and leaves nothing behind")
	cmd.MarkFlagsMutuallyExclusive("demo", "config")
	return cmd
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
	db        *state.DB

	supervisor  *sources.Supervisor
	static      map[string]*static.Source // by name
	rest        *rest.Source
	services    *table.Table[vip.ServiceKey, vip.Service]
	statuses    *table.Table[string, sources.Status]
	states      *table.Table[vip.BackendKey, vip.State]
	watcher     *hostnet.Watcher
	host        *table.Table[struct{}, hostnet.Snapshot]
	allocator   *ipam.Allocator
	allocations *table.Table[vip.ServiceKey, vip.Allocation]
	frontends   *table.Table[vip.FrontendKey, vip.Frontend]
	compiled    *table.Table[vip.ServiceKey, control.Compiled]
	applied     *table.Table[vip.FrontendKey, reconcile.Applied]

	allocate   *control.Allocate
	compile    *control.Compile
	plane      *plane
	reconciler *reconcile.Reconciler[vip.FrontendKey, vip.Frontend]
	api        *api.Server
}

// runAgent runs an agent until the context ends or a part of it fails for
// good. A demo has a greet, which is called once the agent is ready; and it
// leaves nothing in the kernel.
func runAgent(ctx context.Context, path, stateDir string, greet func(*agent)) error {
	cfg, problems := configs.LoadOrLastGood(path, stateDir)
	if cfg == nil {
		return problemsError("the configuration can't be used", problems)
	}
	a, err := newAgent(ctx, path, cfg, problems)
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
	return errors.Join(err, a.plane.Close(), a.db.Close())
}

// newAgent makes every part; nothing runs yet, and no kernel is touched.
func newAgent(ctx context.Context, path string, cfg *configs.Config, problems []vip.Problem) (_ *agent, err error) {
	clock := table.NewClock(time.Now())
	a := &agent{
		path: path, version: version, started: time.Now(),
		level:       &slog.LevelVar{},
		events:      event.NewLog(eventsKept, time.Now),
		static:      map[string]*static.Source{},
		services:    table.New[vip.ServiceKey](clock, compile.SameService),
		statuses:    table.New[string](clock, sources.SameStatus),
		states:      table.New[vip.BackendKey](clock, func(a, b vip.State) bool { return a == b }),
		host:        table.New[struct{}](clock, hostnet.Same),
		allocations: table.New[vip.ServiceKey](clock, compile.SameAllocation),
		frontends:   table.New[vip.FrontendKey](clock, compile.SameFrontend),
		compiled:    table.New[vip.ServiceKey](clock, control.SameCompiled),
		applied:     table.New[vip.FrontendKey, reconcile.Applied](clock, nil),
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

	if err := os.MkdirAll(cfg.Node.StateDir, 0o750); err != nil {
		return nil, fmt.Errorf("make the state directory: %w\nhint: set node.state_dir to a directory that this process may write", err)
	}
	if a.db, err = state.Open(filepath.Join(cfg.Node.StateDir, "ironvip.db")); err != nil {
		return nil, err
	}
	defer func() {
		if err != nil {
			a.db.Close()
		}
	}()
	store, err := boltstore.New(a.db)
	if err != nil {
		return nil, err
	}
	a.allocator, err = ipam.New(ctx, store, cfg.IPAMConfig(), ipam.Options{Clock: clock, Events: a.events, Log: a.log})
	if err != nil {
		return nil, err
	}
	if err := a.newSources(cfg); err != nil {
		return nil, err
	}
	if a.plane, err = choosePlane(a.config, a.allocator, a.log); err != nil {
		return nil, err
	}
	a.watcher = hostnet.NewWatcher(a.host, func(link string, _ netip.Addr) bool { return link == cfg.Dataplane.Device }, a.log)
	a.newStages(cfg)
	a.api = api.New(a.apiDeps())
	return a, nil
}

// newSources makes the sources and their supervisor: the first step of the
// pipeline.
func (a *agent) newSources(cfg *configs.Config) error {
	a.supervisor = sources.NewSupervisor(sources.Options{
		Services: a.services, Statuses: a.statuses, PriorSource: a.allocator.PriorSource, Events: a.events, Log: a.log,
	})
	for _, s := range cfg.Sources {
		source := static.New(static.Options{
			Name: s.Name, Dir: s.Path, Optional: s.Optional, Pools: func() []spec.Pool { return a.config.get().SpecPools() },
			Store: state.NewBucket[static.Remembered](a.db, "static"), Log: a.log,
		})
		a.static[s.Name] = source
		a.supervisor.Add(s.Name, s.Type, source)
	}
	var err error
	a.rest, err = rest.New(rest.Options{
		Store:     state.NewBucket[rest.Record](a.db, "rest"),
		Overrides: state.NewBucket[rest.Override](a.db, "states"),
		States:    a.states, Services: a.services,
		Check:  func(s *spec.Service) []vip.Problem { return spec.CheckAgainstPools(s, a.config.get().SpecPools()) },
		Events: a.events, Log: a.log,
	})
	if err != nil {
		return err
	}
	a.supervisor.Add(rest.Type, rest.Type, a.rest)
	return nil
}

// newStages makes what joins the tables and brings them to the dataplane.
func (a *agent) newStages(cfg *configs.Config) {
	a.allocate = control.NewAllocate(control.AllocateOptions{
		Services: a.services, Host: a.host, Allocator: a.allocator, Allocations: a.allocations, Events: a.events, Log: a.log,
	})
	connections, _ := a.plane.Plane.(reconcile.Connections)
	a.compile = control.NewCompile(control.CompileOptions{
		Services: a.services, Allocations: a.allocations, States: a.states, Host: a.host,
		NodePorts: nodePortAddresses(cfg), Frontends: a.frontends, Compiled: a.compiled,
		Connections: connections, Applied: a.applied, Store: state.NewBucket[vip.Frontend](a.db, "drains"),
		Events: a.events, Log: a.log,
	})
	a.reconciler = reconcile.New(reconcile.Options[vip.FrontendKey, vip.Frontend]{
		Desired: a.frontends, Target: a.plane.Plane, Applied: a.applied, Resync: time.Duration(cfg.Dataplane.ResyncInterval),
		Service: func(f *vip.Frontend) string { return f.Service.String() }, Events: a.events, Log: a.log,
	})
}

// run starts every part and waits for the end of all of them.
func (a *agent) run(ctx context.Context, greet func(*agent)) error {
	cfg := a.config.get()
	listeners, err := listen(cfg)
	if err != nil {
		return err
	}
	// Only now, with the state and the listeners its own, is it known to be good.
	if !cfg.Remembered {
		if err := cfg.Remember(); err != nil {
			a.log.Error("a bad edit of ironvip.toml will keep the agent from starting until this can be written", "err", err)
		}
	}
	group, ctx := errgroup.WithContext(ctx)
	part := func(name string, run func(context.Context) error) {
		group.Go(func() error {
			err := run(ctx)
			if ctx.Err() != nil {
				return ctx.Err()
			}
			return fmt.Errorf("%s ended: %w", name, err)
		})
	}
	part("watching the host's addresses", a.watcher.Run)
	part("the sources", a.supervisor.Run)
	part("the allocator", a.allocator.Run)
	part("allocate", a.allocate.Run)
	part("compile", a.compile.Run)
	part("reconcile", a.reconciler.Run)
	part("the API", a.api.Run)
	for _, l := range listeners {
		part("the API at "+l.Addr().String(), func(ctx context.Context) error { return a.api.Serve(ctx, l) })
	}
	group.Go(func() error { a.followSignals(ctx); return nil })
	group.Go(func() error {
		a.systemd.watch(ctx, func() time.Time { return a.reconciler.Stats().LastTurn })
		return nil
	})
	group.Go(func() error { a.tellSystemd(ctx, greet); return nil })
	return group.Wait()
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
