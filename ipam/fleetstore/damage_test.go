package fleetstore

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"go4.org/netipx"

	"github.com/ironvip/ironvip/fleet"
	"github.com/ironvip/ironvip/fleet/kv"
	"github.com/ironvip/ironvip/internal/table"
	"github.com/ironvip/ironvip/ipam"
	"github.com/ironvip/ironvip/ipam/allocator"
	"github.com/ironvip/ironvip/test/bubble"
	"github.com/ironvip/ironvip/test/expect"
	"github.com/ironvip/ironvip/test/fleettest"
	"github.com/ironvip/ironvip/test/must"
	"github.com/ironvip/ironvip/test/storetest"
	"github.com/ironvip/ironvip/vip"
)

const prefix = "ironvip/v2/tree/"

func commit(t testing.TB, s *Store, ops ...ipam.Op) []ipam.Op {
	t.Helper()
	must.Succeed(t, s.Commit(context.Background(), ops))
	return ops
}

func claim(l ipam.Lease, holds ...ipam.Resource) ipam.Op {
	return ipam.Op{New: &l, Claim: &ipam.Claim{Service: l.Holders[0].Service, Holds: holds}}
}

// caughtUp waits until a host has all that is in the memory.
func caughtUp(t testing.TB, h *host) {
	t.Helper()
	for end := time.Now().Add(10 * time.Minute); ; { // a full read finds foreign writes
		behind := false
		for _, p := range h.memory.Pairs(prefix) {
			folder, key, _ := strings.Cut(strings.TrimPrefix(p.Key, prefix), "/")
			if !slices.Contains(Folders(), folder) {
				continue // the tree's own
			}
			e, _, ok := h.Folder(folder).Get(key)
			behind = behind || !ok || e.Index != p.Index
		}
		for _, name := range Folders() {
			behind = behind || h.Folder(name).Len() != len(h.memory.Pairs(prefix+name+"/"))
		}
		if !behind {
			return
		}
		must.False(t, time.Now().After(end), "the host doesn't catch up")
		time.Sleep(time.Second)
	}
}

