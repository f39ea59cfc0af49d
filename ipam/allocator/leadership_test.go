package allocator_test

import (
	"context"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/ironvip/ironvip/ipam"
	"github.com/ironvip/ironvip/ipam/allocator"
	"github.com/ironvip/ironvip/ipam/memstore"
	"github.com/ironvip/ironvip/test/bubble"
	"github.com/ironvip/ironvip/test/expect"
	"github.com/ironvip/ironvip/test/must"
	"github.com/ironvip/ironvip/vip"
)

// election is an election that the test decides.
type election struct {
	mu      sync.Mutex
	elected string
	changed chan struct{}
}

func (o *election) elect(name string) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.elected = name
	close(o.changed)
	o.changed = make(chan struct{})
}

// seat is one host's view of an election.
type seat struct {
	*election
	name string
}

func (s seat) Mine() bool { return s.Elected() == s.name }

func (s seat) Elected() string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.elected
}

func (s seat) Changed() <-chan struct{} {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.changed
}

// together runs hosts on one store in a synctest bubble; the first is the leader.
func together(t *testing.T, cfg ipam.Config, test func(o *election, a, b *world)) {
	bubble.Test(t, func(t *testing.T) {
		store, o := memstore.New(), &election{elected: "lb1", changed: make(chan struct{})}
		var hosts []*world
		for _, name := range []string{"lb1", "lb2"} {
			w := &world{t: t, store: store, cfg: cfg}
			hosts = append(hosts, w)
			a, err := allocator.New(context.Background(), store, cfg, allocator.Options{
				Clock: newClock(), Node: name, Leadership: seat{o, name}, Away: func(node string) bool { return node == "gone" },
			})
			if err != nil {
				t.Fatal(err)
			}
			w.a = a
			defer w.start()()
		}
		test(o, hosts[0], hosts[1])
		synctest.Wait()
		hosts[0].durable()
		hosts[1].durable()
	})
}

// The session TTL of a leader, and how long after it another host steps in at the latest.
const (
	stepInAfter  = 15 * time.Second
	stepInJitter = 5 * time.Second
)

func pass(d time.Duration) {
	time.Sleep(d)
	synctest.Wait()
}

func (w *world) recalled(names ...string) {
	w.t.Helper()
	var got []string
	for _, k := range w.a.TakeRecalls() {
		got = append(got, k.Name)
	}
	slices.Sort(got)
	expect.SameList(w.t, got, names, "recalled")
	expect.False(w.t, freed(w.a.Recalls()), "there are recalls after they were taken")
}

// A host that isn't the leader waits for the leader, and answers with what the leader allocated.
func TestFollowerWaitsForTheLeader(t *testing.T) {
	together(t, pools(pool("p", "192.0.2.0/28")), func(_ *election, a, b *world) {
		same(t, "of a follower", b.refused(vip.CodeWaiting, "node lb1", "web", ports(on(tcp(80), 0)), families(vip.IPv4)), "")
	})
	together(t, pools(pool("p", "192.0.2.0/28")), func(_ *election, a, b *world) {
		same(t, "of a follower", b.refused(vip.CodeWaiting, "node lb1", "web"), "")
		same(t, "leases", a.a.Leases().Len(), 0)
		same(t, "of the leader", a.get("web"), "192.0.2.1")
		pass(0)
		b.recalled("web")
		a.recalled()
		same(t, "asked again", b.get("web"), "192.0.2.1")
		pass(10 * time.Second)
		b.recalled()
	})
}

// Only the leader gives away what cools down for another service, even to a service that need not
// wait for the end of cooling.
func TestFollowerWaitsWithAnAssignedAddress(t *testing.T) {
	together(t, pools(pool("p", "192.0.2.0/28")), func(_ *election, a, b *world) {
		a.get("former", assigned, requests("192.0.2.1"))
		pass(0)
		b.refused(vip.CodeAddressTaken, "192.0.2.1 is held by service \"former\"", "web", assigned, requests("192.0.2.1"))
		waiting := b.a.Freed()
		a.release("former")
		pass(0)
		same(t, "freed by another host's release", freed(waiting), true)
		same(t, "of a follower", b.refused(vip.CodeWaiting, "node lb1", "web", assigned, requests("192.0.2.1")), "")
		same(t, "of the leader", a.get("web", assigned, requests("192.0.2.1")), "192.0.2.1")
		pass(0)
		b.recalled("former", "web")
		same(t, "asked again", b.get("web", assigned, requests("192.0.2.1")), "192.0.2.1")
		pass(time.Minute)
		same(t, "after a while", b.get("web", assigned, requests("192.0.2.1")), "192.0.2.1")
	})
}

