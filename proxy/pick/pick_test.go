package pick

import (
	"fmt"
	"math"
	"math/rand/v2"
	"net/netip"
	"slices"
	"sync"
	"sync/atomic"
	"testing"

	"pgregory.net/rapid"

	"github.com/ironvip/ironvip/plane/kernel/slots"
	"github.com/ironvip/ironvip/test/expect"
	"github.com/ironvip/ironvip/test/must"
	"github.com/ironvip/ironvip/vip"
)

func backends(weights ...uint32) []Backend {
	var out []Backend
	for i, w := range weights {
		addr := netip.AddrFrom4([4]byte{10, 1, byte(i >> 8), byte(i)})
		out = append(out, Backend{Addr: netip.AddrPortFrom(addr, 80), Weight: w, State: &State{Avoid: &atomic.Int64{}}})
	}
	return out
}

func picker(t testing.TB, s vip.Scheduler, b []Backend) Picker {
	t.Helper()
	return must.Get(New(s, b, &atomic.Uint64{}))(t)
}

func clientHash(i int) uint64 {
	return Hash(netip.AddrPortFrom(netip.AddrFrom4([4]byte{172, 16, byte(i >> 8), byte(i)}), 40000), false)
}

// Over any complete cycle, wrr's counts equal the weights, wherever the cycle begins.
func TestWeightedRoundRobinIsExact(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		weights := rapid.SliceOfN(rapid.Uint32Range(1, 40), 1, 9).Draw(t, "weights")
		factor := rapid.Uint32Range(1, 1000).Draw(t, "factor")
		b := backends(weights...)
		var sum, divisor int
		for i := range b {
			b[i].Weight *= factor
			sum += int(weights[i])
			divisor = slots.GCD(divisor, int(weights[i]))
		}
		turn := &atomic.Uint64{}
		turn.Store(rapid.Uint64Range(0, 1<<40).Draw(t, "turn"))
		p := must.Get(New(vip.WeightedRoundRobin, b, turn))(t)
		for range 2 {
			got := make([]int, len(b))
			for range sum / divisor {
				got[p.Pick(0, 0, nil)]++
			}
			for i, n := range got {
				must.Equal(t, n, int(weights[i])/divisor, "weights %v: got %v over a cycle", weights, got)
			}
		}
	})
}

// No backend waits much longer than its fair share. In every run of picks, its count differs from
// its share by only a few.
func TestWeightedRoundRobinIsSmooth(t *testing.T) {
	b := backends(5, 3, 2)
	p := picker(t, vip.WeightedRoundRobin, b)
	got := make([]float64, len(b))
	for n := 1.0; n <= 100; n++ {
		got[p.Pick(0, 0, nil)]++
		for i, x := range got {
			fair := n * float64(b[i].Weight) / 10
			must.AtMost(t, math.Abs(x-fair), 1.5, "after %v picks %v, weights 5:3:2", n, got)
		}
	}
}

func TestRoundRobinIgnoresWeights(t *testing.T) {
	p := picker(t, vip.RoundRobin, backends(100, 1, 7))
	for i := range 30 {
		must.Equal(t, p.Pick(0, 0, nil), i%3, "pick %d", i)
	}
}

// A new Picker with the same turn counter continues where the last one ended.
func TestTurnOutlivesAPicker(t *testing.T) {
	turn := &atomic.Uint64{}
	b := backends(1, 1)
	for i := range 10 {
		p := must.Get(New(vip.RoundRobin, b, turn))(t)
		must.Equal(t, p.Pick(0, 0, nil), i%2, "pick %d", i)
	}
}

func TestLeastConnection(t *testing.T) {
	for _, c := range []struct {
		s       vip.Scheduler
		weights []uint32
		open    []int64
		want    []int // any of
	}{
		{vip.LeastConnection, []uint32{1, 1, 1}, []int64{3, 1, 2}, []int{1}},
		{vip.LeastConnection, []uint32{100, 1, 1}, []int64{3, 1, 2}, []int{1}},
		{vip.LeastConnection, []uint32{1, 1, 1}, []int64{1, 1, 2}, []int{0, 1}},
		{vip.WeightedLeastConnection, []uint32{10, 1, 1}, []int64{9, 1, 2}, []int{0}},
		{vip.WeightedLeastConnection, []uint32{10, 1, 1}, []int64{11, 1, 2}, []int{1}},
		{vip.WeightedLeastConnection, []uint32{65535, 65534}, []int64{1 << 30, 1 << 30}, []int{0}},
	} {
		b := backends(c.weights...)
		for i, n := range c.open {
			b[i].State.Open.Store(n)
		}
		p := picker(t, c.s, b)
		seen := map[int]bool{}
		for range 20 {
			got := p.Pick(0, 0, nil)
			expect.True(t, slices.Contains(c.want, got), "%s weights %v open %v: picked %d", c.s, c.weights, c.open, got)
			seen[got] = true
			b[got].State.Open.Add(-1)
		}
		expect.Equal(t, len(seen), len(c.want), "%s weights %v open %v: only %v of %v", c.s, c.weights, c.open, seen, c.want)
	}
}

