package pipeline

import (
	"fmt"
	"log/slog"
	"testing"
	"time"

	"github.com/ironvip/ironvip/fleet"
	"github.com/ironvip/ironvip/fleet/registry"
	"github.com/ironvip/ironvip/internal/table"
	"github.com/ironvip/ironvip/sources"
	"github.com/ironvip/ironvip/sources/rest"
	"github.com/ironvip/ironvip/test/bubble"
	"github.com/ironvip/ironvip/test/expect"
	"github.com/ironvip/ironvip/test/fleettest"
	"github.com/ironvip/ironvip/test/scope"
	"github.com/ironvip/ironvip/vip/spec"
)

// host is one host of a fleet: its copy of the tree, the registrations in it, and every stage behind
// them.
type host struct {
	*line
	*fleettest.Host
	source *rest.Source
}

// join starts a host, and ends it with the test.
func join(t *testing.T, m *fleettest.Memory, name string) *host {
	t.Helper()
	clock := table.NewClock(time.Now())
	h := &host{line: newStages(t, clock)}
	var store *registry.Shared[rest.Record]
	h.Host = m.Run(t, fleet.Options{Node: name, Clock: clock, Folders: []string{rest.Folder}}, func(tree *fleet.Tree) { store = rest.Shared(tree) })
	var err error
	log := slog.New(slog.DiscardHandler)
	if h.source, err = rest.New(rest.Options{Store: store, Services: h.Services, Fleet: h.Tree, Node: name, Log: log}); err != nil {
		t.Fatal(err)
	}
	supervisor := sources.NewSupervisor(sources.Options{Resolver: h.Resolve, Services: h.Services, Statuses: table.New(clock, sources.KeyOfStatus, sources.SameStatus), Log: log})
	supervisor.Add(rest.Type, rest.Type, h.source)
	h.complete()
	stop := scope.Go(t, supervisor.Run)
	t.Cleanup(func() {
		stop()
		h.end()
		h.Host.End()
	})
	return h
}

// put returns a service with three backends, of which one has the given weight.
func put(i int, weight uint32) rest.Put {
	backend := func(last int, weight int) spec.Backend {
		return spec.Backend{Address: fmt.Sprintf("172.16.%d.%d", i%250, last), Port: spec.PortNumber(8080), Weight: &weight}
	}
	return rest.Put{Spec: spec.Service{Name: fmt.Sprint("s", i), Ports: []spec.Port{{Port: spec.PortRange{First: 80}}},
		Backends: []spec.Backend{backend(1, 1), backend(2, 1), backend(3, int(weight))}}}
}

// A change that one host registers costs itself and another host together one update of each
// dataplane, and no more allocations among 1,000 services than among a hundred.
func TestAChangeOfAFleetCostsTheSameAmongManyServices(t *testing.T) {
	cost := func(n int) (allocs float64) {
		bubble.Test(t, func(t *testing.T) {
			m := fleettest.NewMemory()
			hosts := []*host{join(t, m, "one"), join(t, m, "two")}
			time.Sleep(3 * time.Second)
			var all []rest.Put
			for i := range n {
				all = append(all, put(i, 1))
			}
			results, err := hosts[0].source.PutServices(t.Context(), all, false)
			if err != nil || results[0].Err != nil {
				t.Fatal(err, results[0].Err)
			}
			time.Sleep(10 * time.Second)
			count := func() (updates, readings int) {
				for _, h := range hosts {
					if h.target.Len() != n {
						t.Fatalf("the target has %d frontends of %d", h.target.Len(), n)
					}
					_, u, r := h.target.Counts()
					updates, readings = updates+u, readings+r
				}
				return updates, readings
			}
			updates, readings := count()
			const runs = 100
			weight := uint32(1)
			allocs = testing.AllocsPerRun(runs, func() {
				weight++
				if _, err := hosts[0].source.PutServices(t.Context(), []rest.Put{put(n/2, weight)}, false); err != nil {
					t.Fatal(err)
				}
				time.Sleep(20 * time.Millisecond) // hosts read the log at most once a millisecond
			})
			time.Sleep(time.Second)
			updatesAfter, readingsAfter := count()
			if got := updatesAfter - updates; got != 2*(runs+1) { // AllocsPerRun runs once more, to warm up
				t.Errorf("%d changes among %d services cost %d updates of two dataplanes", runs+1, n, got)
			}
			if got := readingsAfter - readings; got != 0 {
				t.Errorf("%d changes among %d services cost %d readings of the dataplanes", runs+1, n, got)
			}
		})
		return allocs
	}
	small, large := cost(100), cost(1_000)
	t.Logf("%v allocations a change among 100 services, %v among 1,000", small, large)
	expect.AtMost(t, large, small*1.2, "%v allocations a change among 100 services, %v among 1,000", small, large)
}
