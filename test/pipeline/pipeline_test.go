// Package pipeline tests the whole path of a change, from a source's row to a dataplane, with every
// real stage and with a recording Target instead of a dataplane. It measures the cost of one
// change, and checks that it is the same in a large fleet.
package pipeline

import (
	"net/netip"
	"slices"
	"strconv"
	"testing"
	"time"

	"github.com/ironvip/ironvip/internal/table"
	"github.com/ironvip/ironvip/ipam"
	"github.com/ironvip/ironvip/ipam/allocator"
	"github.com/ironvip/ironvip/ipam/memstore"
	"github.com/ironvip/ironvip/pipeline"
	"github.com/ironvip/ironvip/test/must"
	"github.com/ironvip/ironvip/test/reconciletest"
	"github.com/ironvip/ironvip/test/scope"
	"github.com/ironvip/ironvip/vip"
)

// line is the pipeline with a number of services in it.
type line struct {
	*pipeline.Pipeline
	target   *reconciletest.Plane
	complete func() // marks the services as complete
	end      func() // ends every stage; later calls have no effect
	weight   uint32
}

// newLine starts every stage, adds n services of two backends and waits until the Target has them.
func newLine(t testing.TB, n int) *line {
	t.Helper()
	return newLineOf(t, n, (*line).service)
}

// newLineOf is newLine with services of the given function.
func newLineOf(t testing.TB, n int, service func(l *line, i int) vip.Service) *line {
	t.Helper()
	l := newStages(t, table.NewClock(time.Now()))
	for i := range n {
		s := service(l, i)
		l.Services.Set(s)
	}
	l.complete()
	<-l.Loop.Synced()
	got := l.target.Len()
	must.Equal(t, got, n, "frontends of the target")
	return l
}

// newStages starts every stage. They wait until the services are complete.
func newStages(t testing.TB, clock *table.Clock) *line {
	t.Helper()
	allocator, err := allocator.New(t.Context(), memstore.New(), ipam.Config{
		Pools: []ipam.Pool{{Name: "main", CIDRs: []netip.Prefix{netip.MustParsePrefix("10.0.0.0/12")}, AutoAssign: true}},
	}, allocator.Options{Clock: clock})
	if err != nil {
		t.Fatal(err)
	}
	target := reconciletest.NewPlane()
	l := &line{target: target, Pipeline: pipeline.New(pipeline.Options{Tables: pipeline.NewTables(clock), Allocator: allocator, Plane: target, Resync: -1})}
	l.complete = l.Services.Initializer()
	l.end = scope.Go(t, l.Run)
	return l
}

func (l *line) service(i int) vip.Service {
	l.weight++
	backend := func(last byte, weight uint32) vip.Backend {
		return vip.Backend{Address: netip.AddrFrom4([4]byte{172, 16, byte(i), last}), Weight: weight, State: vip.Ready}
	}
	return serviceOf(i, []vip.Backend{backend(1, 1), backend(2, 1+l.weight%vip.MaxWeight)})
}

func serviceOf(i int, backends []vip.Backend) vip.Service {
	return vip.Service{
		Key: vip.ServiceKey{Namespace: vip.DefaultNamespace, Name: "s" + strconv.Itoa(i)}, Source: "test",
		Ports:    []vip.Port{{Name: "http", Protocol: vip.TCP, Port: 80, TargetPort: 8080}},
		Backends: backends,
		Settings: vip.Settings{
			Scheduler: vip.WeightedRoundRobin, Forward: vip.ForwardNAT, InternalTraffic: vip.Cluster, ExternalTraffic: vip.Cluster,
			Masquerade: vip.MasqueradeAuto, DrainTimeout: vip.DefaultDrainTimeout,
		},
	}
}

// change alters the weight of one backend and waits until the Target has it.
func (l *line) change(t testing.TB, i int) {
	s := l.service(i)
	rev := l.Services.Set(s)
	problems, err := l.Progress().WaitApplied(t.Context(), s.Key, s.Source, rev)
	if err != nil || len(problems) > 0 {
		t.Fatalf("change of %s: %v %v", s.Key, err, problems)
	}
}

// One changed backend costs one update and no read of the dataplane, and no more allocations among
// 5,000 services than among ten.
func TestOneChangeCostsTheSameInALargeFleet(t *testing.T) {
	cost := func(n int) float64 {
		l := newLine(t, n)
		_, updates, readings := l.target.Counts()
		const runs = 100
		allocs := testing.AllocsPerRun(runs, func() { l.change(t, n/2) })
		_, updatesAfter, readingsAfter := l.target.Counts()
		if got := updatesAfter - updates; got != runs+1 { // AllocsPerRun runs once more, to warm up
			t.Errorf("%d changes among %d services cost %d updates", runs+1, n, got)
		}
		if got := readingsAfter - readings; got != 0 {
			t.Errorf("%d changes among %d services cost %d readings of the dataplane", runs+1, n, got)
		}
		return allocs
	}
	if small, large := cost(10), cost(5_000); large > small*1.5 {
		t.Errorf("%v allocations a change among 10 services, %v among 5,000", small, large)
	}
}

// BenchmarkOneChange is a row of docs/performance.md: the cost of one change among many services, in
// units of its cost among few. The two alternate within one run, so that noise of the machine
// affects both, and the medians of the rounds are compared. In "thousand" the same number of
// services changes in both, spread over the table: it shows the cost of the number of other
// services. In the other cases all services change, which also shows the effect of the processor's
// caches.
func BenchmarkOneChange(b *testing.B) {
	any := func(n, turn int) int { return turn * 7919 % n }
	lines := map[int]*line{}
	for _, c := range []struct {
		name         string
		small, large int
		pick         func(n, turn int) int // chooses the service of a turn among n
	}{
		{"10-5000", 10, 5_000, any},
		{"thousand", 1_000, 100_000, func(n, turn int) int { return turn % 1_000 * (n / 1_000) }},
		{"1000-100000", 1_000, 100_000, any},
	} {
		for _, n := range []int{c.small, c.large} {
			if lines[n] == nil {
				lines[n] = newLine(b, n)
			}
		}
		b.Run(c.name, func(b *testing.B) { compareChanges(b, lines[c.small], lines[c.large], c.pick) })
	}
}

// compareChanges reports the cost of a change in two lines, which alternate.
func compareChanges(b *testing.B, small, large *line, pick func(n, turn int) int) {
	const changes = 500 // a round
	var ofSmall, ofLarge []float64
	turn := 0
	for b.Loop() {
		round := func(l *line) float64 {
			start := time.Now()
			for k := range changes {
				l.change(b, pick(l.Services.Len(), turn+k))
			}
			return float64(time.Since(start).Nanoseconds()) / changes
		}
		ofSmall, ofLarge = append(ofSmall, round(small)), append(ofLarge, round(large))
		turn += changes
	}
	b.ReportMetric(median(ofSmall), "ns/small")
	b.ReportMetric(median(ofLarge), "ns/large")
	b.ReportMetric(median(ofLarge)/median(ofSmall), "ratio")
	b.ReportMetric(0, "ns/op")
}

func median(all []float64) float64 {
	slices.Sort(all)
	return all[len(all)/2]
}
