package allocator_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"

	"github.com/ironvip/ironvip/internal/hostnet"
	"github.com/ironvip/ironvip/ipam"
	"github.com/ironvip/ironvip/ipam/allocator"
	"github.com/ironvip/ironvip/ipam/memstore"
	"github.com/ironvip/ironvip/test/expect"
	"github.com/ironvip/ironvip/test/must"
	"github.com/ironvip/ironvip/test/storetest"
	"github.com/ironvip/ironvip/vip"
)

var errFull = errors.New("no space left on device")

// A lease that could not be stored is not visible, and the service keeps what it held.
func TestStoreThatFails(t *testing.T) {
	w := newWorld(t, pools(pool("p", "192.0.2.0/28")))
	same(t, "before", w.get("web", ports(on(tcp(80), 0))), "192.0.2.1")
	free := w.status("p").Free

	w.store.Fail(errFull)
	same(t, "new", w.refused(vip.CodeStore, "no space left on device", "new"), "")
	got := w.assign(service("web", requests("192.0.2.9"), ports(on(tcp(80), 30001))))[0]
	if vips(got) != "192.0.2.1" || nodePorts(got)["80/tcp"] != 30086 || len(got.Problems) != 1 || got.Problems[0].Code != vip.CodeStore {
		t.Errorf("a move: %+v", got)
	}
	if err := w.a.Release(t.Context(), []ipam.Released{{Service: key("web")}})[0]; !errors.Is(err, ipam.ErrUnavailable) || !strings.Contains(err.Error(), "web") {
		t.Errorf("release: %v", err)
	}
	same(t, "leases", w.a.Leases().Len(), 2)
	same(t, "free", w.status("p").Free, free)
	l, _ := w.lease("192.0.2.1")
	expect.Equal(t, l.State, ipam.Held, "released all the same: %+v", l)
	same(t, "who needs no write has no problem", w.get("web", ports(on(tcp(80), 0))), "192.0.2.1")
	w.durable()

	w.store.Fail(nil)
	same(t, "tried again, the same address", w.get("new"), "192.0.2.2")
	same(t, "and the move", w.get("web", requests("192.0.2.9")), "192.0.2.9")
	w.durable()
}

// If the new address is stored and the old one can't be released, the service holds both and has a
// problem, and the next try repairs that.
func TestStoreThatFailsBetweenGainAndLoss(t *testing.T) {
	inner := newWorld(t, pools(pool("p", "192.0.2.0/28")))
	s := &failingSecond{Store: inner.store}
	inner.with(s, allocator.Options{Now: inner.clock})
	inner.get("web")
	s.armed, s.commits = true, 0
	got := inner.assign(service("web", requests("192.0.2.9")))[0]
	if vips(got) != "192.0.2.9" || len(got.Problems) != 1 || got.Problems[0].Code != vip.CodeStore {
		t.Errorf("%+v", got)
	}
	inner.durable()
	s.armed = false
	same(t, "tried again", inner.get("web", requests("192.0.2.9")), "192.0.2.9")
	l, _ := inner.lease("192.0.2.1")
	expect.Equal(t, l.State, ipam.Cooling, "the old one: %+v", l)
	inner.durable()
}

// failingSecond fails every second commit while it is armed.
type failingSecond struct {
	ipam.Store
	armed   bool
	commits int
}

func (s *failingSecond) Commit(ctx context.Context, ops []ipam.Op) error {
	if s.commits++; s.armed && s.commits%2 == 0 {
		return errors.Join(ipam.ErrUnavailable, errFull)
	}
	return s.Store.Commit(ctx, ops)
}