// Foreign values under the keys of leases are reported by key, not allocated, and left alone.
func TestJunk(t *testing.T) {
	good := storetest.Lease(9, "good")
	junk := map[string]string{
		"leases/192.0.2.1":           "another program's",
		"leases/192.0.2.2":           `{"v":1,"value":{"resource":"192.0.2.2","state":"he`,
		"leases/192.0.2.3":           `{"v":7,"value":{}}`,
		"leases/192.0.2.4":           `{"v":1,"value":{"resource":"192.0.2.5","state":"held","holders":[{"service":"default/x","source":"s"}],"since":"2026-01-01T00:00:00Z"}}`,
		"leases/node-port/tcp/30086": "",
		"leases/no/resource":         `{"v":1,"value":{}}`,
		"leases/192.0.2.010":         `{"v":1,"value":{}}`,
		"holdings/default/web":       "another program's",
		"holdings/nothing":           `{"v":1,"value":{"holds":["192.0.2.7"]}}`,
	}
	for name, when := range map[string]bool{"before the start": true, "meanwhile": false} {
		t.Run(name, func(t *testing.T) {
			bubble.Test(t, func(t *testing.T) {
				m := fleettest.NewMemory()
				put := func() {
					for key, value := range junk {
						m.Put(prefix+key, value)
					}
				}
				if when {
					put()
				}
				h := start(t, m, "lb1")
				storetest.Leases(t, h.Store)
				commit(t, h.Store, claim(good))
				put()
				caughtUp(t, h)

				var places []string
				for _, p := range h.Problems() {
					places = append(places, strings.TrimPrefix(p.Place, "consul:"+prefix))
				}
				for key := range junk {
					expect.True(t, slices.Contains(places, key), "%s is not reported among %v", key, places)
				}
				changes := storetest.Leases(t, h.Store)
				var blocked []string
				for _, c := range changes {
					if c.Lease.State == ipam.Blocked {
						blocked = append(blocked, c.Resource.String())
						if !strings.Contains(c.Lease.Reason, prefix+"leases/") {
							t.Errorf("%s: the reason %q names no key", c.Resource, c.Lease.Reason)
						}
					}
				}
				slices.Sort(blocked)
				want := []string{"192.0.2.1", "192.0.2.2", "192.0.2.3", "192.0.2.4", "node port 30086/tcp"}
				expect.SameList(t, blocked, want, "blocked")
				for n := range byte(4) {
					l := storetest.Lease(n+1, "other")
					conflict := (*ipam.ConflictError)(nil)
					if op := commit(t, h.Store, claim(l))[0]; !errors.As(op.Err, &conflict) || conflict.Actual == nil || conflict.Actual.State != ipam.Blocked {
						t.Errorf("claim of %s: %v", l.Resource, op.Err)
					}
				}
				if op := commit(t, h.Store, claim(storetest.Lease(20, "web")))[0]; op.Err == nil || !strings.Contains(op.Err.Error(), "holdings/default/web") {
					t.Errorf("a claim for a service whose holdings can't be read: %v", op.Err)
				}
				a := allocate(t, h.Store, "192.0.2.0/28")
				web := vip.Service{Key: vip.ServiceKey{Namespace: "default", Name: "asks"}, Source: "rest"}
				if got := a.Assign(context.Background(), []*vip.Service{&web})[0]; len(got.VIPs) != 1 || got.VIPs[0] != netip.MustParseAddr("192.0.2.5") {
					t.Errorf("%+v", got)
				}
				for key, value := range junk {
					if got, ok := m.Get(prefix + key); !ok || got != value {
						t.Errorf("%s was overwritten with %q", key, got)
					}
				}
				// A fixed key can be leased.
				m.Delete(prefix + "leases/192.0.2.1")
				caughtUp(t, h)
				if op := commit(t, h.Store, claim(storetest.Lease(1, "other")))[0]; op.Err != nil {
					t.Error(op.Err)
				}
			})
		})
	}
}

// poolOf returns a pool that begins with the second address of a range, and ends before its last one.
func poolOf(cidr string) []ipam.Pool {
	p := netip.MustParsePrefix(cidr)
	r := netipx.RangeOfPrefix(p)
	return []ipam.Pool{{Name: "p", CIDRs: []netip.Prefix{p}, Exclude: []netip.Prefix{netip.PrefixFrom(r.From(), 32), netip.PrefixFrom(r.To(), 32)}, AutoAssign: true}}
}

func allocate(t testing.TB, s ipam.Store, pool string) *allocator.Allocator {
	t.Helper()
	cfg := ipam.Config{Pools: poolOf(pool), ReuseDelay: time.Minute}
	a := must.Get(allocator.New(context.Background(), s, cfg, allocator.Options{Clock: &table.Clock{}, Node: "lb1"}))(t)
	return a
}

// If somebody edits leases or holdings so that they differ, the holdings are rewritten from the leases
// after a while.
func TestHoldingsDifferFromLeases(t *testing.T) {
	for name, damage := range map[string]func(*fleettest.Memory){
		"the lease is gone":     func(m *fleettest.Memory) { m.Delete(prefix + "leases/192.0.2.1") },
		"the holdings are gone": func(m *fleettest.Memory) { m.Delete(prefix + "holdings/default/web") },
		"other holdings": func(m *fleettest.Memory) {
			m.Put(prefix+"holdings/default/web", `{"v":1,"value":{"holds":["192.0.2.77"]}}`)
		},
	} {
		t.Run(name, func(t *testing.T) {
			bubble.Test(t, func(t *testing.T) {
				m := fleettest.NewMemory()
				h := start(t, m, "lb1")
				one, two := storetest.Lease(1, "web"), storetest.Lease(2, "web")
				commit(t, h.Store, claim(one))
				damage(m)
				caughtUp(t, h)
				var holds []ipam.Resource
				want := `{"v":1,"value":{"holds":["192.0.2.2"]}}`
				if name != "the lease is gone" {
					holds = append(holds, one.Resource)
					want = `{"v":1,"value":{"holds":["192.0.2.1","192.0.2.2"]}}`
				}
				fenced := (*ipam.FencedError)(nil)
				if op := commit(t, h.Store, claim(two, holds...))[0]; !errors.As(op.Err, &fenced) || !strings.Contains(fenced.Why, "tree/holdings/default/web") {
					t.Fatalf("at once: %v, want that it is held back, and where", op.Err)
				}
				begin := time.Now()
				if op := commit(t, h.Store, claim(two, holds...))[0]; !errors.As(op.Err, &fenced) || time.Since(begin) > 0 {
					t.Fatalf("again: %v after %s, want no more waiting", op.Err, time.Since(begin))
				}
				time.Sleep(mismatchTimeout)
				if op := commit(t, h.Store, claim(two, holds...))[0]; op.Err != nil {
					t.Fatal(op.Err)
				}
				got, _ := m.Get(prefix + "holdings/default/web")
				expect.Equal(t, got, want, "holdings")
			})
		})
	}
}