// Connections that remain open fill backends by weight, because Pick counts them.
func TestWeightedLeastConnectionFillsByWeight(t *testing.T) {
	b := backends(5, 3, 2)
	p := picker(t, vip.WeightedLeastConnection, b)
	for range 1000 {
		p.Pick(0, 0, nil)
	}
	for i, want := range []int64{500, 300, 200} {
		if got := b[i].State.Open.Load(); got < want-1 || got > want+1 {
			t.Errorf("backend %d has %d, want %d", i, got, want)
		}
	}
}

func TestHashingSharesByWeight(t *testing.T) {
	for _, s := range []vip.Scheduler{vip.SourceHash, vip.MaglevHash} {
		p := picker(t, s, backends(5, 3, 2))
		got := make([]int, 3)
		const n = 60000
		for i := range n {
			got[p.Pick(clientHash(i), 0, nil)]++
		}
		for i, want := range []float64{0.5, 0.3, 0.2} {
			if share := float64(got[i]) / n; math.Abs(share-want) > 0.015 {
				t.Errorf("%s: backend %d has a share of %.3f, want %.1f", s, i, share, want)
			}
		}
	}
}

// Two instances (two hosts) agree on every client's first and second choice.
func TestHashingAgreesAcrossInstances(t *testing.T) {
	for _, s := range []vip.Scheduler{vip.SourceHash, vip.MaglevHash} {
		one, two := picker(t, s, backends(1, 2, 3, 4, 5)), picker(t, s, backends(1, 2, 3, 4, 5))
		for i := range 10000 {
			h := clientHash(i)
			a, b := one.Pick(h, 0, nil), two.Pick(h, 0, nil)
			if a != b || one.Pick(h, 0, nil) != a {
				t.Fatalf("%s: client %d on %d and %d", s, i, a, b)
			}
			if c, d := one.Pick(h, 0, []int{a}), two.Pick(h, 0, []int{a}); c != d || c == a {
				t.Fatalf("%s: client %d falls back to %d and %d from %d", s, i, c, d, a)
			}
		}
	}
}

// The hashes that every version on every host must return. A change moves every client of every
// fleet that is upgraded host by host.
func TestHashesAreStable(t *testing.T) {
	client := netip.MustParseAddrPort("192.0.2.1:1234")
	mapped := netip.MustParseAddrPort("[::ffff:192.0.2.1]:1234")
	six := netip.MustParseAddrPort("[2001:db8::1]:1234")
	for _, c := range []struct {
		client   netip.AddrPort
		withPort bool
		want     uint64
	}{
		{client, false, 0x6fd6e7d6ca69b4a}, {mapped, false, 0x6fd6e7d6ca69b4a}, {client, true, 0x3c4ceb0d684c4f0d},
		{six, false, 0x822f252dfc277023}, {six, true, 0x2587e8cd9af7ec6c},
	} {
		expect.Equal(t, Hash(c.client, c.withPort), c.want, "hash of %v (port: %v)", c.client, c.withPort)
	}
	var got []int
	p := picker(t, vip.MaglevHash, backends(1, 1, 1, 1, 1))
	for i := range 16 {
		got = append(got, p.Pick(clientHash(i), 0, nil))
	}
	expect.SameList(t, got, []int{1, 3, 2, 2, 3, 0, 0, 4, 1, 3, 2, 2, 4, 0, 2, 4}, "maglev")
}

// When one of n backends is removed, its clients spread over the others. Few clients of the others
// move.
func TestMaglevDisruptionIsMinimal(t *testing.T) {
	for _, n := range []int{3, 10, 50} {
		all := backends(slices.Repeat([]uint32{1}, n)...)
		gone := n / 2
		less := slices.Delete(slices.Clone(all), gone, gone+1)
		before, after := picker(t, vip.MaglevHash, all), picker(t, vip.MaglevHash, less)
		const clients = 20000
		moved, heirs := 0, map[netip.AddrPort]int{}
		for i := range clients {
			was, is := all[before.Pick(clientHash(i), 0, nil)].Addr, less[after.Pick(clientHash(i), 0, nil)].Addr
			if was == all[gone].Addr {
				heirs[is]++
			} else if was != is {
				moved++
			}
		}
		if share := float64(moved) / clients; share > 0.05 {
			t.Errorf("%d backends: %.1f %% of the others' clients moved", n, 100*share)
		}
		expect.AtLeast(t, len(heirs), (n-1)*9/10, "%d backends: heirs", n)
	}
}

// Every backend has a slot, however light. The numbers of slots of equal backends differ by little.
func TestMaglevTable(t *testing.T) {
	for _, n := range []int{1, 2, 160, smallTableBackends, smallTableBackends + 1, 5000} {
		m := newMaglev(set{backends(slices.Repeat([]uint32{7}, n)...)})
		counts := make([]int, n)
		for _, i := range m.slots {
			counts[i]++
		}
		if lo, hi := slices.Min(counts), slices.Max(counts); hi-lo > 1 {
			t.Errorf("%d equal backends have between %d and %d of %d slots", n, lo, hi, len(m.slots))
		}
	}
	m := newMaglev(set{backends(65535, 1, 65535)})
	expect.True(t, slices.Contains(m.slots, 1), "the light backend has no slot")
}

