package fleetstore

import (
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/ironvip/ironvip/fleet"
	"github.com/ironvip/ironvip/fleet/kv"
	"github.com/ironvip/ironvip/internal/table"
	"github.com/ironvip/ironvip/ipam"
	"github.com/ironvip/ironvip/ipam/allocator"
	"github.com/ironvip/ironvip/test/bubble"
	"github.com/ironvip/ironvip/test/expect"
	"github.com/ironvip/ironvip/test/fleettest"
	"github.com/ironvip/ironvip/test/must"
	"github.com/ironvip/ironvip/test/scope"
	"github.com/ironvip/ironvip/vip"
)

// registrar is a host that registers services in a folder beside the leases.
type registrar struct {
	*fleettest.Host
	registrar Registrar
}

const registered = "services"

// register starts a host with an allocator that knows all services.
func register(t *testing.T, m *fleettest.Memory, name string, pool string, leadership allocator.Leadership) *registrar {
	t.Helper()
	var store *Store
	h := m.Start(t, name, append(Folders(), registered), func(tree *fleet.Tree) { store = New(tree) })
	cfg := ipam.Config{ReuseDelay: time.Minute, OrphanGrace: time.Hour,
		Pools: poolOf(pool)}
	a, err := allocator.New(t.Context(), store, cfg, allocator.Options{Clock: &table.Clock{}, Node: name, Leadership: leadership, OwnName: func() bool { return true }})
	if err != nil {
		t.Fatal(err)
	}
	a.Settled(func(vip.ServiceKey) bool { return true })
	scope.Go(t, a.Run)
	return &registrar{h, Registrar{a, store}}
}

// batch registers a service, provided that its registration is of that index.
func batch(name string, index uint64) *fleet.Batch {
	return &fleet.Batch{Writes: []fleet.Write{{Folder: registered, Key: "default/" + name, Index: index, Value: []byte("it")}}}
}

// together registers a service with its leases.
func (r *registrar) together(t *testing.T, name string) (done bool, b *fleet.Batch) {
	t.Helper()
	b = batch(name, 0)
	done = must.Get(r.registrar.Commit(t.Context(), plain(name), b))(t)
	return done, b
}

// writes counts the host's transactions in the tree from now on. It has others, such as its heartbeats.
func (r *registrar) writes() *atomic.Int32 {
	var n atomic.Int32
	r.Before(func(c fleettest.Call) error {
		if slices.ContainsFunc(c.Ops, func(op kv.Op) bool { return strings.HasPrefix(op.Key, prefix) }) {
			n.Add(1)
		}
		return nil
	})
	return &n
}

// held returns the addresses that a service holds according to the memory.
func held(t *testing.T, m *fleettest.Memory, name string) (out []string) {
	t.Helper()
	for _, p := range m.Pairs(prefix + leasesFolder + "/") {
		var kept struct{ Value ipam.Lease }
		must.Succeed(t, json.Unmarshal(p.Value, &kept))
		if kept.Value.HeldBy(plain(name).Key) >= 0 {
			out = append(out, kept.Value.Resource.String())
		}
	}
	return out
}

// follower is never the leader. A host that registers a service allocates for it all the same.
type follower struct{}

func (follower) Mine() bool               { return false }
func (follower) Elected() string          { return "another" }
func (follower) Changed() <-chan struct{} { return nil }

// A service and its lease are visible at the same time, after one transaction, and Assign finds them.
func TestServiceAndLeaseTogether(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		m := fleettest.NewMemory()
		one, two := register(t, m, "one", "192.0.2.0/29", follower{}), register(t, m, "two", "192.0.2.0/29", follower{})
		writes := one.writes()
		done, b := one.together(t, "web")
		if !done || b.Err != nil || len(b.Indexes) != 1 {
			t.Fatalf("%v, %+v", done, b)
		}
		expect.Equal(t, writes.Load(), 1, "transactions")
		for _, p := range m.Pairs(prefix) {
			if p.Key != prefix+".fleet" && p.Index != b.Indexes[0] {
				t.Errorf("%s is of %d, the service of %d", p.Key, p.Index, b.Indexes[0])
			}
		}
		synctest.Wait()
		for _, h := range []*registrar{one, two} {
			writes := h.writes()
			got := h.registrar.Allocator.Assign(t.Context(), []*vip.Service{new(plain("web"))})[0]
			if fmt.Sprint(got.VIPs) != "[192.0.2.1]" || len(got.Problems) > 0 || writes.Load() != 0 {
				t.Errorf("%+v after %d transactions", got, writes.Load())
			}
		}
		// One that is there already needs nothing, and is nobody's to join.
		if done, b := one.together(t, "web"); done || b.Err != nil {
			t.Errorf("again: %v, %v", done, b.Err)
		}
	})
}