// If another writer got the address first, its lease stays and the service is planned again.
func TestLeaseChangedMeanwhile(t *testing.T) {
	w := newWorld(t, pools(pool("p", "192.0.2.0/28")))
	taken := ipam.Lease{
		Resource: ipam.Resource{Addr: addr("192.0.2.1")}, Pool: "p", State: ipam.Held, Since: vip.InstantOf(w.now),
		Holders: []ipam.Holder{{Service: key("elsewhere"), Source: "far"}},
	}
	must.Succeed(t, w.store.Commit(t.Context(), []ipam.Op{{New: &taken}}))
	same(t, "automatic goes around it", w.get("auto"), "192.0.2.2")
	if l, ok := w.lease("192.0.2.1"); !ok || !l.Equal(taken) {
		t.Errorf("what the store has is not shown: %+v", l)
	}
	taken2 := taken
	taken2.Resource.Addr = addr("192.0.2.9")
	must.Succeed(t, w.store.Commit(t.Context(), []ipam.Op{{New: &taken2}}))
	w.refused(vip.CodeAddressTaken, `held by service "elsewhere" of source far`, "asks", requests("192.0.2.9"))
	// One that was taken away: released by someone else behind our back.
	mine, _ := w.lease("192.0.2.2")
	must.Succeed(t, w.store.Commit(t.Context(), []ipam.Op{{Old: &mine}}))
	w.release("auto")
	if _, ok := w.lease("192.0.2.2"); ok {
		t.Error("a lease that the store has not is shown")
	}
	w.durable()
}

func TestStoreThatCannotBeReadAtTheStart(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	w := newWorld(t, ipam.Config{})
	_, err := allocator.New(ctx, w.store, ipam.Config{}, allocator.Options{Clock: newClock()})
	expect.Is(t, err, context.Canceled)
}

// A batch of any size is one commit, and a batch that changes nothing is none.
func TestCommitsOfABatch(t *testing.T) {
	w := newWorld(t, pools(pool("p", "10.0.0.0/16", "2001:db8::/64")))
	var services []vip.Service
	for _, name := range strings.Fields("a b c d e f g h") {
		services = append(services, service(name, ports(on(tcp(80), 0), on(udp(80), 0))))
	}
	w.assign(services...)
	same(t, "commits", w.store.Commits(), 1)
	w.assign(services...)
	same(t, "commits for nothing new", w.store.Commits(), 1)
	w.release("a")
	same(t, "commits of a release", w.store.Commits(), 2)
	w.release("a", "b", "c", "d", "e", "f", "g", "h", "never was")
	same(t, "commits of many releases", w.store.Commits(), 3)
	for r, l := range w.a.Leases().All() {
		expect.True(t, l.State != ipam.Held, "%s is held: %+v", r, l)
	}
	w.release("a", "b")
	same(t, "commits of releases with nothing to give up", w.store.Commits(), 3)
	w.durable()
}

// Services that share an address release it with one op; it cools down for the last of them.
func TestSharersReleasedTogether(t *testing.T) {
	w := newWorld(t, pools(pool("p", "192.0.2.0/28")))
	for i, name := range []string{"a", "b", "c"} {
		same(t, name, w.get(name, share("k", tcp(uint16(80+i)))), "192.0.2.1")
	}
	commits := w.store.Commits()
	w.release("a", "b")
	if l, _ := w.lease("192.0.2.1"); l.State != ipam.Held || len(l.Holders) != 1 || l.Holders[0].Service != key("c") {
		t.Errorf("%+v", l)
	}
	w.get("b", share("k", tcp(81)))
	w.release("c", "b")
	if l, _ := w.lease("192.0.2.1"); l.State != ipam.Cooling || l.Holders[0].Service != key("b") {
		t.Errorf("%+v", l)
	}
	same(t, "commits", w.store.Commits(), commits+3)
	w.durable()
}

// If the store refuses the ops of one service, only that service has an error.
func TestReleaseThatIsRefusedForOne(t *testing.T) {
	w := newWorld(t, pools(pool("p", "192.0.2.0/28")))
	s := &refusing{Store: w.store}
	w.with(s, allocator.Options{Now: w.clock})
	for _, name := range []string{"a", "b", "c"} {
		w.get(name)
	}
	gone := []ipam.Released{{Service: key("a")}, {Service: key("b")}, {Service: key("c")}}
	s.refuse(ipam.Resource{Addr: addr("192.0.2.2")})
	errs := w.a.Release(t.Context(), gone)
	if errs[0] != nil || !errors.Is(errs[1], errFull) || errs[2] != nil {
		t.Errorf("%v", errs)
	}
	s.refuse(ipam.Resource{})
	expect.Succeed(t, errors.Join(w.a.Release(t.Context(), gone)...))
	l, _ := w.lease("192.0.2.2")
	expect.Equal(t, l.State, ipam.Cooling, "%+v", l)
	w.durable()
}