// If the leader does nothing for the session TTL plus jitter, the others step in.
func TestFollowerStepsIn(t *testing.T) {
	together(t, pools(pool("p", "192.0.2.0/28")), func(o *election, a, b *world) {
		b.refused(vip.CodeWaiting, "node lb1", "web")
		pass(stepInAfter - time.Millisecond)
		b.recalled()
		b.refused(vip.CodeWaiting, "node lb1", "web")
		pass(stepInJitter)
		b.recalled("web")
		same(t, "its own", b.get("web"), "192.0.2.1")

		o.elect("")
		b.refused(vip.CodeWaiting, "no node", "db")
		o.elect("lb2")
		pass(0)
		b.recalled("db")
		same(t, "elected", b.get("db"), "192.0.2.2")
		pass(0)
		a.recalled("db", "web")
	})
}

// A follower keeps what a service holds without the leader: a move waits, and what another host
// released is claimed back soon.
func TestFollowerKeepsWhatIsHeld(t *testing.T) {
	cfg := pools(pool("p", "192.0.2.0/28"), pool("q", "198.51.100.0/28"))
	together(t, cfg, func(_ *election, a, b *world) {
		a.get("web", ports(on(tcp(80), 0)))
		pass(0)
		same(t, "kept", b.get("web", ports(on(tcp(80), 0)), source("rest")), "192.0.2.1")
		same(t, "waits with what it has", b.refused(vip.CodeWaiting, "the service keeps 192.0.2.1", "web", from("q"), ports(on(tcp(80), 0))), "192.0.2.1")

		a.release("web")
		pass(0)
		b.a.TakeRecalls()
		pass(250 * time.Millisecond)
		b.recalled() // it may be gone here, too
		pass(100 * time.Millisecond)
		b.recalled("web")
		same(t, "claimed back", b.get("web", ports(on(tcp(80), 0))), "192.0.2.1")
		l, _ := b.lease("192.0.2.1")
		same(t, "by", l.Holders[0].Node, "lb2")
	})
}

// A follower leaves a release to the leader, then steps in, unless the service is back by then.
func TestFollowerReleasesLate(t *testing.T) {
	together(t, pools(pool("p", "192.0.2.0/28")), func(_ *election, a, b *world) {
		for _, name := range []string{"back", "gone", "taken"} {
			a.get(name)
		}
		pass(0)
		b.release("back", "gone", "taken", "never was")
		a.release("taken")
		pass(stepInAfter - time.Millisecond)
		b.get("back")
		if l, _ := a.lease("192.0.2.2"); l.State != ipam.Held {
			t.Errorf("released at once: %+v", l)
		}
		pass(stepInJitter)
		for addr, want := range map[string]ipam.LeaseState{"192.0.2.1": ipam.Held, "192.0.2.2": ipam.Cooling, "192.0.2.3": ipam.Cooling} {
			if l, _ := a.lease(addr); l.State != want {
				t.Errorf("%s: %+v, want %s", addr, l, want)
			}
		}
	})
}

// The leader ends cooling, and the others do if it doesn't.
func TestFollowerEndsCoolingLate(t *testing.T) {
	for name, after := range map[string]time.Duration{"lb2": 0, "": stepInAfter + stepInJitter} {
		together(t, pools(pool("p", "192.0.2.0/28")), func(o *election, a, b *world) {
			a.get("web")
			a.release("web")
			o.elect(name)
			pass(5*time.Minute - time.Millisecond)
			same(t, "leases before", a.a.Leases().Len(), 1)
			pass(time.Millisecond)
			same(t, "leases when it is over", a.a.Leases().Len(), map[bool]int{true: 0, false: 1}[after == 0])
			pass(after)
			same(t, "leases afterwards", a.a.Leases().Len(), 0)
		})
	}
}

