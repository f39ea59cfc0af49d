// Package storetest is the suite that every ipam.Store passes. A store's own test calls Run with a
// function that creates a store, and with options for stores that survive a restart or fail on
// demand. Storm runs several hosts on one store.
package storetest

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/ironvip/ironvip/ipam"
	"github.com/ironvip/ironvip/test/bubble"
	"github.com/ironvip/ironvip/vip"
)

// Option adds tests of something that not every store supports.
type Option func(*suite)

// Reopen closes a store and opens it again in the same place.
func Reopen(reopen func(t *testing.T, s ipam.Store) ipam.Store) Option {
	return func(c *suite) { c.reopen = reopen }
}

// Fault makes a store's writes fail until end is called.
func Fault(fault func(t *testing.T, s ipam.Store) (end func())) Option {
	return func(c *suite) { c.fault = fault }
}

// InBubbles runs each test in a bubble: a store that waits for a clock needs no time.
func InBubbles() Option {
	return func(c *suite) { c.bubbles = true }
}

type suite struct {
	bubbles bool
	open    func(t *testing.T) ipam.Store
	reopen  func(t *testing.T, s ipam.Store) ipam.Store
	fault   func(t *testing.T, s ipam.Store) (end func())
}

// Run runs the suite. open returns a new, empty store and closes it in a cleanup of t.
func Run(t *testing.T, open func(t *testing.T) ipam.Store, options ...Option) {
	c := &suite{open: open}
	for _, o := range options {
		o(c)
	}
	run := func(name string, test func(*testing.T)) {
		t.Run(name, func(t *testing.T) {
			if c.bubbles {
				bubble.Test(t, test)
			} else {
				test(t)
			}
		})
	}
	run("claim a free resource", c.claimFree)
	run("claim a taken resource names the holder", c.claimTaken)
	run("compare and set", c.compareAndSet)
	run("remove", c.remove)
	run("ops of one commit see each other", c.sequence)
	run("a claim that is wrong about the service fails", c.claims)
	run("claims of one commit see each other", c.claimSequence)
	run("many join and leave one resource", c.crowd)
	run("a bad op harms no other", c.badOp)
	run("every kind of lease comes back as it was", c.roundTrip)
	run("changes from the start and from later", c.changes)
	run("a change wakes the readers", c.waking)
	run("the context ends reading and writing", c.context)
	run("one of many claimers wins", c.claimers)
	run("a service claims one of many resources", c.rivals)
	run("changes replay to the leases under concurrent writes", c.replay)
	if c.reopen != nil {
		run("leases outlive a restart", c.persistence)
	}
	if c.fault != nil {
		run("a failing write changes nothing", c.failing)
	}
}

var start = vip.InstantOf(time.Date(2026, 11, 8, 12, 0, 0, 123456789, time.UTC))

// Lease returns a plain lease of 192.0.2.n for tests.
func Lease(n byte, service string) ipam.Lease {
	return ipam.Lease{
		Resource: ipam.Resource{Addr: netip.AddrFrom4([4]byte{192, 0, 2, n})},
		Pool:     "public-v4", State: ipam.Held, Since: start,
		Holders: []ipam.Holder{{Service: vip.ServiceKey{Namespace: "default", Name: service}, Source: "static"}},
	}
}

// commit commits ops and fails the test if the store as a whole fails.
func commit(t *testing.T, s ipam.Store, ops ...ipam.Op) []ipam.Op {
	t.Helper()
	if err := s.Commit(t.Context(), ops); err != nil {
		t.Fatalf("commit: %v", err)
	}
	return ops
}

func put(t *testing.T, s ipam.Store, old, now *ipam.Lease) {
	t.Helper()
	if op := commit(t, s, ipam.Op{Old: old, New: now})[0]; op.Err != nil {
		t.Fatalf("commit: %v", op.Err)
	}
}

// watch returns a feed of the store, until the end of the test.
func watch(t testing.TB, s ipam.Store) ipam.Feed {
	t.Helper()
	feed, err := s.Watch(t.Context())
	if err != nil {
		t.Fatalf("watch: %v", err)
	}
	t.Cleanup(feed.Close)
	return feed
}

// Leases returns what a store has.
func Leases(t testing.TB, s ipam.Store) []ipam.LeaseChange {
	t.Helper()
	changes, _ := ipam.Drain(watch(t, s))
	return changes
}

