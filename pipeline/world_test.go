package pipeline

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	"go.uber.org/goleak"

	"github.com/ironvip/ironvip/internal/event"
	"github.com/ironvip/ironvip/internal/table"
	"github.com/ironvip/ironvip/pipeline/compile"
	"github.com/ironvip/ironvip/plane/reconcile"
	"github.com/ironvip/ironvip/test/bubble"
	"github.com/ironvip/ironvip/test/pipelinetest"
	"github.com/ironvip/ironvip/test/reconciletest"
	"github.com/ironvip/ironvip/vip"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// tester is what a world needs from a *testing.T or a *rapid.T.
type tester interface {
	Helper()
	Errorf(format string, args ...any)
	Cleanup(func())
}

// world is one agent's tables with both stages, the real reconciler and fakes of everything
// external. Use it only inside synctest.Test.
type world struct {
	Tables
	t      tester
	events *event.Log

	clockSet  atomic.Int64 // the sum of the steps of the host's clock, in nanoseconds
	node      compile.Node
	allocator *fakeAllocator
	conns     *fakeConnections
	store     *memStore
	plane     *reconciletest.Plane

	rows     *table.Feed[vip.FrontendKey, vip.Frontend] // for changedRows
	compiler *Compile                                   // to be read only after stop
	stop     context.CancelFunc
	stages   sync.WaitGroup
}

// newWorld starts an agent. It takes what outlives an agent from before, if that is not nil.
func newWorld(t tester, before *world) *world {
	w := &world{
		Tables:    NewTables(table.NewClock(time.Now())),
		t:         t,
		events:    event.NewLog(100, time.Now),
		allocator: newFakeAllocator(),
		conns:     &fakeConnections{err: errors.New("not asked for in this test")},
		store:     newMemStore(),
		plane:     reconciletest.NewPlane(),
	}
	if before != nil {
		w.allocator, w.conns, w.store, w.plane = before.allocator, before.conns, before.store, before.plane
	}
	w.rows = w.Frontends.Watch()
	return w
}

// fakePlane is a dataplane of which the tests set the connections.
type fakePlane struct {
	reconcile.Plane
	conns *fakeConnections
}

func (p fakePlane) Connections(ctx context.Context, key vip.FrontendKey) (map[netip.AddrPort]int, error) {
	return p.conns.Connections(ctx, key)
}

func (p fakePlane) Ignored(s *vip.Service) []vip.Problem { return p.conns.Ignored(s) }

// options returns the options of the stages.
func (w *world) options() Options {
	return Options{
		Tables: w.Tables, Allocator: w.allocator, Node: w.node, Drains: w.store,
		Plane:  fakePlane{w.plane, w.conns},
		Resync: -1, Events: w.events, Log: slog.New(slog.DiscardHandler),
	}
}

// bareCompile returns a stage that does not run, without connections and a store.
func (w *world) bareCompile() *Compile {
	return newCompile(Options{Tables: w.Tables, Plane: w.plane, Events: w.events, Log: slog.New(slog.DiscardHandler)})
}

// run starts the stages.
func (w *world) run() *world {
	ctx, cancel := context.WithCancel(context.Background())
	w.stop = func() {
		cancel()
		w.stages.Wait()
	}
	w.t.Cleanup(func() { w.stop() })
	p := New(w.options())
	w.compiler = p.Compile
	w.compiler.drains.wall = func() vip.Instant { return vip.InstantOf(time.Now()).Add(time.Duration(w.clockSet.Load())) }
	w.stages.Go(func() {
		if err := p.Run(ctx); !errors.Is(err, context.Canceled) {
			w.t.Errorf("the pipeline ended with %v", err)
		}
	})
	return w
}

// inWorld runs a scenario in its own world, with its own time.
func inWorld(t *testing.T, scenario func(t *testing.T, w *world)) {
	inWorldOf(t, compile.Node{}, scenario)
}

// inWorldOf is inWorld on a node.
func inWorldOf(t *testing.T, node compile.Node, scenario func(t *testing.T, w *world)) {
	bubble.Test(t, func(t *testing.T) {
		w := newWorld(t, nil)
		w.node = node
		w.run()
		synctest.Wait()
		w.changedRows()
		scenario(t, w)
		w.stop()
	})
}

// put sets services and waits until all goroutines are idle.
func (w *world) put(services ...vip.Service) {
	for _, s := range services {
		w.Services.Set(s)
	}
	synctest.Wait()
}

func (w *world) remove(names ...string) {
	for _, n := range names {
		w.Services.Delete(key(n))
	}
	synctest.Wait()
}