// However short the configured reuse delay is, hosts that share a store have time to claim back what
// another released.
func TestLeastCooling(t *testing.T) {
	cfg := pools(pool("p", "192.0.2.0/28"))
	cfg.ReuseDelay = 0
	together(t, cfg, func(_ *election, a, b *world) {
		a.get("web")
		a.release("web")
		l, _ := a.lease("192.0.2.1")
		same(t, "cools for", time.Until(l.Until.Time()), 10*time.Second)
	})
}

// A host releases the orphans that it wrote. The leader releases those of hosts that are gone for
// good.
func TestSweepOfAFleet(t *testing.T) {
	together(t, pools(pool("p", "192.0.2.0/28")), func(o *election, a, b *world) {
		put := func(n byte, node string) {
			l := ipam.Lease{Resource: ipam.Resource{Addr: addr("192.0.2.0").Next()}, Pool: "p", State: ipam.Held, Since: vip.InstantOf(time.Now())}
			for range n {
				l.Resource.Addr = l.Resource.Addr.Next()
			}
			l.Holders = []ipam.Holder{{Service: key("of-" + node), Source: "rest", Node: node}}
			must.Succeed(t, a.store.Commit(context.Background(), []ipam.Op{{New: &l}}))
		}
		for i, node := range []string{"lb1", "lb2", "lb3", "gone", ""} {
			put(byte(i), node)
		}
		held := func() string {
			var out []string
			for _, l := range a.a.Leases().All() {
				if l.State == ipam.Held {
					out = append(out, l.Holders[0].Service.Name)
				}
			}
			slices.Sort(out)
			return strings.Join(out, " ")
		}
		nothing := func(vip.ServiceKey) bool { return false }
		o.elect("")
		b.a.Settled(nothing)
		pass(7 * time.Minute)
		same(t, "held after the second's sweep", held(), "of- of-gone of-lb1 of-lb3")
		o.elect("lb1")
		a.a.Settled(nothing)
		pass(7 * time.Minute)
		same(t, "held after the leader's", held(), "of-lb3")
	})
}

// While another host may have this one's name, no orphan of that name is released, and its grace
// period does not run.
func TestNoSweepWhileTheNameIsDoubtful(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		var sure atomic.Bool
		store := memstore.New()
		for i, node := range []string{"lb1", ""} {
			l := ipam.Lease{Resource: ipam.Resource{Addr: netip.AddrFrom4([4]byte{192, 0, 2, byte(1 + i)})}, Pool: "p", State: ipam.Held, Since: vip.InstantOf(time.Now()),
				Holders: []ipam.Holder{{Service: key("of-" + node), Source: "rest", Node: node}}}
			must.Succeed(t, store.Commit(t.Context(), []ipam.Op{{New: &l}}))
		}
		w := &world{t: t, store: store, cfg: pools(pool("p", "192.0.2.0/28"))}
		w.with(store, allocator.Options{Node: "lb1", OwnName: sure.Load})
		defer w.start()()
		w.a.Settled(func(vip.ServiceKey) bool { return false })
		held := func() (n int) {
			for _, l := range w.a.Leases().All() {
				if l.State == ipam.Held {
					n++
				}
			}
			return n
		}
		pass(20 * time.Minute)
		same(t, "held while the name is doubtful", held(), 1)
		sure.Store(true)
		pass(4 * time.Minute)
		sure.Store(false)
		pass(2 * time.Minute)
		sure.Store(true)
		pass(4 * time.Minute)
		same(t, "held before the name was sure for the grace time", held(), 1)
		pass(3 * time.Minute)
		same(t, "held after it", held(), 0)
	})
}