// Hosts that allocate for one service at the same time give it one address.
func TestRivalHosts(t *testing.T) {
	m := fleettest.NewMemory()
	var hosts []*host
	for i := range 3 {
		hosts = append(hosts, start(t, m, fmt.Sprintf("lb%d", i+1)))
	}
	const services = 60
	var wg sync.WaitGroup
	for i, h := range hosts {
		wg.Go(func() {
			for k := range services {
				l := storetest.Lease(byte(i*services+k), fmt.Sprintf("s%d", k))
				ops := []ipam.Op{claim(l)}
				expect.Succeed(t, h.Store.Commit(context.Background(), ops))
			}
		})
	}
	wg.Wait()
	held := map[vip.ServiceKey]int{}
	for _, h := range hosts {
		caughtUp(t, h)
		clear(held)
		for _, c := range storetest.Leases(t, h.Store) {
			held[c.Lease.Holders[0].Service]++
		}
		for k, n := range held {
			expect.Equal(t, n, 1, "%s holds %d addresses", k, n)
		}
		expect.Equal(t, len(held), services, "services hold something")
	}
}

// A change costs one transaction, however many leases there are.
func TestCostOfOneLease(t *testing.T) {
	m := fleettest.NewMemory()
	h := start(t, m, "lb1")
	a := allocate(t, h.Store, "10.0.0.0/16")
	var mu sync.Mutex
	var writes []int // operations of each transaction that writes leases
	h.Before(func(c fleettest.Call) error {
		if slices.ContainsFunc(c.Ops, func(op kv.Op) bool { return op.Verb == kv.Cas && strings.HasPrefix(op.Key, prefix) }) {
			mu.Lock()
			defer mu.Unlock()
			writes = append(writes, len(c.Ops))
		}
		return nil
	})
	cost := func(services ...*vip.Service) []int {
		mu.Lock()
		writes = nil
		mu.Unlock()
		for _, got := range a.Assign(context.Background(), services) {
			must.Empty(t, got.Problems)
		}
		mu.Lock()
		defer mu.Unlock()
		return writes
	}
	service := func(name string) *vip.Service {
		return &vip.Service{Key: vip.ServiceKey{Namespace: "default", Name: name}, Source: "rest"}
	}
	want := []int{5} // the lease, the holdings, the head of the log, its slot, and the turn
	few := cost(service("first"))
	expect.SameList(t, few, want, "one lease costs transactions of %v operations", few)
	var many []*vip.Service
	for i := range 200 {
		many = append(many, service(fmt.Sprintf("s%d", i)))
	}
	n := len(cost(many...))
	expect.AtMost(t, n, 5, "200 leases cost %d transactions", n)
	if more := cost(service("last")); len(more) != 1 || more[0] > 5 {
		t.Errorf("one lease beside 200 others costs transactions of %v operations", more)
	}
}

var _ allocator.Leadership = (*fleet.Tree)(nil)
var _ allocator.Leadership = (*fleet.Tree)(nil)