// drained returns a feed that has reported every lease.
func drained(t *testing.T, s ipam.Store) ipam.Feed {
	t.Helper()
	feed := watch(t, s)
	ipam.Drain(feed)
	return feed
}

// all returns every lease.
func all(t *testing.T, s ipam.Store) map[ipam.Resource]ipam.Lease {
	t.Helper()
	changes := Leases(t, s)
	out := make(map[ipam.Resource]ipam.Lease)
	for _, c := range changes {
		if c.Lease == nil {
			t.Errorf("%s: a removal among the changes from the start", c.Resource)
			continue
		}
		if _, twice := out[c.Resource]; twice {
			t.Errorf("%s comes twice", c.Resource)
		}
		if c.Lease.Resource != c.Resource {
			t.Errorf("the change of %s has the lease of %s", c.Resource, c.Lease.Resource)
		}
		out[c.Resource] = *c.Lease
	}
	return out
}

func expect(t *testing.T, s ipam.Store, want ...ipam.Lease) {
	t.Helper()
	got := all(t, s)
	if len(got) != len(want) {
		t.Errorf("%d leases, want %d: %v", len(got), len(want), got)
	}
	for _, w := range want {
		if g, ok := got[w.Resource]; !ok || !g.Equal(w) {
			t.Errorf("%s: got %+v, want %+v", w.Resource, g, w)
		}
	}
}

// expectConflict checks that an op lost to actual.
func expectConflict(t *testing.T, op ipam.Op, actual *ipam.Lease) {
	t.Helper()
	var conflict *ipam.ConflictError
	if !errors.As(op.Err, &conflict) {
		t.Fatalf("got %v, want a conflict", op.Err)
	}
	if (conflict.Actual == nil) != (actual == nil) || actual != nil && !conflict.Actual.Equal(*actual) {
		t.Errorf("the conflict says %+v, want %+v", conflict.Actual, actual)
	}
	if conflict.Resource == (ipam.Resource{}) {
		t.Error("the conflict names no resource")
	}
}

func (c *suite) claimFree(t *testing.T) {
	s := c.open(t)
	expect(t, s)
	a, b := Lease(1, "a"), Lease(2, "b")
	for _, op := range commit(t, s, ipam.Op{New: &a}, ipam.Op{New: &b}) {
		if op.Err != nil {
			t.Error(op.Err)
		}
	}
	expect(t, s, a, b)
}

func (c *suite) claimTaken(t *testing.T) {
	s := c.open(t)
	a, b, other := Lease(1, "a"), Lease(1, "b"), Lease(2, "b")
	put(t, s, nil, &a)
	ops := commit(t, s, ipam.Op{New: &b}, ipam.Op{New: &other})
	expectConflict(t, ops[0], &a)
	if want := "192.0.2.1 is held by a"; ops[0].Err.Error() != want {
		t.Errorf("message %q, want %q", ops[0].Err, want)
	}
	if ops[1].Err != nil {
		t.Errorf("the op beside a conflict: %v", ops[1].Err)
	}
	expect(t, s, a, other)
}

func (c *suite) compareAndSet(t *testing.T) {
	s := c.open(t)
	a := Lease(1, "a")
	put(t, s, nil, &a)
	cooling := a
	cooling.State, cooling.Until = ipam.Cooling, start.Add(time.Minute)
	put(t, s, &a, &cooling)
	expectConflict(t, commit(t, s, ipam.Op{Old: &a, New: &a})[0], &cooling)
	gone := Lease(9, "z")
	expectConflict(t, commit(t, s, ipam.Op{Old: &gone, New: &gone})[0], nil)
	expect(t, s, cooling)
	// The caller may change the old lease again after a commit.
	old, now := cooling, Lease(1, "b")
	put(t, s, &old, &now)
	old.Pool = "changed afterwards"
	expect(t, s, now)
}

func (c *suite) remove(t *testing.T) {
	s := c.open(t)
	a := Lease(1, "a")
	put(t, s, nil, &a)
	feed := drained(t, s)
	other := Lease(1, "b")
	expectConflict(t, commit(t, s, ipam.Op{Old: &other})[0], &a)
	put(t, s, &a, nil)
	expectConflict(t, commit(t, s, ipam.Op{Old: &a})[0], nil)
	expect(t, s)
	if changes, _ := ipam.Drain(feed); len(changes) != 1 || changes[0].Lease != nil || changes[0].Resource != a.Resource {
		t.Errorf("changes %+v: want the removal", changes)
	}
	put(t, s, nil, &a)
	expect(t, s, a)
}

