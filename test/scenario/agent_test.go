//go:build linux

package scenario

import (
	"context"
	"fmt"
	"io"
	"maps"
	"net/netip"
	"testing"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/ironvip/ironvip/health"
	"github.com/ironvip/ironvip/internal/hostnet"
	"github.com/ironvip/ironvip/internal/table"
	"github.com/ironvip/ironvip/ipam"
	"github.com/ironvip/ironvip/ipam/allocator"
	"github.com/ironvip/ironvip/ipam/memstore"
	"github.com/ironvip/ironvip/ipvs/probepath"
	"github.com/ironvip/ironvip/pipeline"
	"github.com/ironvip/ironvip/pipeline/compile"
	"github.com/ironvip/ironvip/plane/reconcile"
	"github.com/ironvip/ironvip/sources/static"
	"github.com/ironvip/ironvip/test/expect"
	"github.com/ironvip/ironvip/test/must"
	"github.com/ironvip/ironvip/test/wait"
	"github.com/ironvip/ironvip/vip"
	"github.com/ironvip/ironvip/vip/spec"
)

// maxWait bounds every wait. A successful wait takes less than a hundredth of it.
var maxWait = wait.Timeout

// hub is what hosts share: the services, the overrides and the store of the leases.
type hub struct {
	tables   pipeline.Tables // only Services and Overrides
	pools    []spec.Pool
	config   ipam.Config
	leases   *memstore.Store
	drains   drains    // the director's, as
	verdicts *verdicts // those of health checks
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
	expect.Is(t, s.group.Wait(), context.Canceled, "%s ended with", what)
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

func newHub(pool, pods []netip.Prefix) *hub {
	return &hub{
		tables:   pipeline.NewTables(table.NewClock(time.Now())),
		pools:    []spec.Pool{{Name: "main", CIDRs: pool, AutoAssign: true}},
		config:   ipam.Config{Pools: []ipam.Pool{{Name: "main", CIDRs: pool, AutoAssign: true}}, PodCIDRs: pods},
		leases:   memstore.New(),
		drains:   drains{},
		verdicts: &verdicts{rows: map[string]health.Row{}},
	}
}

// parse reads services in the format of services.d.
func (h *hub) parse(text string) ([]vip.Service, error) {
	file := static.ParseServices("scenario.toml", []byte(text), "scenario", h.pools)
	for _, p := range file.Problems {
		return nil, fmt.Errorf("%w (hint: %s) in\n%s", p, p.Hint, text)
	}
	return file.Services, nil
}

// host is one host's agent, without sources: its pipeline and its dataplane.
type host struct {
	*pipeline.Pipeline
	stages stages
	plane  plane
	paths  *reconcile.Reconciler[vip.ProbePath, vip.ProbePath] // nil: none
	health table.Reader[vip.BackendKey, vip.BackendHealth]
	beside *reconcile.Reconciler[vip.FrontendKey, vip.Frontend] // balances at connect(); nil: nothing does
}

// plane is a running dataplane.
type plane interface {
	reconcile.Plane
	io.Closer
}

// startHost starts with the services of the hub, and with the present state of the dataplane.
// Paths is nil on a real server and with a dataplane that needs none.
func (h *hub) startHost(t testing.TB, plane plane, paths *probepath.Target, node compile.Node, addrs *table.Table[struct{}, hostnet.Snapshot], nodePorts []netip.Prefix) *host {
	t.Helper()
	tables := pipeline.NewTables(h.tables.Clock)
	tables.Services, tables.Overrides, tables.Host = h.tables.Services, h.tables.Overrides, addrs
	allocator := must.Get(allocator.New(t.Context(), h.leases, h.config, allocator.Options{Clock: tables.Clock, Node: node.Name}))(t)
	o := pipeline.Options{
		Tables: tables, Allocator: allocator, Shared: true, Node: node, NodePorts: nodePorts, Plane: plane, Resync: -1,
	}
	if !node.RealServer {
		o.Drains = h.drains
	}
	line := pipeline.New(o)
	m := &host{Pipeline: line, plane: plane, health: tables.Health}
	run := []func(context.Context) error{line.Run}
	var mark func(vip.ProbePath) (uint32, error)
	if paths != nil {
		t.Cleanup(func() { paths.Close() })
		mark = paths.Mark
		m.paths = reconcile.New(reconcile.Options[vip.ProbePath, vip.ProbePath]{
			Desired: tables.ProbePaths, Target: paths, Applied: tables.AppliedPaths, Resync: -1,
		})
		run = append(run, m.paths.Run)
	}
	if !node.RealServer {
		run = append(run, h.newHealth(tables, mark).Run)
	}
	if c, is := plane.(connecting); is {
		m.beside = reconcile.New(reconcile.Options[vip.FrontendKey, vip.Frontend]{
			Desired: tables.Frontends, Target: c.beside, Applied: table.New(tables.Clock, reconcile.KeyOfApplied, nil), Resync: -1,
		})
		run = append(run, m.beside.Run)
	}
	m.stages = start(run...)
	return m
}

func (m *host) stop(t testing.TB) {
	t.Helper()
	m.stages.stop(t, "the host's pipeline")
	expect.Succeed(t, m.plane.Close(), "close the dataplane")
}

// until calls ok until it returns nil, for at most maxWait.
func until(t testing.TB, ok func() error) error {
	t.Helper()
	return wait.OrError(t, maxWait, "the step's state", ok)
}

// settled reports whether the dataplane has the frontends of the table.
func (m *host) settled(key vip.ServiceKey, is func(*vip.Frontend) bool) error {
	row, _, ok := m.Compiled.Get(key)
	if !ok {
		return fmt.Errorf("%s is not compiled", key)
	}
	for _, live := range row.Frontends {
		k := live.Value.Key
		f, rev, ok := m.Frontends.Get(k)
		if !ok || !is(&f) {
			return fmt.Errorf("%s is %+v", k, f)
		}
		if a, _, ok := m.Applied.Get(k); !ok || a.Tried.Rev < rev {
			return fmt.Errorf("%s is not applied", k)
		}
		if m.beside != nil && m.beside.Stats().AppliedRev < rev {
			return fmt.Errorf("%s is not applied at connect()", k)
		}
	}
	return m.clean()
}

// clean reports whether all connections have ended that changes have made outdated.
func (m *host) clean() error {
	all := []reconcile.Stats{m.Loop.Stats()}
	if m.beside != nil {
		all = append(all, m.beside.Stats())
	}
	for _, s := range all {
		if s.Unclean || s.TargetError != "" {
			return fmt.Errorf("connections with removed backends are not ended: %s%s", s.CleanError, s.TargetError)
		}
	}
	return nil
}
