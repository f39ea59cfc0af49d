package share

import (
	"net/netip"
	"slices"
	"strconv"
	"testing"
	"time"

	"github.com/ironvip/ironvip/health/probe"
	"github.com/ironvip/ironvip/test/expect"
)

// A host whose own paths are broken finds that its probes fail for targets that the fleet reaches. The
// others find nothing.
func TestDisputeOfAHostWithoutNetwork(t *testing.T) {
	inWorld(t, func(t *testing.T, w *world) {
		targets := targetsOf(60)
		w.fleet(20, ProbersAuto, targets...)
		h := w.hosts[w.probers(targets[0])[0]]
		own, _ := h.engine.probes()
		w.setCut(h, true, targets...)
		w.sleep(10 * time.Second)
		expect.Equal(t, h.Disputes().Failing, 0, "after 10 s: failing")
		w.sleep(time.Minute)
		for name, other := range w.hosts {
			d := other.Disputes()
			if want := map[bool]int{true: own}[other == h]; d.Failing != want || len(d.Passing)+len(d.By) != 0 {
				t.Errorf("%s of %s without network, which probes %d targets: %+v", name, h.name, own, d)
			}
		}
		if d := h.Disputes(); d.Probes != own {
			t.Errorf("%+v of %d targets", d, own)
		}
		w.setCut(h, false, targets...)
		w.sleep(time.Minute)
		expect.Equal(t, h.Disputes().Failing, 0, "repaired: failing")
	})
}

// Two probers without a path decide wrongly for their group. The third one finds that, and so does
// the host of a backend.
func TestDisputeOfAWrongVerdict(t *testing.T) {
	inWorld(t, func(t *testing.T, w *world) {
		targets := targetsOf(60)
		w.fleet(20, ProbersAuto, targets...)
		probers := w.probers(targets[0])
		var of []probe.Target // those of the same group
		var addresses []netip.AddrPort
		for _, one := range targets {
			if groupOf(Key(one)) == groupOf(Key(targets[0])) {
				of, addresses = append(of, one), append(addresses, one.Addr)
			}
		}
		i := slices.IndexFunc(w.names(), func(name string) bool { return !slices.Contains(probers, name) })
		local := w.hosts[w.names()[i]]
		local.Start(targets[0], probe.Use{Namespace: "default", Local: true})
		w.sleep(10 * time.Second)
		w.setCut(w.hosts[probers[0]], true, of...)
		w.setCut(w.hosts[probers[1]], true, of...)
		w.sleep(2 * time.Minute)
		bad := slices.Sorted(slices.Values(probers[:2]))
		for name, h := range w.hosts {
			var want []netip.AddrPort
			switch {
			case name == probers[2]:
				want = addresses
			case h == local:
				want = addresses[:1]
			}
			d := h.Disputes()
			if d.Failing != 0 || !slices.Equal(d.Passing, want) || slices.ContainsFunc(d.By, func(by string) bool { return !slices.Contains(bad, by) }) || (len(d.By) > 0) != (want != nil) {
				t.Errorf("%s, with wrong verdicts of %v: %+v, want %v", name, bad, d, want)
			}
		}
		w.hosts[probers[2]].tree.SetDown(true)
		w.sleep(time.Minute)
		expect.Empty(t, w.hosts[probers[2]].Disputes().Passing, "without Consul")
		w.hosts[probers[2]].tree.SetDown(false)
		w.setCut(w.hosts[probers[0]], false, of...)
		w.setCut(w.hosts[probers[1]], false, of...)
		w.sleep(2 * time.Minute)
		for name, h := range w.hosts {
			if d := h.Disputes(); d.Failing+len(d.Passing) != 0 {
				t.Errorf("%s, repaired: %+v", name, d)
			}
		}
	})
}

// The status asks often, so what nothing disputes costs nothing.
func TestDisputesVisitsNoOtherTarget(t *testing.T) {
	s := New(Options{})
	s.mode.decided = true
	for i := range 100_000 {
		s.items[strconv.Itoa(i)] = &item{probing: 1}
	}
	walk := fastest(func() {
		for _, it := range s.items {
			_ = it.disputes()
		}
	})
	if took := fastest(func() { s.Disputes() }); took > walk/10 {
		t.Errorf("%s; a walk over all targets takes %s", took, walk)
	}
}

func fastest(do func()) time.Duration {
	best := time.Hour
	for range 10 {
		began := time.Now()
		do()
		best = min(best, time.Since(began))
	}
	return best
}
