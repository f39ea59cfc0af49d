package status

import (
	"fmt"
	"math/rand/v2"
	"net/netip"
	"slices"
	"testing"
	"time"

	"github.com/ironvip/ironvip/pipeline/compile"
	"github.com/ironvip/ironvip/test/expect"
	"github.com/ironvip/ironvip/test/seed"
	"github.com/ironvip/ironvip/vip"
)

// A report of a service that is down looks up the health of each backend at most ten times for each port.
func TestHealthIsReadOnceForEachPort(t *testing.T) {
	for _, size := range [][2]int{{4, 10}, {4, 100}, {64, 10}, {64, 100}} {
		in, n := wide(size[0], size[1]), 0
		bad := &vip.BackendHealth{Checks: []vip.CheckResult{result(vip.Unhealthy, "refused")}}
		for i := range in.Frontends {
			in.Frontends[i].Frontend.Backends = nil // it refuses clients
		}
		in.Health = func(vip.BackendKey) *vip.BackendHealth { n++; return bad }
		expect.Equal(t, Of(in).State, Down)
		if pairs := size[0] * size[1]; n > 10*pairs {
			t.Errorf("%d ports, %d backends: %d lookups", size[0], size[1], n)
		}
	}
}

// wide returns the input of a service with many ports and backends.
func wide(ports, backends int) Input {
	s := service("web", nil)
	s.Ports = nil
	for i := range ports {
		s.Ports = append(s.Ports, vip.Port{Name: fmt.Sprint("p", i), Protocol: vip.TCP, Port: uint16(1000 + i), TargetPort: uint16(1000 + i)})
	}
	for i := range backends {
		s.Backends = append(s.Backends, vip.Backend{Address: netip.AddrFrom4([4]byte{10, 1, byte(i >> 8), byte(i)}), Weight: 1, State: vip.Ready})
	}
	return statusOf(s, "192.0.2.1")
}

// Uses are those that a comparison of every backend with every endpoint finds.
func TestUsesOfRandomServices(t *testing.T) {
	random := rand.New(rand.NewPCG(seed.Of(t), 0))
	for range 500 {
		in := Input{View: compile.View{Service: &vip.Service{}}}
		addr := func() netip.Addr { return netip.AddrFrom4([4]byte{10, 0, 0, byte(random.IntN(4))}) }
		for range random.IntN(6) {
			in.Service.Backends = append(in.Service.Backends, vip.Backend{Address: addr(), Port: uint16(random.IntN(3))})
		}
		same := func(a, b vip.Backend) int {
			return netip.AddrPortFrom(a.Address, a.Port).Compare(netip.AddrPortFrom(b.Address, b.Port))
		}
		slices.SortFunc(in.Service.Backends, same)
		in.Service.Backends = slices.CompactFunc(in.Service.Backends, func(a, b vip.Backend) bool { return same(a, b) == 0 })
		for range random.IntN(4) {
			f := vip.Frontend{}
			for range random.IntN(8) {
				e := vip.Endpoint{Addr: netip.AddrPortFrom(addr(), uint16(random.IntN(3))), Weight: uint16(random.IntN(2)), Step: uint8(random.IntN(vip.SlowStartSteps))}
				if random.IntN(2) == 0 {
					e.Leaving = vip.InstantOf(noon).Add(1 + time.Duration(random.Int64N(int64(vip.MaxDrainTimeout))))
				}
				f.Backends = append(f.Backends, e)
			}
			slices.SortFunc(f.Backends, vip.CompareEndpoints)
			f.Backends = slices.CompactFunc(f.Backends, func(a, b vip.Endpoint) bool { return a.Addr == b.Addr })
			in.Frontends = append(in.Frontends, Frontend{Frontend: f})
		}
		if got, want := UsesOf(&in), naiveUses(&in); !slices.Equal(got.Backends, want.Backends) || !slices.Equal(got.Removed, want.Removed) {
			t.Fatalf("%+v, want %+v, of %+v", got, want, in.Service.Backends)
		}
	}
}

func naiveUses(in *Input) Uses {
	out := Uses{Backends: make([]Use, len(in.Service.Backends))}
	for i := range in.Frontends {
		for _, e := range in.Frontends[i].Frontend.Backends {
			listed := false
			for j, b := range in.Service.Backends {
				if b.Address == e.Addr.Addr() && (b.Port == 0 || b.Port == e.Addr.Port()) {
					out.Backends[j].add(&e)
					listed = true
				}
			}
			j := slices.IndexFunc(out.Removed, func(r vip.Endpoint) bool { return r.Addr == e.Addr })
			switch {
			case listed || !e.IsLeaving():
			case j < 0:
				out.Removed = append(out.Removed, e)
			case e.Leaving.After(out.Removed[j].Leaving):
				out.Removed[j].Leaving = e.Leaving
			}
		}
	}
	return out
}
