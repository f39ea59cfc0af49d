// Package pipeline holds the stages that join tables between the sources and the dataplane.
//
// Resolve selects one source's claim for each service name. Allocate requests addresses and node
// ports from the allocator for each service and writes what was granted. Compile joins services,
// grants, overrides, health and this host's addresses into the frontends that a dataplane programs. It
// drains the frontends and backends that are removed, and starts backends slowly.
//
// Each stage is the only writer of its output tables. Allocate and Compile each run in one
// goroutine. Resolve runs in the goroutine that writes a claim and, for changed leases, in one of
// its own. A stage acts on the newest rows, is idempotent, and does work in proportion to what
// changed. It has no policy of its own: package ipam selects addresses, and package compile
// computes frontends. Package status explains what the tables hold.
package pipeline

import (
	"cmp"
	"context"
	"fmt"
	"log/slog"
	"net/netip"
	"time"

	"github.com/ironvip/ironvip/internal/event"
	"github.com/ironvip/ironvip/internal/hostnet"
	"github.com/ironvip/ironvip/internal/parallel"
	"github.com/ironvip/ironvip/internal/table"
	"github.com/ironvip/ironvip/pipeline/compile"
	"github.com/ironvip/ironvip/plane/reconcile"
	"github.com/ironvip/ironvip/plane/steer"
	"github.com/ironvip/ironvip/vip"
)

// Tables are the tables between the sources and the dataplane, on one revision clock. Each has one
// writer. A copy has the same tables.
type Tables struct {
	Clock       *table.Clock
	Services    *table.Table[vip.ServiceKey, vip.Service]                // by Resolve
	Overrides   *table.Table[vip.OverrideKey, vip.BackendState]          // by pipeline/overrides
	Health      *table.Table[vip.BackendKey, vip.BackendHealth]          // by package health
	Passive     *table.Table[vip.PassiveKey, vip.PassiveHealth]          // by the userspace proxy
	Host        *table.Table[struct{}, hostnet.Snapshot]                 // by internal/hostnet
	Allocations *table.Table[vip.ServiceKey, vip.Allocation]             // by Allocate
	Frontends   *table.Table[vip.FrontendKey, vip.Frontend]              // by Compile
	Compiled    *table.Table[vip.ServiceKey, Compiled]                   // by Compile
	Applied     *table.Table[vip.FrontendKey, reconcile.AppliedFrontend] // by the Loop

	ProbePaths   *table.Table[vip.ProbePath, vip.ProbePath]         // by the engine of health/probe
	AppliedPaths *table.Table[vip.ProbePath, reconcile.AppliedPath] // by their Reconciler
}

// NewTables returns empty tables. A table is Ready at once, unless its writer prevents that with an
// Initializer.
func NewTables(clock *table.Clock) Tables {
	return Tables{
		Clock:       clock,
		Services:    table.New(clock, vip.KeyOfService, nil), // Resolve compares claims, not services
		Overrides:   table.New(clock, vip.KeyOfBackendState, func(a, b vip.BackendState) bool { return a == b }),
		Health:      table.New(clock, vip.KeyOfBackendHealth, compile.SameHealth),
		Passive:     table.New(clock, vip.KeyOfPassiveHealth, func(a, b vip.PassiveHealth) bool { return a == b }),
		Host:        table.New(clock, hostnet.KeyOf, hostnet.Same),
		Allocations: table.New(clock, vip.KeyOfAllocation, compile.SameAllocation),
		Frontends:   table.New(clock, vip.KeyOfFrontend, compile.SameFrontend),
		Compiled:    table.New(clock, KeyOfCompiled, SameCompiled),
		Applied:     table.New(clock, reconcile.KeyOfApplied, nil),

		ProbePaths:   table.New(clock, vip.KeyOfProbePath, func(a, b vip.ProbePath) bool { return a == b }),
		AppliedPaths: table.New(clock, reconcile.KeyOfAppliedPath, nil),
	}
}

// Options are what the stages need. Tables, Allocator and Plane are required.
type Options struct {
	Tables
	Allocator Allocator
	Shared    bool // other hosts have the same leases
	Scope     Scope

	Node      compile.Node   // name, zone and role of this host; its addresses come from Host
	NodePorts []netip.Prefix // where node ports are served; empty: on the primary addresses
	Drains    DrainStore     // by the text of the key; nil: deadlines don't survive a restart

	Plane  reconcile.Plane // the dataplane at the start
	Resync time.Duration   // see reconcile.Options
	// Together is for the loop of that dataplane, see reconcile.Options.
	Together func(a, b vip.FrontendKey) int
	// Connections counts the connections of backends: a drain also ends when a backend has none left. Nil: the Plane
	// counts them.
	Connections reconcile.Connections

	Events *event.Log
	Log    *slog.Logger // nil: discards
}

// Pipeline is the stages from claims to the dataplane, connected by their tables. The agent and
// the tests of a whole pipeline create one with New.
type Pipeline struct {
	Tables
	Resolve *Resolve
	Compile *Compile
	Loop    *steer.Loop // from the frontends to the dataplane

	allocator Allocator
	allocate  *Allocate
}

// New connects the stages. They do nothing until Run.
func New(o Options) *Pipeline {
	o.Log = cmp.Or(o.Log, slog.New(slog.DiscardHandler))
	return &Pipeline{
		Tables:    o.Tables,
		Resolve:   NewResolve(ResolveOptions{Clock: o.Clock, Leases: o.Allocator, Shared: o.Shared, Services: o.Services, Scope: o.Scope, Events: o.Events}),
		Compile:   newCompile(o),
		allocator: o.Allocator,
		allocate:  newAllocate(o),
		Loop: steer.New(steer.Options{
			Desired: o.Frontends, Target: o.Plane, Applied: o.Applied, Resync: o.Resync, Together: o.Together,
			Service: func(f *vip.Frontend) string { return f.Service.String() }, Events: o.Events, Log: o.Log,
		}),
	}
}

// Serve lets another dataplane serve the frontends, see steer.Loop.To. Afterwards, services show what has no effect there,
// which costs O(services). One goroutine at a time may call it.
func (p *Pipeline) Serve(ctx context.Context, plane reconcile.Plane, together func(a, b vip.FrontendKey) int) error {
	if err := p.Loop.To(ctx, plane, together); err != nil {
		return err
	}
	select {
	case <-p.Compile.replaced: // not read yet
	default:
	}
	p.Compile.replaced <- plane.Ignored
	return nil
}

// Run runs the stages until the context ends, and returns its error, or until one of them fails.
func (p *Pipeline) Run(ctx context.Context) error {
	group, ctx := parallel.NewGroup(ctx)
	for _, stage := range []struct {
		name string
		run  func(context.Context) error
	}{
		{"resolve", p.Resolve.Run},
		{"the allocator", p.allocator.Run},
		{"allocate", p.allocate.Run},
		{"compile", p.Compile.Run},
		{"reconcile", p.Loop.Run},
	} {
		group.Go(func() error { return fmt.Errorf("%s: %w", stage.name, stage.run(ctx)) })
	}
	return group.Wait()
}
