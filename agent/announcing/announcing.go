// Package announcing is the agent's part of announcing VIPs: it decides what the announcer is told.
//
// Its inputs are the configuration, the host's addresses, the applied frontends, and what hosts of
// the fleet store about each other. Its outputs are the settings and eligible VIPs that the control
// connection carries to the announcer, and mirrors of the announcer's tables. It announces nothing
// itself.
package announcing

import (
	"context"
	"log/slog"
	"net/netip"
	"sync"
	"sync/atomic"
	"time"

	"github.com/ironvip/ironvip/announce"
	"github.com/ironvip/ironvip/announce/control"
	"github.com/ironvip/ironvip/announce/eligible"
	"github.com/ironvip/ironvip/announce/nodes"
	"github.com/ironvip/ironvip/announce/remains"
	"github.com/ironvip/ironvip/configs"
	"github.com/ironvip/ironvip/fleet/registry"
	"github.com/ironvip/ironvip/internal/event"
	"github.com/ironvip/ironvip/internal/hostnet"
	"github.com/ironvip/ironvip/internal/mirror"
	"github.com/ironvip/ironvip/internal/parallel"
	"github.com/ironvip/ironvip/internal/table"
	"github.com/ironvip/ironvip/internal/wake"
	"github.com/ironvip/ironvip/ipam"
	"github.com/ironvip/ironvip/plane/reconcile"
	"github.com/ironvip/ironvip/vip"
)

// Options are what the package needs. All are required, Balancers only in a fleet.
type Options struct {
	Config func() *configs.Config // in effect; see Reload
	Store  registry.Store[nodes.Record]
	Fleet  bool // other hosts share the store
	// Balancers returns how many hosts of the fleet balance traffic. It is called in a fleet only.
	Balancers func() int
	Host      table.Reader[struct{}, hostnet.Snapshot]
	Applied   table.Reader[vip.FrontendKey, reconcile.AppliedFrontend]
	Services  table.Reader[vip.ServiceKey, vip.Service]
	Leases    table.Reader[ipam.Resource, *ipam.Lease]
	Synced    <-chan struct{} // of the reconciler
	Healthy   func() bool     // the dataplane works
	// Forwards reports whether the dataplane forwards without the agent. A change needs a Reload.
	Forwards func() bool
	// Hangs returns why this process does not do its main work; nil: it does. It matters only to a
	// dataplane that does not forward without the agent.
	Hangs  func() error
	Clock  *table.Clock
	Events *event.Log
	Log    *slog.Logger
}

// Announcing connects the parts. Create it with New and start Run.
type Announcing struct {
	Options
	Nodes          *nodes.Nodes
	Eligible       *table.Table[netip.Addr, announce.Eligible]
	control.Tables // mirrors of the announcer's, which the link alone writes
	Link           *mirror.Client

	stage    *eligible.Stage
	settings *table.Table[struct{}, announce.Settings]
	reload   wake.Signal
	known    chan struct{} // closed when the settings were computed once

	announced, waiting atomic.Int64 // VIPs that this host is to announce, by whether it is so
	counts             counts

	mu      sync.Mutex
	secrets secrets
	problem string // why not everything of the configuration is in effect
}

// New creates the parts. They do nothing until Run.
func New(o Options) *Announcing {
	a := &Announcing{Options: o, reload: wake.New(), known: make(chan struct{}), settings: control.NewSettings(o.Clock), Tables: control.NewTables(o.Clock),
		Nodes:    nodes.New(nodes.Options{Store: o.Store, Node: o.Config().Node.Name, Fleet: o.Fleet, Events: o.Events, Log: o.Log}),
		Eligible: table.New(o.Clock, announce.KeyOfEligible, func(a, b announce.Eligible) bool { return a == b }),
	}
	a.counts = newCounts(a.Tables)
	a.stage = eligible.New(eligible.Options{Applied: o.Applied, Services: o.Services, Synced: o.Synced, Healthy: o.Healthy, Moves: a.Nodes.Moves, Node: o.Config().Node.Name, Eligible: a.Eligible,
		Pools: func() ([]announce.Pool, <-chan struct{}) {
			s, changed := a.Settings()
			return s.Pools, changed
		}})
	a.Link = &mirror.Client{Path: o.Config().Announce.Socket, Server: "announcer", Name: o.Config().Node.StateDir, Log: o.Log,
		Publish: control.Publish(a.settings, a.Eligible), Mirror: a.Tables.Mirror(), Need: a.need, Gone: a.clean}
	a.Link.Hangs = func() error {
		if o.Forwards() {
			return nil
		}
		return o.Hangs()
	}
	return a
}