// A refused registration leaves no lease, and the next service gets the address.
func TestRefusedServiceLeavesNoLease(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		m := fleettest.NewMemory()
		one := register(t, m, "one", "192.0.2.0/29", follower{})
		m.Put(prefix+registered+"/default/web", "another's")
		done, b := one.together(t, "web")
		conflict := (*fleet.ConflictError)(nil)
		if !done || !errors.As(b.Err, &conflict) || len(conflict.Writes) != 1 || conflict.Writes[0].Folder != registered {
			t.Errorf("%v, %v", done, b.Err)
		}
		got := held(t, m, "web")
		expect.True(t, got == nil, "a lease is left: %v", got)
		if done, _ := one.together(t, "next"); !done || fmt.Sprint(held(t, m, "next")) != "[192.0.2.1]" {
			t.Errorf("%v: the next holds %v", done, held(t, m, "next"))
		}
	})
}

// If another host takes the address meanwhile, the caller has to write the registration alone.
func TestTakenAddressLeavesTheRegistrationAlone(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		m := fleettest.NewMemory()
		one, two := register(t, m, "one", "192.0.2.0/29", follower{}), register(t, m, "two", "192.0.2.0/29", follower{})
		once := sync.OnceFunc(func() {
			if done, _ := one.together(t, "first"); !done {
				t.Error("the first")
			}
		})
		two.Before(func(c fleettest.Call) error {
			if c.Method == "Txn" {
				once()
			}
			return nil
		})
		done, b := two.together(t, "second")
		two.Before(nil)
		if done || b.Err != nil {
			t.Errorf("%v, %v", done, b.Err)
		}
		_, there := m.Get(prefix + registered + "/default/second")
		expect.False(t, there, "it is registered")
		synctest.Wait()
		if done, _ := two.together(t, "second"); !done {
			t.Error("not done once the host has received it")
		}
		expect.Equal(t, fmt.Sprint(held(t, m, "first"), held(t, m, "second")), "[192.0.2.1] [192.0.2.2]", "they hold")
	})
}

// A service that needs more than new leases is left to Assign.
func TestWhatIsLeftToAssign(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		m := fleettest.NewMemory()
		one := register(t, m, "one", "192.0.2.0/30", follower{})
		writes := one.writes()
		for _, s := range []vip.Service{
			{Key: plain("pool").Key, Source: "rest", Settings: vip.Settings{Pool: "none"}},
			{Key: plain("half").Key, Source: "rest", Settings: vip.Settings{Families: vip.FamiliesOf(vip.IPv4, vip.IPv6)}},
		} {
			done, err := one.registrar.Commit(t.Context(), s, batch(s.Key.Name, 0))
			if done || err != nil || held(t, m, s.Key.Name) != nil {
				t.Errorf("%s: %v, %v, holds %v", s.Key, done, err, held(t, m, s.Key.Name))
			}
		}
		expect.Equal(t, writes.Load(), 0, "transactions")
		for i := range 2 {
			if done, _ := one.together(t, fmt.Sprint("s", i)); !done {
				t.Errorf("service %d", i) // what was planned in vain is free
			}
		}
		if done, b := one.together(t, "full"); done || b.Err != nil {
			t.Errorf("of a full pool: %v, %v", done, b.Err)
		}
	})
}

// After a lost answer there are both the registration and the lease, or neither.
func TestLostAnswerOfARegistration(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		m := fleettest.NewMemory()
		one := register(t, m, "one", "192.0.2.0/24", follower{})
		for i := range 20 {
			one.LoseAnswers(i % 5)
			name := fmt.Sprint("s", i)
			b := batch(name, 0)
			done, err := one.registrar.Commit(t.Context(), plain(name), b)
			one.LoseAnswers(0)
			time.Sleep(time.Minute)
			_, there := m.Get(prefix + registered + "/default/" + name)
			if leased := held(t, m, name) != nil; leased != there || err == nil && (!done || b.Err != nil || !there) {
				t.Errorf("%d: %v, %v, %v: registered %v, leased %v", i, done, err, b.Err, there, leased)
			}
		}
	})
}