func (c *suite) sequence(t *testing.T) {
	s := c.open(t)
	a, b := Lease(1, "a"), Lease(1, "b")
	ops := commit(t, s, ipam.Op{New: &a}, ipam.Op{New: &b}, ipam.Op{Old: &a, New: &b}, ipam.Op{Old: &b}, ipam.Op{New: &a})
	for i, op := range ops {
		if lost := i == 1; lost != (op.Err != nil) {
			t.Errorf("op %d: %v", i, op.Err)
		}
	}
	expect(t, s, a)
}

// claim returns an op that gives a resource to the service of a lease.
func claim(old, now *ipam.Lease, holds ...ipam.Lease) ipam.Op {
	c := &ipam.Claim{Service: now.Holders[len(now.Holders)-1].Service}
	for _, l := range holds {
		c.Holds = append(c.Holds, l.Resource)
	}
	return ipam.Op{Old: old, New: now, Claim: c}
}

// expectClaimConflict checks that an op lost because its service holds other leases.
func expectClaimConflict(t *testing.T, op ipam.Op, others ...ipam.LeaseChange) {
	t.Helper()
	expectConflict(t, op, op.Old)
	conflict := (*ipam.ConflictError)(nil)
	errors.As(op.Err, &conflict)
	if conflict.Claim == nil || conflict.Claim.Service != op.Claim.Service || len(conflict.Others) != len(others) {
		t.Fatalf("the conflict says %+v, want %+v", conflict, others)
	}
	for _, want := range others {
		if !slices.ContainsFunc(conflict.Others, func(c ipam.LeaseChange) bool {
			return c.Resource == want.Resource && (c.Lease == nil) == (want.Lease == nil) && (c.Lease == nil || c.Lease.Equal(*want.Lease))
		}) {
			t.Errorf("%s is %+v, which the conflict doesn't say: %+v", want.Resource, want.Lease, conflict.Others)
		}
	}
}

func (c *suite) claims(t *testing.T) {
	s := c.open(t)
	one, two, three := Lease(1, "a"), Lease(2, "a"), Lease(3, "a")
	is := func(l ipam.Lease) ipam.LeaseChange { return ipam.LeaseChange{Resource: l.Resource, Lease: &l} }
	isNot := func(l ipam.Lease) ipam.LeaseChange { return ipam.LeaseChange{Resource: l.Resource} }

	expectClaimConflict(t, commit(t, s, claim(nil, &one, two))[0], isNot(two))
	if op := commit(t, s, claim(nil, &one))[0]; op.Err != nil {
		t.Fatal(op.Err)
	}
	ops := commit(t, s, claim(nil, &two), ipam.Op{New: new(Lease(9, "other"))})
	expectClaimConflict(t, ops[0], is(one))
	if ops[1].Err != nil {
		t.Errorf("the op beside it: %v", ops[1].Err)
	}
	expectClaimConflict(t, commit(t, s, claim(nil, &two, three))[0], is(one), isNot(three))
	expectClaimConflict(t, commit(t, s, claim(nil, &two, one, three))[0], is(one), isNot(three))
	if op := commit(t, s, claim(nil, &two, one))[0]; op.Err != nil {
		t.Fatal(op.Err)
	}
	// A cooling lease is not held, whatever the order of the held ones.
	cooling := two
	cooling.State, cooling.Until = ipam.Cooling, start.Add(time.Minute)
	put(t, s, &two, &cooling)
	expectClaimConflict(t, commit(t, s, claim(nil, &three, one, two))[0], is(one), is(cooling))
	if op := commit(t, s, claim(&cooling, &two, one))[0]; op.Err != nil {
		t.Fatal(op.Err)
	}
	if op := commit(t, s, claim(nil, &three, two, one))[0]; op.Err != nil {
		t.Fatal(op.Err)
	}
	expect(t, s, one, two, three, Lease(9, "other"))
	if c.reopen != nil {
		s = c.reopen(t, s)
		four := Lease(4, "a")
		expectClaimConflict(t, commit(t, s, claim(nil, &four, one))[0], is(one), is(two), is(three))
	}
}

