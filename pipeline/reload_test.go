package pipeline

import (
	"fmt"
	"net/netip"
	"testing"
	"testing/synctest"
	"time"

	"github.com/ironvip/ironvip/internal/table"
	"github.com/ironvip/ironvip/ipam"
	"github.com/ironvip/ironvip/ipam/allocator"
	"github.com/ironvip/ironvip/ipam/memstore"
	"github.com/ironvip/ironvip/test/bubble"
	"github.com/ironvip/ironvip/test/expect"
	"github.com/ironvip/ironvip/test/must"
	"github.com/ironvip/ironvip/test/reconciletest"
	"github.com/ironvip/ironvip/test/scope"
	"github.com/ironvip/ironvip/vip"
)

// A new configuration may grant more to any service, and so may a recall, so each is requested again, once, in batches.
// Nothing else does that.
func TestAllAreAskedForAgain(t *testing.T) {
	const n = 1200
	for name, cause := range map[string]func(*fakeAllocator){
		"configured": (*fakeAllocator).reconfigure,
		"recalled": func(a *fakeAllocator) {
			var all []vip.ServiceKey
			for i := range n {
				all = append(all, key(fmt.Sprintf("s%d", i)))
			}
			a.recall(all...)
		},
	} {
		settledWorld(t, n, func(w *world) {
			w.allocator.asked()
			w.changedRows()
			cause(w.allocator)
			w.put()
			seen, asked := map[vip.ServiceKey]bool{}, 0
			for _, batch := range w.allocator.asked() {
				if asked += len(batch); len(batch) > commitBatch {
					t.Errorf("%s: a batch of %d", name, len(batch))
				}
				for _, k := range batch {
					seen[k] = true
				}
			}
			if len(seen) != n || asked != n {
				t.Errorf("%s: asked %d times for %d services of %d", name, asked, len(seen), n)
			}
			if n := w.changedRows(); n != 0 {
				t.Errorf("%s: %d rows changed though nothing else was granted", name, n)
			}
			w.pass(time.Hour)
			got := w.allocator.asked()
			expect.Equal(t, len(got), 0, "%s: asked again: %d batches", name, len(got))
		})
	}
}

// Waiting services are served before the rest, and two reloads at once count as one.
func TestNewConfigurationServesTheWaitingFirst(t *testing.T) {
	settledWorld(t, 700, func(w *world) {
		w.allocator.set(func(a *fakeAllocator) { a.capacity = 700 })
		w.put(service("late", nil))
		w.allocator.asked()
		w.allocator.set(func(a *fakeAllocator) {
			a.capacity++
			close(a.freed)
			a.freed = make(chan struct{})
		})
		w.allocator.reconfigure()
		w.allocator.reconfigure()
		w.put()
		got := w.allocator.asked()
		if len(got) == 0 || got[0][0] != key("late") {
			t.Errorf("asked for %v first", got[0][0])
		}
		var asked int
		for _, batch := range got {
			asked += len(batch)
		}
		expect.AtMost(t, asked, 702, "asked %d times for 701 services", asked)
	})
}

// When a pool gets a range of another family, each of its services gets an address of it at the
// reload, not only at the next restart, and no address changes.
func TestRangeAddedByAReload(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		const n = 1000
		clock := &table.Clock{}
		store := memstore.New()
		cfg := func(cidrs ...string) ipam.Config {
			p := ipam.Pool{Name: "p", AutoAssign: true}
			for _, c := range cidrs {
				p.CIDRs = append(p.CIDRs, netip.MustParsePrefix(c))
			}
			return ipam.Config{Pools: []ipam.Pool{p}}
		}
		allocator := must.Get(allocator.New(t.Context(), store, cfg("10.0.0.0/16"), allocator.Options{Clock: clock}))(t)
		p := New(Options{Tables: NewTables(clock), Allocator: allocator, Plane: reconciletest.NewPlane(), Resync: -1})
		for i := range n {
			s := service(fmt.Sprint("s", i), nil)
			p.Services.Set(s)
		}
		only4 := service("only4", nil, func(s *vip.Service) { s.Families = vip.FamiliesOf(vip.IPv4) })
		p.Services.Set(only4)
		scope.Go(t, p.Run)
		synctest.Wait()

		before := map[vip.ServiceKey]netip.Addr{}
		for k, granted := range p.Allocations.All() {
			must.Len(t, granted.VIPs, 1, "%s has", k)
			before[k] = granted.VIPs[0]
		}
		commits := store.Commits()
		must.Empty(t, allocator.Configure(cfg("10.0.0.0/16", "2001:db8::/64")))
		synctest.Wait()
		for k, granted := range p.Allocations.All() {
			want := 2
			if k == only4.Key {
				want = 1
			}
			if len(granted.VIPs) != want || granted.VIPs[0] != before[k] || len(granted.Problems) > 0 {
				t.Errorf("%s had %s and has %v, with problems %v", k, before[k], granted.VIPs, granted.Problems)
			}
		}
		got := store.Commits() - commits
		expect.AtMost(t, got, 2, "%d commits for %d services", got, n)
	})
}
