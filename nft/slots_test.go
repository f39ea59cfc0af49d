package nft

import (
	"math"
	"net/netip"
	"slices"
	"testing"

	"pgregory.net/rapid"

	"github.com/ironvip/ironvip/plane/kernel/slots"
	"github.com/ironvip/ironvip/test/expect"
	"github.com/ironvip/ironvip/test/must"
	"github.com/ironvip/ironvip/vip"
)

func backendAt(i int) netip.AddrPort {
	return netip.AddrPortFrom(netip.AddrFrom4([4]byte{10, 1, byte(i >> 8), byte(i)}), 80)
}

func drawFrontend(t *rapid.T, scheduler vip.Scheduler) *vip.Frontend {
	f := &vip.Frontend{Key: vip.FrontendKey{Addr: netip.MustParseAddr("10.96.0.1"), Port: 80, Protocol: vip.TCP}, Kind: vip.OnVIP, Scheduler: scheduler}
	for i := range 12 {
		if rapid.Bool().Draw(t, "there") {
			f.Backends = append(f.Backends, vip.Endpoint{Addr: backendAt(i), Weight: rapid.SampledFrom([]uint16{0, 1, 2, 3, 10, 65535}).Draw(t, "weight")})
		}
	}
	return f
}

// A service that chooses at random has the shares of its weights, and keeps slots that need not
// change. Each service is read as the frontend that it was made of.
func TestServiceStandsForItsFrontend(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		var n numbers
		var old *service
		target := &Target{}
		for range 3 {
			f := drawFrontend(t, rapid.SampledFrom(Schedulers()).Draw(t, "scheduler"))
			if f.Affinity = 0; rapid.Bool().Draw(t, "affinity") {
				f.Affinity = 1e9
			}
			f.SchedulerPort = rapid.Bool().Draw(t, "port")
			s := desired(f, old, &n)
			if got := s.frontend(); !target.Same(&got, f) || !s.whole() {
				t.Fatalf("%+v is read as %+v", f, got)
			}
			counts := map[netip.AddrPort]int{}
			for _, a := range s.slots {
				counts[a]++
			}
			if s.class.choice == chooseAny && f.Scheduler != vip.WeightedFailover {
				shares, _ := slots.SharesOf(nil, f)
				for _, x := range shares {
					must.Equal(t, counts[x.Addr], x.N, "%s has %d slots, its share is %d", x.Addr, counts[x.Addr], x.N)
				}
			}
			old = s
		}
	})
}

// One backend less moves one slot.
func TestRemovalMovesOneSlot(t *testing.T) {
	f := &vip.Frontend{Scheduler: vip.RoundRobin}
	for i := range 10 {
		f.Backends = append(f.Backends, vip.Endpoint{Addr: backendAt(i), Weight: 1})
	}
	shares, _ := slots.SharesOf(nil, f)
	before := slots.ByShare(nil, shares)
	f.Backends = slices.Delete(f.Backends, 3, 4)
	shares, _ = slots.SharesOf(nil, f)
	after := slots.ByShare(before, shares)
	changed := 0
	for i := range after {
		if after[i] != before[i] {
			changed++
		}
	}
	if len(after) != 9 || changed != 1 {
		t.Errorf("%d slots, %d changed: %v, before %v", len(after), changed, after, before)
	}
}

// Two groups of backends share 90 to 10, however many backends they have.
func TestSharesOfManyBackends(t *testing.T) {
	for _, n := range []int{10, 100, 500, 900} {
		f := &vip.Frontend{Scheduler: vip.WeightedRoundRobin}
		of := [2]int{n * 4 / 5, n / 5}
		weights := [2]uint16{uint16(9 * 1000 / of[0]), uint16(1000 / of[1])}
		for i := range n {
			f.Backends = append(f.Backends, vip.Endpoint{Addr: backendAt(i), Weight: weights[i/of[0]]})
		}
		shares, _ := slots.SharesOf(nil, f)
		var has [2]int
		for i, s := range shares {
			has[i/of[0]] += s.N
		}
		want := float64(of[1]*int(weights[1])) / float64(of[0]*int(weights[0])+of[1]*int(weights[1]))
		if got := float64(has[1]) / float64(has[0]+has[1]); math.Abs(got-want) > want/15 {
			t.Errorf("%d backends: a share of %.3f, want %.3f", n, got, want)
		}
	}
}

// With hashes, a backend that leaves moves few clients of the others, and shares follow the weights.
func TestHashSlots(t *testing.T) {
	f := &vip.Frontend{Scheduler: vip.MaglevHash}
	for i := range 10 {
		f.Backends = append(f.Backends, vip.Endpoint{Addr: backendAt(i), Weight: uint16(1 + i%2)})
	}
	before := slots.ByHash(f)
	counts := map[netip.AddrPort]int{}
	for _, a := range before {
		counts[a]++
	}
	for i := range 10 {
		if want := slots.Hashed * (1 + i%2) / 15; counts[backendAt(i)] < want-2 || counts[backendAt(i)] > want+2 {
			t.Errorf("backend %d has %d slots, want about %d", i, counts[backendAt(i)], want)
		}
	}
	gone := f.Backends[4].Addr
	f.Backends = slices.Delete(f.Backends, 4, 5)
	moved := 0
	for i, a := range slots.ByHash(f) {
		if a != before[i] && before[i] != gone {
			moved++
		}
	}
	expect.AtMost(t, moved, slots.Hashed/5, "moved of %d slots", slots.Hashed)
}