func (c *suite) claimSequence(t *testing.T) {
	s := c.open(t)
	one, two, three, four := Lease(1, "a"), Lease(2, "a"), Lease(3, "a"), Lease(4, "b")
	ops := commit(t, s, claim(nil, &one), claim(nil, &two), claim(nil, &two, one),
		ipam.Op{Old: &one}, claim(nil, &three, one, two), claim(nil, &three, two), claim(nil, &four, three))
	for i, op := range ops {
		if lost := i == 1 || i == 4 || i == 6; lost != (op.Err != nil) {
			t.Errorf("op %d: %v", i, op.Err)
		}
	}
	expect(t, s, two, three)
}

// A resource that is shared by more holders than one op may name is transferred in several ops, and
// the store knows every service on it as a holder.
func (c *suite) crowd(t *testing.T) {
	s := c.open(t)
	const many = 150
	states := []ipam.Lease{Lease(1, "s0")}
	states[0].ShareKey = "k"
	ops := []ipam.Op{claim(nil, &states[0])}
	for i := 1; i < many; i++ {
		next := states[i-1]
		next.Holders = append(slices.Clone(next.Holders), Lease(1, fmt.Sprintf("s%d", i)).Holders...)
		states = append(states, next)
		ops = append(ops, claim(&states[i-1], &states[i]))
	}
	for i, op := range commit(t, s, ops...) {
		if op.Err != nil {
			t.Fatalf("op %d: %v", i, op.Err)
		}
	}
	expect(t, s, states[many-1])
	for _, n := range []int{0, 77, many - 1} {
		other := Lease(2, fmt.Sprintf("s%d", n))
		expectClaimConflict(t, commit(t, s, claim(nil, &other))[0], ipam.LeaseChange{Resource: states[0].Resource, Lease: &states[many-1]})
	}
	ops = nil
	for i := many - 1; i >= 0; i -= ipam.MaxHolders {
		op := ipam.Op{Old: &states[i]}
		if i >= ipam.MaxHolders {
			op.New = &states[i-ipam.MaxHolders]
		}
		ops = append(ops, op)
	}
	for i, op := range commit(t, s, ops...) {
		if op.Err != nil {
			t.Fatalf("op %d: %v", i, op.Err)
		}
	}
	expect(t, s)
	for _, n := range []int{0, 77, many - 1} {
		other := Lease(byte(2+n), fmt.Sprintf("s%d", n))
		if op := commit(t, s, claim(nil, &other))[0]; op.Err != nil {
			t.Error(op.Err)
		}
	}
}

func (c *suite) badOp(t *testing.T) {
	s := c.open(t)
	a, b := Lease(1, "a"), Lease(2, "b")
	blocked := ipam.Lease{Resource: b.Resource, State: ipam.Blocked, Reason: "a test says so"}
	stranger := &ipam.Claim{Service: b.Holders[0].Service}
	crowd := Lease(2, "s0")
	for i := range ipam.MaxHolders {
		crowd.Holders = append(crowd.Holders, Lease(2, fmt.Sprintf("s%d", i+1)).Holders...)
	}
	crowd.ShareKey = "k"
	ops := commit(t, s, ipam.Op{}, ipam.Op{New: &a}, ipam.Op{Old: &b, New: &a}, ipam.Op{New: new(ipam.Lease)},
		ipam.Op{New: &blocked}, ipam.Op{New: &a, Claim: stranger}, ipam.Op{Old: &a, Claim: stranger}, ipam.Op{New: &crowd})
	for i, op := range ops {
		if good := i == 1; good != (op.Err == nil) {
			t.Errorf("op %d: %v", i, op.Err)
		}
	}
	expect(t, s, a)
}

