//go:build linux

package scenario

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"maps"
	"net/netip"
	"testing"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/ironvip/ironvip/internal/hostnet"
	"github.com/ironvip/ironvip/internal/pipeline"
	"github.com/ironvip/ironvip/internal/pipeline/compile"
	"github.com/ironvip/ironvip/internal/reconcile"
	"github.com/ironvip/ironvip/internal/table"
	"github.com/ironvip/ironvip/ipam"
	"github.com/ironvip/ironvip/ipam/memstore"
	"github.com/ironvip/ironvip/sources/static"
	"github.com/ironvip/ironvip/test/wait"
	"github.com/ironvip/ironvip/vip"
	"github.com/ironvip/ironvip/vip/spec"
)

// patience bounds every wait. A successful wait takes less than a hundredth of it.
const patience = 60 * time.Second

// hub is the part of the pipeline that hosts may share: the services and their allocations.
type hub struct {
	clock       *table.Clock
	pools       []spec.Pool
	services    *table.Table[vip.ServiceKey, vip.Service]
	states      *table.Table[vip.BackendKey, vip.BackendState]
	allocations *table.Table[vip.ServiceKey, vip.Allocation]
	drains      drains
	ready       func() // marks the services as complete
	stages      stages
}

// stages are goroutines with a common end.
type stages struct {
	cancel context.CancelFunc
	group  *errgroup.Group
}

func start(run ...func(context.Context) error) stages {
	ctx, cancel := context.WithCancel(context.Background())
	group, ctx := errgroup.WithContext(ctx)
	for _, f := range run {
		group.Go(func() error { return f(ctx) })
	}
	return stages{cancel, group}
}

func (s stages) stop(t testing.TB, what string) {
	t.Helper()
	s.cancel()
	if err := s.group.Wait(); !errors.Is(err, context.Canceled) {
		t.Errorf("%s ended with %v", what, err)
	}
}

// drains is a pipeline.DrainStore that outlives the director's agent.
type drains map[string]vip.Frontend

// Write implements pipeline.DrainStore.
func (d drains) Write(put map[string]vip.Frontend, remove []string) error {
	maps.Copy(d, put)
	for _, name := range remove {
		delete(d, name)
	}
	return nil
}

// All implements pipeline.DrainStore.
func (d drains) All() (map[string]vip.Frontend, error) { return maps.Clone(d), nil }

func newHub(t testing.TB, pool, pods []netip.Prefix, host table.Reader[struct{}, hostnet.Snapshot]) *hub {
	t.Helper()
	clock := table.NewClock(time.Now())
	h := &hub{
		clock:       clock,
		pools:       []spec.Pool{{Name: "main", CIDRs: pool, AutoAssign: true}},
		services:    table.New(clock, vip.KeyOfService, compile.SameService),
		states:      table.New(clock, vip.KeyOfBackendState, func(a, b vip.BackendState) bool { return a == b }),
		allocations: table.New(clock, vip.KeyOfAllocation, compile.SameAllocation),
	}
	h.drains = drains{}
	h.ready = h.services.Initializer()
	allocator, err := ipam.New(t.Context(), memstore.New(), ipam.Config{
		Pools:    []ipam.Pool{{Name: "main", CIDRs: pool, AutoAssign: true}},
		PodCIDRs: pods,
	}, ipam.Options{Clock: clock})
	if err != nil {
		t.Fatal(err)
	}
	allocate := pipeline.NewAllocate(pipeline.AllocateOptions{
		Services: h.services, Host: host, Allocator: allocator, Allocations: h.allocations,
	})
	h.stages = start(allocator.Run, allocate.Run)
	return h
}

// parse reads services in the format of services.d.
func (h *hub) parse(text string) ([]vip.Service, error) {
	file := static.ParseServices("scenario.toml", []byte(text), "scenario", h.pools)
	for _, p := range file.Problems {
		return nil, fmt.Errorf("%w (hint: %s) in\n%s", p, p.Hint, text)
	}
	return file.Services, nil
}

// host is one host's part of the pipeline: its frontends and its dataplane.
type host struct {
	frontends *table.Table[vip.FrontendKey, vip.Frontend]
	compiled  *table.Table[vip.ServiceKey, pipeline.Compiled]
	applied   *table.Table[vip.FrontendKey, reconcile.AppliedFrontend]
	synced    <-chan struct{}
	stages    stages
	plane     plane
}

// plane is a running dataplane.
type plane interface {
	reconcile.Plane
	io.Closer
}

// startHost starts with the services of the hub, and with the present state of the dataplane.
func (h *hub) startHost(plane plane, node compile.Node, addrs table.Reader[struct{}, hostnet.Snapshot], nodePorts []netip.Prefix, log *slog.Logger) *host {
	m := &host{
		frontends: table.New(h.clock, vip.KeyOfFrontend, compile.SameFrontend),
		compiled:  table.New(h.clock, pipeline.KeyOfCompiled, pipeline.SameCompiled),
		applied:   table.New(h.clock, reconcile.KeyOfApplied, nil),
		plane:     plane,
	}
	connections, _ := plane.(reconcile.Connections)
	var store pipeline.DrainStore
	if !node.RealServer {
		store = h.drains
	}
	stage := pipeline.NewCompile(pipeline.CompileOptions{
		Services: h.services, Allocations: h.allocations, States: h.states, Host: addrs, NodePorts: nodePorts, Node: node,
		Frontends: m.frontends, Compiled: m.compiled, Connections: connections, Applied: m.applied, Store: store, Log: log,
	})
	loop := reconcile.New(reconcile.Options[vip.FrontendKey, vip.Frontend]{
		Desired: m.frontends, Target: plane, Applied: m.applied, Resync: -1, Log: log,
	})
	m.synced = loop.Synced()
	m.stages = start(stage.Run, loop.Run)
	return m
}

func (m *host) stop(t testing.TB) {
	t.Helper()
	m.stages.stop(t, "the host's pipeline")
	if err := m.plane.Close(); err != nil {
		t.Errorf("close the dataplane: %v", err)
	}
}

// until calls ok until it returns nil, for at most patience.
func until(ctx context.Context, ok func() error) error {
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	if err := wait.Poll(ctx, ok); err != nil {
		return fmt.Errorf("not within %s: %w", patience, err)
	}
	return nil
}

// settled reports whether the dataplane has the frontends of the table.
func (m *host) settled(key vip.ServiceKey, is func(*vip.Frontend) bool) error {
	row, _, ok := m.compiled.Get(key)
	if !ok {
		return fmt.Errorf("%s is not compiled", key)
	}
	for _, live := range row.Frontends {
		k := live.Value.Key
		f, rev, ok := m.frontends.Get(k)
		if !ok || !is(&f) {
			return fmt.Errorf("%s is %+v", k, f)
		}
		if a, _, ok := m.applied.Get(k); !ok || a.Tried.Rev < rev {
			return fmt.Errorf("%s is not applied", k)
		}
	}
	return nil
}