// Settings returns the announcer's settings, and a channel that is closed when they change.
func (a *Announcing) Settings() (announce.Settings, <-chan struct{}) {
	changed := a.settings.Changed()
	s, _, _ := a.settings.Get(struct{}{})
	return s, changed
}

// Reload applies a changed configuration, and reads the files that it names again.
func (a *Announcing) Reload() {
	a.reload.Set()
}

// Run runs the parts until the context ends, and returns its error.
func (a *Announcing) Run(ctx context.Context) error {
	group, ctx := parallel.NewGroup(ctx)
	for _, run := range []func(context.Context) error{a.Nodes.Run, a.onceKnown(a.stage.Run), a.onceKnown(a.Link.Run), a.followInputs, a.followResults, a.endMoves} {
		group.Go(func() error { return run(ctx) })
	}
	return group.Wait()
}

// onceKnown delays run until the settings are known. Before, no VIP is in an announced pool, and the
// announcer would withdraw those of an earlier run.
func (a *Announcing) onceKnown(run func(context.Context) error) func(context.Context) error {
	return func(ctx context.Context) error {
		if err := wake.Wait(ctx, a.known); err != nil {
			return err
		}
		return run(ctx)
	}
}

// need returns what the announcer is needed for. If nothing can be announced because of a problem, such
// as an unreadable secret, the announcer keeps what it has.
func (a *Announcing) need() (mirror.Need, <-chan struct{}) {
	switch settings, changed := a.Settings(); {
	case settings.Announces():
		return mirror.Needed, changed
	case a.Problem() != "":
		return mirror.Undecided, changed
	default:
		return mirror.Idle, changed
	}
}

// clean removes what an announcer has left that was stopped before the mode was set to off: its gate
// would keep this host silent.
func (a *Announcing) clean(ctx context.Context) {
	found, err := remains.Find(ctx, a.Link.Path)
	if err == nil && !found.None() {
		a.Log.Info("removing what an announcer has left", "tables", found.Tables, "interfaces", len(found.Settings), "routes", len(found.Routes))
		err = found.Remove(ctx)
	}
	if err != nil && ctx.Err() == nil {
		a.Log.Warn("an announcer that has ended may have left something in the kernel", "err", err, "hint", "ironvip dataplane clean removes it while neither the agent nor the announcer runs")
	}
}

// hostWait is how long the settings wait for the host's addresses.
const hostWait = 10 * time.Second

// followInputs computes the settings again whenever something that they depend on changes.
func (a *Announcing) followInputs(ctx context.Context) error {
	late := time.NewTimer(hostWait)
	defer late.Stop()
	select {
	case <-ctx.Done():
		return ctx.Err()
	case <-a.Host.Ready():
	case <-late.C:
	}
	a.update()
	close(a.known)
	for {
		nodesChanged, hostChanged := a.Nodes.Changed(), a.Host.Changed()
		a.update()
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-a.reload:
		case <-nodesChanged:
		case <-hostChanged:
		}
	}
}

func (a *Announcing) update() {
	a.mu.Lock()
	defer a.mu.Unlock()
	settings, own, err := a.compute()
	problem := ""
	if err != nil {
		problem = err.Error()
	}
	if problem != "" && problem != a.problem {
		a.Log.Error("announcing", "err", err)
	}
	a.problem = problem
	a.Nodes.Publish(own)
	a.settings.Set(settings)
}

// Stale returns why the mirrors may be outdated; "" if they are not.
func (a *Announcing) Stale() string {
	if settings, _ := a.Settings(); !settings.Announces() {
		return ""
	}
	return a.Link.State().Reason
}

// Problem returns why not everything of the configuration is in effect; "" if it is.
func (a *Announcing) Problem() string {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.problem
}
