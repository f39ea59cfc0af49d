package allocator_test

import (
	"context"
	"fmt"
	"strconv"
	"testing"
	"time"

	"github.com/ironvip/ironvip/ipam"
	"github.com/ironvip/ironvip/test/expect"
	"github.com/ironvip/ironvip/test/must"
	"github.com/ironvip/ironvip/vip"
)

// filled returns a world in which n services hold an address.
func filled(t testing.TB, n int) *world {
	w := newWorld(t, pools(pool("p", "10.0.0.0/8"), pool("q", "2001:db8::/64")))
	batch := make([]vip.Service, 0, 1_000)
	for i := range n {
		batch = append(batch, service("s"+strconv.Itoa(i), ports(tcp(80))))
		if len(batch) == cap(batch) || i == n-1 {
			for _, a := range w.assign(batch...) {
				must.Empty(t, a.Problems)
			}
			batch = batch[:0]
		}
	}
	return w
}

// churn adds, repeats and removes one service, and calls the allocator's readers meanwhile.
func churn(w *world, i int) {
	s := service("churn"+strconv.Itoa(i%8), ports(on(tcp(80), 0)))
	w.a.Assign(context.Background(), []*vip.Service{&s})
	w.a.Assign(context.Background(), []*vip.Service{&s})
	w.a.Owns(addr("10.200.0.1"))
	w.a.SourceOf(s.Key)
	w.a.Pools()
	must.Succeed(w.t, w.a.Release(context.Background(), []ipam.Released{{Service: s.Key}})[0])
	w.now = w.now.Add(10 * time.Minute)
	must.Succeed(w.t, w.a.Cool(context.Background()))
}

// The cost of one service doesn't grow with the number of services.
func TestCostOfOneServiceDoesntGrow(t *testing.T) {
	cost := func(n int) float64 {
		w := filled(t, n)
		i := 0
		return testing.AllocsPerRun(200, func() { churn(w, i); i++ })
	}
	few, many := cost(100), cost(5_000)
	t.Logf("%v allocations with 100 services, %v with 5,000", few, many)
	expect.AtMost(t, many, few*1.2, "%v allocations with 100 services, %v with 5,000", few, many)
}

// BenchmarkAssign adds and removes one service, at two sizes.
func BenchmarkAssign(b *testing.B) {
	for _, n := range []int{1_000, 100_000} {
		w := filled(b, n)
		b.Run(fmt.Sprintf("%d held", n), func(b *testing.B) {
			b.ReportAllocs()
			for i := 0; b.Loop(); i++ {
				churn(w, i)
			}
		})
	}
}

// BenchmarkShare gives services of eight shared addresses their addresses, at two numbers of services an address.
func BenchmarkShare(b *testing.B) {
	for _, n := range []int{32, 256} {
		b.Run(fmt.Sprintf("%d an address", n), func(b *testing.B) {
			b.ReportAllocs()
			for b.Loop() {
				b.StopTimer()
				w := newWorld(b, pools(pool("p", "10.0.0.0/8")))
				var batch []vip.Service
				for i := range 8 * n {
					batch = append(batch, service("s"+strconv.Itoa(i), requests(fmt.Sprintf("10.0.0.%d", 1+i/n)), share("k"+strconv.Itoa(i/n), on(tcp(uint16(1000+i%n)), 0))))
				}
				b.StartTimer()
				for _, a := range w.assign(batch...) {
					if len(a.Problems) > 0 {
						b.Fatal(a.Problems)
					}
				}
			}
			b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(b.N*8*n), "ns/service")
		})
	}
}
