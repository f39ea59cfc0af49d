package status

import (
	"net/netip"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/ironvip/ironvip/internal/table"
	"github.com/ironvip/ironvip/ipam"
	"github.com/ironvip/ironvip/ipam/allocator"
	"github.com/ironvip/ironvip/ipam/memstore"
	"github.com/ironvip/ironvip/pipeline"
	"github.com/ironvip/ironvip/test/bubble"
	"github.com/ironvip/ironvip/test/expect"
	"github.com/ironvip/ironvip/test/reconciletest"
	"github.com/ironvip/ironvip/test/scope"
	"github.com/ironvip/ironvip/vip"
)

// The stages run from services to the dataplane, and Of explains what they left
// in the tables.
func TestStatusFromTables(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		all := pipeline.NewTables(table.NewClock(time.Now()))
		pool := ipam.Pool{Name: "p", CIDRs: []netip.Prefix{netip.MustParsePrefix("192.0.2.0/24")}, AutoAssign: true}
		allocator, err := allocator.New(t.Context(), memstore.New(), ipam.Config{Pools: []ipam.Pool{pool}}, allocator.Options{Clock: all.Clock})
		if err != nil {
			t.Fatal(err)
		}
		p := pipeline.New(pipeline.Options{Tables: all, Allocator: allocator, Plane: reconciletest.NewPlane(), Resync: -1})
		scope.Go(t, p.Run)
		tables := Tables{Services: all.Services, Allocations: all.Allocations, Compiled: all.Compiled, Frontends: all.Frontends, Applied: all.Applied, Overrides: all.Overrides, Health: all.Health, Passive: all.Passive}
		at30080 := func(s *vip.Service) { s.Ports[0].NodePort = vip.NodePort{Number: 30080} }
		status := func() Report {
			synctest.Wait()
			return Of(tables.Input(key("web"), time.Now()))
		}
		expect.Equal(t, status().State, Draining, "a service that never")
		all.Host.Set(hostAddrs("10.9.0.1/24"))
		all.Services.Set(service("web", []string{"10.0.0.1", "10.0.0.2"}, at30080))
		if got := status(); got.State != Unchecked || got.Ready != 2 {
			t.Errorf("without a check: %+v", got)
		}
		for _, a := range addrs("10.0.0.1", "10.0.0.2") {
			all.Health.Set(vip.BackendHealth{Backend: vip.BackendKey{Service: key("web"), Address: a}, Checks: []vip.CheckResult{{Type: vip.CheckTCP, Port: 80, Health: vip.Healthy}}})
		}
		got := status()
		if got.State != Healthy || got.Ready != 2 || got.Total != 2 || !got.Applied {
			t.Errorf("%+v", got)
		}
		if want := "Port 80/tcp is also node port 30080 on 10.9.0.1."; !slices.Contains(got.Lines, want) {
			t.Errorf("missing %q in %q", want, got.Lines)
		}
		all.Host.Delete(struct{}{})
		if want := "Port 80/tcp is also node port 30080 on no address of this host."; !slices.Contains(status().Lines, want) {
			t.Errorf("missing %q in %q", want, status().Lines)
		}
		all.Overrides.Set(vip.BackendState{Backend: vip.BackendKey{Service: key("web"), Address: addrs("10.0.0.2")[0]}, State: vip.Drain})
		synctest.Wait()
		all.Services.Set(service("web", []string{"10.0.0.2"}, at30080))
		got = status()
		if got.State != Down || got.Ready != 0 || got.Leaving != 1 {
			t.Errorf("%+v", got)
		}
	})
}