func (c *suite) roundTrip(t *testing.T) {
	s := c.open(t)
	web := ipam.Holder{Service: vip.ServiceKey{Namespace: "default", Name: "web"}, Source: "static",
		Ports: []vip.PortKey{{Port: 80, Protocol: vip.TCP}, {Port: 443, Protocol: vip.UDP}, {Port: 10000, LastPort: 10099, Protocol: vip.TCP}}}
	db := ipam.Holder{Service: vip.ServiceKey{Namespace: "prod", Name: "db"}, Source: "rest"}
	db.Node = "lb2"
	port := web
	port.Ports, port.Port = nil, vip.PortKey{Port: 53, Protocol: vip.UDP}
	health := port
	health.Port = vip.HealthPortKey
	leases := []ipam.Lease{
		{Resource: ipam.Resource{NodePort: 30081, Protocol: vip.TCP}, State: ipam.Held, Holders: []ipam.Holder{health}, Since: start},
		{Resource: ipam.Resource{Addr: netip.MustParseAddr("192.0.2.1")}, Pool: "p", State: ipam.Held, ShareKey: "k", Holders: []ipam.Holder{web, db}, Since: start},
		{Resource: ipam.Resource{Addr: netip.MustParseAddr("2001:db8::1")}, Pool: "p", State: ipam.Cooling, Holders: []ipam.Holder{db}, Since: start, Until: start.Add(time.Hour)},
		{Resource: ipam.Resource{Addr: netip.MustParseAddr("192.0.2.2")}, Pool: "p", State: ipam.Held, Holders: []ipam.Holder{db}, Since: start,
			Reservation: &ipam.Reservation{For: db.Service, Since: start}},
		{Resource: ipam.Resource{Addr: netip.MustParseAddr("192.0.2.3")}, Pool: "p", State: ipam.Reserved, Holders: []ipam.Holder{db}, Since: start,
			Reservation: &ipam.Reservation{For: db.Service, Since: start}},
		{Resource: ipam.Resource{Addr: netip.MustParseAddr("192.0.2.4")}, Pool: "p", State: ipam.Reserved, Since: start, Reservation: &ipam.Reservation{Since: start}},
		{Resource: ipam.Resource{NodePort: 30080, Protocol: vip.UDP}, State: ipam.Held, Holders: []ipam.Holder{port}, Since: start},
		{Resource: ipam.Resource{NodePort: 30080, Protocol: vip.TCP}, State: ipam.Held, Holders: []ipam.Holder{port}, Since: start},
	}
	for i := range leases {
		put(t, s, nil, &leases[i])
	}
	expect(t, s, leases...)
	if c.reopen != nil {
		expect(t, c.reopen(t, s), leases...)
	}
}

func (c *suite) changes(t *testing.T) {
	s := c.open(t)
	a, b := Lease(1, "a"), Lease(2, "b")
	put(t, s, nil, &a)
	feed := drained(t, s)
	put(t, s, nil, &b)
	a2 := a
	a2.Pool = "other"
	put(t, s, &a, &a2)
	a3 := a2
	a3.Pool = "third"
	put(t, s, &a2, &a3)
	changes, _ := ipam.Drain(feed)
	if len(changes) != 2 {
		t.Fatalf("changes %+v: want b and the newest of a", changes)
	}
	for _, change := range changes {
		want := b
		if change.Resource == a.Resource {
			want = a3
		}
		if change.Lease == nil || !change.Lease.Equal(want) {
			t.Errorf("change %+v, want %+v", change, want)
		}
	}
}

func (c *suite) waking(t *testing.T) {
	s := c.open(t)
	changes, more := ipam.Drain(watch(t, s))
	select {
	case <-more:
		t.Fatal("a change of an empty store")
	default:
	}
	if len(changes) != 0 {
		t.Fatalf("an empty store has %+v", changes)
	}
	a := Lease(1, "a")
	put(t, s, nil, &a)
	<-more
	expect(t, s, a)
}

func (c *suite) context(t *testing.T) {
	s := c.open(t)
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := s.Watch(ctx); !errors.Is(err, context.Canceled) {
		t.Errorf("watch with an ended context: %v", err)
	}
	a := Lease(1, "a")
	if err := s.Commit(ctx, []ipam.Op{{New: &a}}); !errors.Is(err, context.Canceled) {
		t.Errorf("commit with an ended context: %v", err)
	}
	expect(t, s)
}

func (c *suite) claimers(t *testing.T) {
	s := c.open(t)
	const claimers, resources = 16, 8
	won := make([][]string, resources)
	var mu sync.Mutex
	var wg sync.WaitGroup
	for i := range claimers {
		wg.Go(func() {
			name := fmt.Sprintf("s%d", i)
			for r := range resources {
				l := Lease(byte(r), name)
				ops := []ipam.Op{{New: &l}}
				if err := s.Commit(t.Context(), ops); err != nil {
					t.Error(err)
				} else if ops[0].Err == nil {
					mu.Lock()
					won[r] = append(won[r], name)
					mu.Unlock()
				}
			}
		})
	}
	wg.Wait()
	leases := all(t, s)
	for r := range resources {
		if len(won[r]) != 1 {
			t.Errorf("192.0.2.%d was won by %v", r, won[r])
			continue
		}
		if holder := leases[Lease(byte(r), "").Resource].Holders[0].Service.Name; holder != won[r][0] {
			t.Errorf("192.0.2.%d was won by %s and is held by %s", r, won[r][0], holder)
		}
	}
}

