package balance

import (
	"net/netip"
	"sync"
	"testing"

	"github.com/ironvip/ironvip/test/expect"
	"github.com/ironvip/ironvip/test/must"
	"github.com/ironvip/ironvip/vip"
)

// A frontend without clients has no state of its backends: its creation and updates cost the same for any number of them.
// The first client finds all backends, and the traffic of the others is reported as before.
func TestAFrontendWithoutClients(t *testing.T) {
	cost := func(backends int) float64 {
		spec := specOf(vip.RoundRobin, 0, 0, 0)
		for i := range backends {
			spec.Backends = append(spec.Backends, vip.Endpoint{Addr: netip.AddrPortFrom(netip.AddrFrom4([4]byte{192, 0, 2, byte(i)}), 80), Weight: 1})
		}
		f := front(t, spec)
		allocs := testing.AllocsPerRun(10, func() { f.Choose(spec) })
		expect.Equal(t, f.Usable(), backends, "usable backends")
		expect.Len(t, f.Breakdown().Endpoints, backends, "backends in the breakdown")
		expect.Empty(t, f.Endpoints(), "endpoints before the first client")

		a := f.Attempt(client, f.Service(), false)
		e, why := a.take()
		must.True(t, e != nil, why)
		expect.Len(t, f.Endpoints(), backends, "endpoints after the first client")
		expect.Len(t, f.Breakdown().Endpoints, backends, "backends in the breakdown after the first client")
		e.Leave()
		a.End()
		return allocs
	}
	expect.Equal(t, cost(200), cost(1), "allocations of an update")
}

// First clients that come at the same time, and while the frontend is updated and closed, share one set of endpoints.
// Nothing of them is left afterwards.
func TestFirstClientsAtTheSameTime(t *testing.T) {
	for range 50 {
		b := New(Options{Own: netip.Addr.IsLoopback, Files: 1000})
		spec := specOf(vip.RoundRobin, 0, 0, 0, web1, web2)
		f := b.NewFrontend(spec)
		var mu sync.Mutex
		seen := map[string]*Endpoint{}
		var clients sync.WaitGroup
		for i := range 4 {
			f.Tasks.Add(1)
			clients.Go(func() {
				defer f.Tasks.Done()
				a := f.Attempt(netip.AddrPortFrom(netip.AddrFrom4([4]byte{198, 51, 100, byte(i)}), 40000), f.Service(), false)
				defer a.End()
				e, _ := a.take()
				if e == nil {
					return // closed before
				}
				defer e.Leave()
				mu.Lock()
				defer mu.Unlock()
				if other := seen[e.Addr.String()]; other != nil && other != e {
					t.Errorf("two endpoints of %s", e.Addr)
				}
				seen[e.Addr.String()] = e
			})
		}
		f.Choose(spec)
		f.Close()
		clients.Wait()
		expect.Empty(t, b.services, "services left")
		expect.Empty(t, f.Service().loads, "endpoints left")
	}
}