func TestAvoidedAndTriedArePassedOver(t *testing.T) {
	for _, s := range Supported() {
		t.Run(s.String(), func(t *testing.T) {
			rapid.Check(t, func(t *rapid.T) {
				n := rapid.IntRange(1, 8).Draw(t, "n")
				b := backends(slices.Repeat([]uint32{3}, n)...)
				var free []int
				var tried []int
				for i := range b {
					switch rapid.IntRange(0, 2).Draw(t, "state") {
					case 0:
						free = append(free, i)
					case 1:
						b[i].State.Avoid.Store(100)
					case 2:
						tried = append(tried, i)
					}
				}
				p, _ := New(s, b, &atomic.Uint64{})
				hash := rapid.Uint64().Draw(t, "hash")
				switch got := p.Pick(hash, 99, tried); {
				case len(free) == 0 && got != -1, len(free) > 0 && !slices.Contains(free, got):
					t.Fatalf("picked %d, free %v", got, free)
				}
				if got := p.Pick(hash, 100, tried); (got == -1) != (len(tried) == n) || slices.Contains(tried, got) {
					t.Fatalf("picked %d of %d with %v tried, none to be avoided any more", got, n, tried)
				}
			})
		})
	}
}

func TestNoBackendsAndTooMany(t *testing.T) {
	for _, s := range Supported() {
		expect.Equal(t, picker(t, s, nil).Pick(1, 0, nil), -1, "%s", s)
	}
	if _, err := New(vip.RoundRobin, make([]Backend, MaxBackends+1), nil); err == nil {
		t.Error("too many accepted")
	}
	if _, err := New(vip.NeverQueue, backends(1), nil); err == nil {
		t.Error("nq accepted")
	}
}

// Concurrent picks lose no turn: wrr is exact over all goroutines together.
func TestConcurrentPicksAreExact(t *testing.T) {
	p := picker(t, vip.WeightedRoundRobin, backends(5, 3, 2))
	var counts [3]atomic.Int64
	var all sync.WaitGroup
	for range 10 {
		all.Go(func() {
			for range 100 {
				counts[p.Pick(0, 0, nil)].Add(1)
			}
		})
	}
	all.Wait()
	if a, b, c := counts[0].Load(), counts[1].Load(), counts[2].Load(); a != 500 || b != 300 || c != 200 {
		t.Error(a, b, c)
	}
}

// A client searches again if other clients chose its least-loaded backend meanwhile. Simultaneous
// clients therefore don't all choose the backend that was idle.
func TestLeastIsLeastWhenItIsCounted(t *testing.T) {
	b := backends(1, 1)
	b[0].State.Open.Store(5)
	s := set{b}
	others := sync.OnceFunc(func() {
		for range 6 {
			s.count(1)
		}
	})
	got := s.least(0, 0, nil, func(i int) uint64 {
		if i == 1 {
			others() // after this client has read that the backend is idle
		}
		return 1
	})
	if x, y := b[0].State.Open.Load(), b[1].State.Open.Load(); got != 0 || x != 6 || y != 6 {
		t.Errorf("picked %d; %d and %d connections", got, x, y)
	}
}

// Every scheduler counts its choice once, and nothing if it finds no backend.
func TestPickCounts(t *testing.T) {
	for _, s := range Supported() {
		b := backends(1, 1, 1)
		p := picker(t, s, b)
		tried := []int{p.Pick(7, 0, nil)}
		tried = append(tried, p.Pick(7, 0, tried))
		tried = append(tried, p.Pick(7, 0, tried))
		expect.Equal(t, p.Pick(7, 0, tried), -1, "%s: picked after all were tried", s)
		for i := range b {
			expect.Equal(t, b[i].State.Open.Load(), 1, "%s: backend %d counts", s, i)
		}
	}
}

func TestPickDoesNotAllocate(t *testing.T) {
	for _, s := range Supported() {
		p := picker(t, s, backends(1, 2, 3))
		tried := []int{1}
		expect.Equal(t, testing.AllocsPerRun(100, func() { p.Pick(7, 0, tried) }), 0, "%s: allocations", s)
	}
}

func BenchmarkPick(b *testing.B) {
	for _, n := range []int{3, 100} {
		weights := make([]uint32, n)
		for i := range weights {
			weights[i] = uint32(1 + i%10)
		}
		for _, s := range Supported() {
			b.Run(fmt.Sprintf("%s/backends=%d", s, n), func(b *testing.B) {
				all := backends(weights...)
				p := picker(b, s, all)
				b.ReportAllocs()
				b.RunParallel(func(pb *testing.PB) {
					hash := rand.Uint64()
					for pb.Next() {
						hash = hash*0x5851f42d4c957f2d + 1
						all[p.Pick(hash, 0, nil)].State.Open.Add(-1)
					}
				})
			})
		}
	}
}
