package fleetstore

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

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

// leaseOps give an address each to n services.
func leaseOps(n int) []ipam.Op {
	ops := make([]ipam.Op, n)
	addr := netip.MustParseAddr("10.0.0.1")
	for i := range ops {
		k := vip.ServiceKey{Namespace: "default", Name: fmt.Sprintf("s%d", i)}
		ops[i] = ipam.Op{
			New: &ipam.Lease{Resource: ipam.Resource{Addr: addr}, Pool: "p", State: ipam.Held, Since: vip.InstantOf(time.Unix(1e9, 0)),
				Holders: []ipam.Holder{{Service: k, Source: "static", Node: "lb1"}}},
			Claim: &ipam.Claim{Service: k},
		}
		addr = addr.Next()
	}
	return ops
}

// If Consul is too slow for a full transaction, transactions get smaller: each commit completes some of
// its ops and reports which. Once Consul is fast again, transactions are full again.
func TestSlowConsulMakesProgress(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		m := fleettest.NewMemory()
		h := start(t, m, "lb1")
		m.SetPace(t, 150*time.Millisecond) // 5 seconds are 33 operations
		pending, stored := leaseOps(300), 0
		for commits := 1; len(pending) > 0; commits++ {
			if commits > 20 {
				t.Fatalf("%d of 300 ops are stored after %d commits", stored, commits-1)
			}
			began := time.Now()
			err := h.Commit(t.Context(), pending)
			expect.AtMost(t, time.Since(began), 45*time.Second, "a commit took")
			var left []ipam.Op
			for _, op := range pending {
				conflict := (*ipam.ConflictError)(nil)
				switch {
				case err != nil || errors.Is(op.Err, ipam.ErrUnavailable):
					left = append(left, op)
				case op.Err == nil || errors.As(op.Err, &conflict) && conflict.Actual != nil && conflict.Actual.Equal(*op.New):
					stored++ // maybe by a transaction that nobody waited for any more
				default:
					t.Fatalf("%s: %v", op.New.Resource, op.Err)
				}
			}
			if err != nil && !errors.Is(err, ipam.ErrUnavailable) {
				t.Fatal(err)
			}
			pending = left
		}
		expect.Equal(t, len(storetest.Leases(t, h.Store)), 300, "leases")
		m.SetPace(t, 0)
		txns := func(n int) int {
			t.Helper()
			var ops []ipam.Op
			for _, op := range leaseOps(300)[:n] {
				ops = append(ops, ipam.Op{Old: op.New})
			}
			before := h.Counts().Txns
			must.Succeed(t, h.Commit(t.Context(), ops))
			return h.Counts().Txns - before
		}
		txns(200) // grows meanwhile
		ops := leaseOps(28 * 4)
		before := h.Counts().Txns
		must.Succeed(t, h.Commit(t.Context(), ops))
		expect.Equal(t, h.Counts().Txns-before, 2, "transactions for 2 times 112 operations of a fast Consul")
	})
}

// seat is a host in a fleet with the leader lb1.
type seat string

func (s seat) Mine() bool             { return s == "lb1" }
func (seat) Elected() string          { return "lb1" }
func (seat) Changed() <-chan struct{} { return nil }

func manyServices(n int) []*vip.Service {
	services := make([]*vip.Service, n)
	for i := range services {
		services[i] = &vip.Service{
			Key:    vip.ServiceKey{Namespace: "default", Name: fmt.Sprintf("s%d", i)},
			Source: "static", Ports: []vip.Port{{Protocol: vip.TCP, Port: 80}},
		}
	}
	return services
}

func bigPool() ipam.Config {
	return ipam.Config{
		Pools:      []ipam.Pool{{Name: "p", CIDRs: []netip.Prefix{netip.MustParsePrefix("10.0.0.0/16")}, AutoAssign: true}},
		ReuseDelay: time.Minute,
	}
}