// laterStore can't be read at first.
type laterStore struct {
	ipam.Store
	there chan struct{}
}

func (s *laterStore) Watch(ctx context.Context) (ipam.Feed, error) {
	select {
	case <-s.there:
		return s.Store.Watch(ctx)
	case <-ctx.Done():
		return nil, ctx.Err()
	}
}

// An allocator can be configured and read before its store is available. Restore applies the leases to
// the current pools.
func TestStoreThatComesLater(t *testing.T) {
	w := newWorld(t, pools(pool("p", "192.0.2.0/28")))
	same(t, "before", w.get("web"), "192.0.2.1")
	store := &laterStore{w.store, make(chan struct{})}
	a := must.Get(allocator.Prepare(store, w.cfg, allocator.Options{Clock: newClock(), Now: w.clock, Events: w.events}))(t)
	w.a = a
	restored := make(chan error, 1)
	go func() { restored <- a.Restore(t.Context()) }()
	same(t, "used", w.status("p").Used, 0)
	same(t, "ours", a.Owns(addr("192.0.2.1")), true)
	w.configure(pools(pool("p", "192.0.2.0/28", "198.51.100.0/28")))
	a.SetHost(hostnet.Snapshot{Addrs: []hostnet.Addr{{Prefix: prefixes("192.0.2.1/32")[0], Link: "eth0"}}})
	close(store.there)
	must.Succeed(t, <-restored)
	same(t, "used", w.status("p").Used, 1)
	expect.Contains(t, alarms(w.status("p")), "192.0.2.1 is leased to web, but it is also", "alarms")
	same(t, "what it held", w.get("web"), "192.0.2.1")
}

// stalledStore blocks commits until let is closed.
type stalledStore struct {
	ipam.Store
	reached, let chan struct{}
}

func (s *stalledStore) Commit(ctx context.Context, ops []ipam.Op) error {
	s.reached <- struct{}{}
	<-s.let
	return s.Store.Commit(ctx, ops)
}

// A preview and the pools' state don't wait for a commit, and a preview leaves no trace: Assign then
// allocates what it showed.
func TestPreviewDuringACommit(t *testing.T) {
	w := newWorld(t, pools(pool("p", "192.0.2.0/28")))
	s := &stalledStore{Store: w.store, reached: make(chan struct{}), let: make(chan struct{})}
	w.with(s, allocator.Options{Now: w.clock})
	done := make(chan string)
	go func() { done <- vips(w.a.Assign(context.Background(), []*vip.Service{new(service("first"))})[0]) }()
	<-s.reached
	for range 2 {
		got := w.a.Preview([]vip.Service{service("second", ports(on(tcp(80), 0))), service("third")})
		if vips(got[0]) != "192.0.2.1" || nodePorts(got[0])["80/tcp"] != 30086 || vips(got[1]) != "192.0.2.2" {
			t.Errorf("preview: %+v", got)
		}
	}
	same(t, "free addresses", w.status("p").Free, 14)
	close(s.let)
	same(t, "the first", <-done, "192.0.2.1")
	go func() { <-s.reached }()
	same(t, "the second", w.get("second"), "192.0.2.2")
	w.durable()
}

// Gain and Loss create and remove a lease with any number of holders.
func TestGainAndLoss(t *testing.T) {
	for _, holders := range []int{1, ipam.MaxHolders, ipam.MaxHolders + 1, 5*ipam.MaxHolders - 1} {
		s := memstore.New()
		l := ipam.Lease{Resource: ipam.Resource{Addr: addr("192.0.2.1")}, State: ipam.Held, ShareKey: "k"}
		for i := range holders {
			l.Holders = append(l.Holders, ipam.Holder{Service: key(fmt.Sprint("s", i))})
		}
		for _, ops := range [][]ipam.Op{ipam.Gain(l), ipam.Loss(l)} {
			must.Succeed(t, s.Commit(t.Context(), ops))
			for i := range ops {
				expect.Succeed(t, ops[i].Err, "%d holders, op %d", holders, i)
			}
			all := storetest.Leases(t, s)
			if gained := ops[0].Old == nil; gained && (len(all) != 1 || !all[0].Lease.Equal(l)) || !gained && len(all) != 0 {
				t.Errorf("%d holders: %d leases", holders, len(all))
			}
		}
	}
}
