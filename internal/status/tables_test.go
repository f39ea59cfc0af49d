package status

import (
	"context"
	"errors"
	"net/netip"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/ironvip/ironvip/internal/hostnet"
	"github.com/ironvip/ironvip/internal/pipeline"
	"github.com/ironvip/ironvip/internal/pipeline/compile"
	"github.com/ironvip/ironvip/internal/reconcile"
	"github.com/ironvip/ironvip/internal/reconcile/reconciletest"
	"github.com/ironvip/ironvip/internal/table"
	"github.com/ironvip/ironvip/test/bubble"
	"github.com/ironvip/ironvip/vip"
)

// granter is an allocator that grants 192.0.2.1 and node port 30080 to every
// service.
type granter struct{ pipeline.Allocator }

func (granter) Assign(_ context.Context, services []*vip.Service) []vip.Allocation {
	out := make([]vip.Allocation, len(services))
	for i := range out {
		out[i] = vip.Allocation{VIPs: []netip.Addr{netip.MustParseAddr("192.0.2.1")}, Pool: "p",
			NodePorts: map[vip.PortKey]uint16{{Port: 80, Protocol: vip.TCP}: 30080}}
	}
	return out
}
func (granter) Freed() <-chan struct{}            { return nil }
func (granter) Reconfigured() <-chan struct{}     { return nil }
func (granter) Recalls() <-chan struct{}          { return nil }
func (granter) TakeRecalls() []vip.ServiceKey     { return nil }
func (granter) SetHost(hostnet.Snapshot)          {}
func (granter) Settled(func(vip.ServiceKey) bool) {}

// unknownConnections is a dataplane that can't count connections, so nothing leaves
// before its deadline.
type unknownConnections struct{}

func (unknownConnections) Connections(context.Context, vip.FrontendKey) (map[netip.AddrPort]int, error) {
	return nil, errors.New("not counted")
}

// The stages run from services to the dataplane, and Of explains what they left
// in the tables.
func TestStatusFromTables(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		clock := table.NewClock(time.Now())
		services := table.New(clock, vip.KeyOfService, nil)
		host := table.New(clock, hostnet.KeyOf, nil)
		states := table.New(clock, vip.KeyOfBackendState, func(a, b vip.BackendState) bool { return a == b })
		allocations := table.New(clock, vip.KeyOfAllocation, compile.SameAllocation)
		frontends := table.New(clock, vip.KeyOfFrontend, compile.SameFrontend)
		compiled := table.New(clock, pipeline.KeyOfCompiled, pipeline.SameCompiled)
		applied := table.New(clock, reconcile.KeyOfApplied, nil)
		plane := reconciletest.NewRecorder(vip.KeyOfFrontend, func(a, b *vip.Frontend) bool { return compile.SameFrontend(*a, *b) })

		ctx, cancel := context.WithCancel(t.Context())
		var stages sync.WaitGroup
		defer stages.Wait()
		defer cancel()
		for _, stage := range []interface{ Run(context.Context) error }{
			pipeline.NewAllocate(pipeline.AllocateOptions{Services: services, Host: host, Allocator: granter{}, Allocations: allocations}),
			pipeline.NewCompile(pipeline.CompileOptions{Services: services, Allocations: allocations, States: states, Host: host,
				Frontends: frontends, Compiled: compiled, Applied: applied, Connections: unknownConnections{}}),
			reconcile.New(reconcile.Options[vip.FrontendKey, vip.Frontend]{Desired: frontends, Target: plane, Applied: applied, Resync: -1}),
		} {
			stages.Go(func() { _ = stage.Run(ctx) })
		}
		tables := Tables{Services: services, Allocations: allocations, Compiled: compiled, Frontends: frontends, Applied: applied, States: states}
		status := func() Report {
			synctest.Wait()
			return Of(tables.Input(key("web"), time.Now()))
		}
		if got := status().State; got != Draining {
			t.Errorf("a service that never was is %s", got)
		}
		host.Set(hostAddrs("10.9.0.1/24"))
		services.Set(service("web", []string{"10.0.0.1", "10.0.0.2"}, nodePort))
		got := status()
		if got.State != Healthy || got.Ready != 2 || got.Total != 2 || !got.Applied {
			t.Errorf("%+v", got)
		}
		if want := "Port 80/tcp is also node port 30080 on 10.9.0.1."; !slices.Contains(got.Lines, want) {
			t.Errorf("missing %q in %q", want, got.Lines)
		}
		host.Delete(struct{}{})
		if want := "Port 80/tcp is also node port 30080 on no address of this host."; !slices.Contains(status().Lines, want) {
			t.Errorf("missing %q in %q", want, status().Lines)
		}
		states.Set(vip.BackendState{Backend: vip.BackendKey{Service: key("web"), Address: addrs("10.0.0.2")[0]}, State: vip.Drain})
		synctest.Wait()
		services.Set(service("web", []string{"10.0.0.2"}, nodePort))
		got = status()
		if got.State != Down || got.Ready != 0 || got.Leaving != 1 {
			t.Errorf("%+v", got)
		}
	})
}