// A service gets one address, however many allocators believe that it has none yet.
func (c *suite) rivals(t *testing.T) {
	s := c.open(t)
	const rivals, services = 12, 6
	var wg sync.WaitGroup
	for i := range rivals {
		wg.Go(func() {
			for k := range services {
				l := Lease(byte(i*services+k), fmt.Sprintf("s%d", k))
				if err := s.Commit(t.Context(), []ipam.Op{claim(nil, &l)}); err != nil {
					t.Error(err)
				}
			}
		})
	}
	wg.Wait()
	held := map[string]int{}
	leases := all(t, s)
	for _, l := range leases {
		held[l.Holders[0].Service.Name]++
	}
	for k := range services {
		if n := held[fmt.Sprintf("s%d", k)]; n != 1 {
			t.Errorf("s%d holds %d resources", k, n)
		}
	}
}

func (c *suite) replay(t *testing.T) {
	s := c.open(t)
	const writers, rounds = 4, 20
	var wg sync.WaitGroup
	for w := range writers {
		wg.Go(func() {
			for round := range rounds {
				l := Lease(byte(w*8+round%8), fmt.Sprintf("w%d-%d", w, round))
				ops := []ipam.Op{{New: &l}}
				if round%3 == 2 {
					ops = append(ops, ipam.Op{Old: &l})
				}
				if err := s.Commit(t.Context(), ops); err != nil {
					t.Error(err)
				}
			}
		})
	}
	finished := make(chan struct{})
	go func() { wg.Wait(); close(finished) }()

	replayed := map[ipam.Resource]ipam.Lease{}
	feed := watch(t, s)
	follow := func() {
		changes, more := feed.TryNext()
		if len(changes) == 0 {
			select {
			case <-more:
			case <-time.After(50 * time.Millisecond):
			}
		}
		for _, change := range changes {
			if change.Lease == nil {
				delete(replayed, change.Resource)
			} else {
				replayed[change.Resource] = *change.Lease
			}
		}
	}
	for running := true; running; {
		select {
		case <-finished:
			running = false
		default:
		}
		follow()
	}
	for range 2 { // one may only wait
		follow()
	}
	var want []ipam.Lease
	for _, l := range replayed {
		want = append(want, l)
	}
	expect(t, s, want...)
}

func (c *suite) persistence(t *testing.T) {
	s := c.open(t)
	a, b, gone := Lease(1, "a"), Lease(2, "b"), Lease(3, "gone")
	put(t, s, nil, &a)
	put(t, s, nil, &b)
	put(t, s, nil, &gone)
	put(t, s, &gone, nil)
	a2 := a
	a2.State, a2.Until = ipam.Cooling, start.Add(5*time.Minute)
	put(t, s, &a, &a2)
	s = c.reopen(t, s)
	expect(t, s, a2, b)
	other := Lease(2, "other")
	expectConflict(t, commit(t, s, ipam.Op{New: &other})[0], &b)
	put(t, s, &a2, &a) // a lease that was read still compares as equal
	expect(t, c.reopen(t, s), a, b)
}

func (c *suite) failing(t *testing.T) {
	s := c.open(t)
	a, b := Lease(1, "a"), Lease(2, "b")
	put(t, s, nil, &a)
	feed := drained(t, s)
	end := c.fault(t, s)
	for _, ops := range [][]ipam.Op{{{New: &b}}, {{Old: &a}}, {{New: &b}, {Old: &a, New: &a}}} {
		if err := s.Commit(t.Context(), ops); !errors.Is(err, ipam.ErrUnavailable) {
			t.Fatalf("commit: %v, want ErrUnavailable", err)
		}
	}
	expect(t, s, a)
	if changes, _ := ipam.Drain(feed); len(changes) != 0 {
		t.Errorf("failed commits show as changes %+v", changes)
	}
	end()
	put(t, s, nil, &b)
	put(t, s, &a, nil)
	expect(t, s, b)
	if c.reopen != nil {
		expect(t, c.reopen(t, s), b)
	}
}