// Hosts with different definitions of one service don't wear out the store.
func TestHostsThatDisagree(t *testing.T) {
	cfg := pools(pool("p", "192.0.2.0/28", "2001:db8::/120"), pool("q", "198.51.100.0/28"))
	for name, wants := range map[string][2]vip.Service{
		"families": {service("web", families(vip.IPv4)), service("web")},
		"pools":    {service("web", from("p"), families(vip.IPv4)), service("web", from("q"), families(vip.IPv4))},
		"sources":  {service("web"), service("web", source("rest"))},
		"shares":   {service("web", share("k", tcp(80))), service("web", share("", tcp(81)))},
	} {
		t.Run(name, func(t *testing.T) {
			together(t, cfg, func(o *election, a, b *world) {
				o.elect("lb1")
				ctx, cancel := context.WithCancel(context.Background())
				var asking sync.WaitGroup
				for i, w := range []*world{a, b} {
					asking.Go(func() {
						for {
							recalls, some := w.a.Recalls(), w.a.Freed()
							w.a.TakeRecalls()
							w.assign(wants[i])
							select {
							case <-recalls:
							case <-some:
							case <-ctx.Done():
								return
							}
						}
					})
				}
				pass(2 * time.Hour)
				cancel()
				asking.Wait()
				expect.AtMost(t, a.store.Commits(), 100, "commits in 2 hours")
			})
		})
	}
}

// Leases that vanish from the store, as after a restore of Consul, are claimed again as they were.
func TestVanishedLeaseIsClaimedAgain(t *testing.T) {
	together(t, pools(pool("p", "192.0.2.0/28")), func(o *election, a, b *world) {
		a.get("first")
		a.get("web", ports(on(tcp(80), 0)))
		a.release("first")
		pass(6 * time.Minute)
		a.a.TakeRecalls()
		b.a.TakeRecalls()
		var ops []ipam.Op
		for _, l := range a.a.Leases().All() {
			ops = append(ops, ipam.Op{Old: l})
		}
		must.Succeed(t, a.store.Commit(context.Background(), ops))
		pass(0)
		b.recalled("web")
		got := b.assign(service("web", ports(on(tcp(80), 0))))[0]
		if vips(got) != "192.0.2.2" || nodePorts(got)["80/tcp"] != 30086 || len(got.Problems) > 0 {
			t.Errorf("%+v", got)
		}
	})
}

// A resource that the store can't read is not allocated, and a request for it says why.
func TestBlockedResources(t *testing.T) {
	together(t, pools(pool("p", "192.0.2.0/28")), func(_ *election, a, _ *world) {
		blocked := &blocking{Store: a.store, resources: []ipam.Resource{{Addr: addr("192.0.2.1")}, {NodePort: 30086, Protocol: vip.TCP}}}
		w := &world{t: a.t, store: a.store, cfg: a.cfg}
		w.with(blocked, allocator.Options{Node: "lb3"})
		got := w.assign(service("web", ports(on(tcp(80), 0))))[0]
		if vips(got) != "192.0.2.2" || nodePorts(got)["80/tcp"] != 30087 {
			t.Errorf("%+v", got)
		}
		w.refused(vip.CodeAddressTaken, "lease of 192.0.2.1 unreadable: junk", "asks", requests("192.0.2.1"))
		w.refused(vip.CodePortTaken, "30086", "asks for a port", requests("192.0.2.3"), ports(on(tcp(80), 30086)))
		if _, ok := w.lease("192.0.2.1"); ok || w.a.Owns(addr("203.0.113.1")) {
			t.Error("a blocked resource shows as a lease")
		}
	})
}

// blocking is a store with something in it that it can't read.
type blocking struct {
	ipam.Store
	resources []ipam.Resource

	mu    sync.Mutex
	added []ipam.LeaseChange
}

// later reports a change together with the next one of the store.
func (s *blocking) later(c ipam.LeaseChange) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.added = append(s.added, c)
}

func (s *blocking) Watch(ctx context.Context) (ipam.Feed, error) {
	for _, r := range s.resources {
		s.later(ipam.LeaseChange{Resource: r, Lease: &ipam.Lease{Resource: r, State: ipam.Blocked, Reason: "junk"}})
	}
	feed, err := s.Store.Watch(ctx)
	return blockingFeed{feed, s}, err
}

type blockingFeed struct {
	ipam.Feed
	store *blocking
}

func (f blockingFeed) TryNext() ([]ipam.LeaseChange, <-chan struct{}) {
	changes, more := f.Feed.TryNext()
	f.store.mu.Lock()
	defer f.store.mu.Unlock()
	changes, f.store.added = append(changes, f.store.added...), nil
	return changes, more
}