// pass lets time pass, with all of its effects.
func (w *world) pass(d time.Duration) {
	time.Sleep(d)
	synctest.Wait()
}

// setClock sets the host's clock. expect uses the clock that is never set.
func (w *world) setClock(by time.Duration) { w.clockSet.Add(int64(by)) }

// changedRows returns the number of frontends that changed since the last call.
func (w *world) changedRows() (n int) {
	for {
		batch, _ := w.rows.TryNext()
		if len(batch) == 0 {
			return n
		}
		n += len(batch)
	}
}

// expect compares the frontends, in the order of their keys, with lines such as "192.0.2.1:80/tcp
// web: 10.0.0.1:80*1 10.0.0.2:80*0@60s": the weight and the remaining time of each endpoint. The
// dataplane must have the same.
func (w *world) expect(want ...string) {
	w.t.Helper()
	var got []string
	for _, f := range sortedFrontends(w.Frontends) {
		got = append(got, showFrontend(f))
	}
	if diff := cmp.Diff(want, got, cmpopts.EquateEmpty()); diff != "" {
		w.t.Errorf("frontends (-want +got):\n%s", diff)
	}
	if k, former := w.former(); former != nil {
		w.t.Errorf("the compiled row of %s keeps a former row of %s", k, former.Value.Key)
	}
	have := w.plane.Have()
	if len(have) != w.Frontends.Len() {
		w.t.Errorf("the dataplane has %d frontends, %d are wanted", len(have), w.Frontends.Len())
	}
	for k, f := range have {
		if row, _, ok := w.Frontends.Get(k); !ok || !compile.SameFrontend(f, row) {
			w.t.Errorf("the dataplane has %s, wanted is %s", showFrontend(f), showFrontend(row))
		}
	}
}

// former returns a row of a frontend that a compiled row refers to and that is no longer in the
// table of frontends, or nil.
func (w *world) former() (vip.ServiceKey, *FrontendRow) {
	for k, row := range w.Compiled.All() {
		for _, f := range row.Frontends {
			if f != w.Frontends.Row(f.Value.Key) {
				return k, f
			}
		}
	}
	return vip.ServiceKey{}, nil
}

func sortedFrontends(t table.Reader[vip.FrontendKey, vip.Frontend]) []vip.Frontend {
	var all []vip.Frontend
	for _, f := range t.All() {
		all = append(all, f)
	}
	slices.SortFunc(all, func(a, b vip.Frontend) int { return vip.CompareFrontendKeys(a.Key, b.Key) })
	return all
}

func showFrontend(f vip.Frontend) string {
	parts := []string{fmt.Sprintf("%s %s:", f.Key, f.Service)}
	for _, e := range f.Backends {
		text := fmt.Sprintf("%s*%d", e.Addr, e.Weight)
		if e.IsLeaving() {
			text += fmt.Sprintf("@%s", time.Until(e.Leaving.Time()).Round(time.Millisecond))
		}
		parts = append(parts, text)
	}
	return strings.Join(parts, " ")
}

// problems returns the codes of a service's problems.
func (w *world) problems(name string) (codes []string) {
	row, _, _ := w.Compiled.Get(key(name))
	for _, p := range row.Problems {
		codes = append(codes, p.Code)
	}
	return codes
}

// The sample services.
var (
	key         = pipelinetest.Key
	addrs       = pipelinetest.Addrs
	service     = pipelinetest.Service
	protocol    = pipelinetest.Protocol
	port        = pipelinetest.Port
	nodePort    = pipelinetest.NodePort
	on          = pipelinetest.On
	hostAddrs   = pipelinetest.HostAddrs
	unsupported = pipelinetest.Unsupported
	local       = pipelinetest.Local
	onNode      = pipelinetest.OnNode
)

// portRange makes the service's port a range.
func portRange(first, last uint16) func(*vip.Service) {
	return func(s *vip.Service) {
		s.Ports = []vip.Port{{Name: "range", Protocol: vip.TCP, Port: first, LastPort: last}}
	}
}

// inLateWorld runs a scenario in a world whose inputs are not ready until their
// functions are called.
func inLateWorld(t *testing.T, scenario func(t *testing.T, w *world, services, host, states func())) {
	bubble.Test(t, func(t *testing.T) {
		w := newWorld(t, nil)
		services, host, states := w.Services.Initializer(), w.Host.Initializer(), w.Overrides.Initializer()
		w.run()
		synctest.Wait()
		scenario(t, w, services, host, states)
		w.stop()
	})
}