// sameLeases waits until all hosts know the same n leases, of a service each.
func sameLeases(t *testing.T, allocators []*allocator.Allocator, n int) {
	t.Helper()
	holders := map[vip.ServiceKey]bool{}
	for r, l := range allocators[0].Leases().All() {
		holders[l.Holders[0].Service] = true
		for i, a := range allocators[1:] {
			for wait := time.After(time.Minute); ; {
				changed := a.Leases().Changed()
				if row := a.Leases().Row(r); row != nil && row.Value.Equal(*l) {
					break
				}
				select {
				case <-changed:
					continue
				case <-wait:
					t.Fatalf("lb%d has another lease of %s", i+2, r)
				}
			}
		}
	}
	if got := allocators[0].Leases().Len(); got != n || len(holders) != n {
		t.Errorf("%d leases of %d services, want %d", got, len(holders), n)
	}
}

// If all hosts get many services at once while Consul is slow, the followers leave them to the leader,
// and every service gets its address.
func TestManyServicesOnASlowConsul(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		m := fleettest.NewMemory()
		m.SetPace(t, 60*time.Millisecond) // a full transaction takes 7 seconds
		services := manyServices(300)
		ctx, cancel := context.WithCancel(t.Context())
		var running, asking sync.WaitGroup
		problems := make([]map[string]int, 3)
		allocators := make([]*allocator.Allocator, 3)
		hosts := make([]*host, 3)
		for i := range hosts {
			hosts[i] = start(t, m, fmt.Sprintf("lb%d", i+1))
		}
		for i := range hosts {
			name := fmt.Sprintf("lb%d", i+1)
			a, err := allocator.New(ctx, hosts[i], bigPool(), allocator.Options{Clock: &table.Clock{}, Node: name, Leadership: seat(name)})
			if err != nil {
				t.Fatal(err)
			}
			allocators[i], problems[i] = a, map[string]int{}
			running.Go(func() { _ = a.Run(ctx) })
			asking.Go(func() { ask(a, services, problems[i]) })
		}
		var others atomic.Int32
		for _, h := range hosts[1:] {
			h.Before(func(c fleettest.Call) error {
				if slices.ContainsFunc(c.Ops, func(op kv.Op) bool { return op.Verb == kv.Cas && strings.HasPrefix(op.Key, prefix) }) {
					others.Add(1)
				}
				return nil
			})
		}
		asking.Wait()
		t.Logf("%d transactions by the others; problems %v", others.Load(), problems)
		if n := others.Load(); n > 30 { // with collisions; alone, they would need hundreds
			t.Errorf("the followers wrote %d transactions", n)
		}
		for i, p := range problems[1:] {
			if p[vip.CodeStore] > 0 {
				t.Errorf("lb%d said of %d services that the store can't be written", i+2, p[vip.CodeStore])
			}
		}
		sameLeases(t, allocators, len(services))
		cancel()
		running.Wait()
	})
}

// ask calls Assign until each service has an address, as the pipeline does, and counts the problems
// by code.
func ask(a *allocator.Allocator, services []*vip.Service, problems map[string]int) {
	open := map[vip.ServiceKey]*vip.Service{}
	for _, s := range services {
		open[s.Key] = s
	}
	todo := services
	for len(open) > 0 {
		recalls := a.Recalls()
		var unstored []*vip.Service
		for i, got := range a.Assign(context.Background(), todo) {
			if len(got.Problems) == 0 && len(got.VIPs) == 1 {
				delete(open, got.Asked.Key)
			}
			for _, p := range got.Problems {
				problems[p.Code]++
				if p.Code == vip.CodeStore {
					unstored = append(unstored, todo[i])
				}
			}
		}
		if len(open) == 0 {
			return
		}
		retry := time.NewTimer(time.Hour)
		if len(unstored) > 0 {
			retry.Reset(time.Second)
		}
		todo = unstored
		select {
		case <-recalls:
		case <-retry.C:
		}
		for _, k := range a.TakeRecalls() {
			if s, there := open[k]; there {
				todo = append(todo, s)
			}
		}
	}
}
