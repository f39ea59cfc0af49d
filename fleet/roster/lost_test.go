package roster

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"math"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/ironvip/ironvip/test/bubble"
	"github.com/ironvip/ironvip/test/expect"
	"github.com/ironvip/ironvip/test/fleettest"
	"github.com/ironvip/ironvip/test/must"
)

// records are what is kept of hosts, for all hosts of a test.
type records struct {
	mu    sync.Mutex
	hosts map[string]bool
	fails int // so many calls of Forget fail
}

func (r *records) Recorded() []string {
	r.mu.Lock()
	defer r.mu.Unlock()
	return slices.Collect(maps.Keys(r.hosts))
}

func (r *records) Forget(_ context.Context, node string) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.fails > 0 {
		r.fails--
		return errors.New("no answer")
	}
	delete(r.hosts, node)
	return nil
}

func (r *records) Announced(node string) ([]netip.Addr, int) {
	return []netip.Addr{netip.MustParseAddr("192.0.2.10")}, 7
}

// lostNames lists the lost hosts that a host knows.
func (h *host) lostNames() string {
	var out []string
	for key := range h.Lost().All() {
		out = append(out, NodeOf(key))
	}
	slices.Sort(out)
	return strings.Join(out, " ")
}

func expectLost(t *testing.T, when, want string, hosts ...*host) {
	t.Helper()
	expectAll(t, when, "lost", want, (*host).lostNames, hosts)
}

func txns(hosts ...*host) (sum int) {
	for _, h := range hosts {
		sum += h.tree.Counts().Txns
	}
	return sum
}

// A host that has left is lost on all others, with the time and what it announced, until it returns
// or is forgotten. Nothing is kept of one that is forgotten.
func TestLostHosts(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		kv := fleettest.NewMemory()
		kept := &records{hosts: map[string]bool{"one": true, "two": true, "three": true}}
		start := func(name string) *host {
			return joinWith(t, kv, name, Member{}, kept)
		}
		one := start("one")
		time.Sleep(5 * time.Second)
		two, three := start("two"), start("three")
		time.Sleep(30 * time.Second)
		expectLost(t, "all are there", "", one, two, three)

		left := time.Now()
		three.end()
		time.Sleep(25 * time.Second)
		expectLost(t, "one has left", "three", one, two)
		row, _ := two.lost.Get("three")
		if age := row.Value.Since.Sub(left); age < -20*time.Second || age > 0 || row.Value.Owned != 7 || len(row.Value.VIPs) != 1 {
			t.Errorf("%s after it has left: %+v", age, row.Value)
		}

		// It returns.
		three = start("three")
		time.Sleep(25 * time.Second)
		expectLost(t, "it is back", "", one, two, three)

		// It leaves for good. Nothing is written while it is lost.
		three.end()
		time.Sleep(25 * time.Second)
		before := two.lost.Rows().Revision()
		time.Sleep(50 * time.Minute)
		expectLost(t, "still lost", "three", one, two)
		expect.Equal(t, two.lost.Rows().Revision(), before, "the rows change at rest")
		kept.mu.Lock()
		kept.fails = 2
		kept.mu.Unlock()
		time.Sleep(11 * time.Minute)
		expectLost(t, "forgotten after a while", "", one, two)
		if got := kept.Recorded(); slices.Contains(got, "three") || len(got) != 2 {
			t.Errorf("records of %v", got)
		}

		// An operator forgets another one, through a host that isn't the leader.
		expect.Is(t, two.Forget(t.Context(), "one"), ErrPresent, "a host that is present")
		expect.Is(t, two.Forget(t.Context(), "three"), ErrUnknown, "an unknown host")
		four := start("four/4")
		time.Sleep(25 * time.Second)
		four.end()
		time.Sleep(25 * time.Second)
		expectLost(t, "another one", "four/4", one, two)
		expect.Succeed(t, two.Forget(t.Context(), "four/4"))
		expectLost(t, "forgotten by command", "", one, two)
		time.Sleep(time.Minute)
		expectLost(t, "it does not come back", "", one, two)
	})
}

// A step of the leader's wall clock forgets no host.
func TestAStepOfTheClockForgetsNoHost(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		kv := fleettest.NewMemory()
		one := joinWith(t, kv, "one", Member{}, &records{fails: math.MaxInt}) // it forgets none itself
		two := join(t, kv, "two", Member{})
		time.Sleep(30 * time.Second)
		two.end()
		time.Sleep(25 * time.Second)
		expectLost(t, "one has left", "two", one)
		const (
			after = 4 * time.Hour
			step  = 100 * after
		)
		leader := func() *Roster { return &Roster{lost: one.lost, forgetAfter: after} }
		forgets := func(when string, r *Roster, step time.Duration, want bool) {
			t.Helper()
			now := time.Now()
			got := len(r.overdue(now, now.Round(0).Add(step)))
			expect.Equal(t, got == 1, want, "%s: forgets %d hosts", when, got)
		}
		steady, ahead, early := leader(), leader(), leader()
		forgets("at first", steady, 0, false)
		forgets("at first, with a clock that is ahead", ahead, step, false)
		forgets("at first, before the step", early, 0, false)
		time.Sleep(leastLost / 2)
		forgets("with a clock that is still ahead", ahead, step, false)
		time.Sleep(leastLost)
		forgets("with a corrected clock", ahead, 0, false)
		forgets("after a step", early, step, false)
		forgets("after a step back", steady, -step, false)
		time.Sleep(after - 2*leastLost)
		forgets("after a step that stays", early, step, false)
		forgets("too early", steady, 0, false)
		time.Sleep(leastLost)
		forgets("after a step back", steady, -step, false)
		forgets("after the time, with a step", early, step, true)
		forgets("after the time, with a corrected clock", ahead, 0, true)
		forgets("after the time", steady, 0, true)
		next := leader()
		forgets("by the next leader", next, 0, false)
		time.Sleep(leastLost)
		forgets("by the next leader, later", next, 0, true)
	})
}

// A host that left before the leader has seen it is lost, too, if it has left records. A record
// that is newer than the newest list makes no host lost.
func TestRecordsOfUnknownHosts(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		kv := fleettest.NewMemory()
		kept := &records{hosts: map[string]bool{"one": true, "gone": true}}
		one := joinWith(t, kv, "one", Member{}, kept)
		time.Sleep(time.Minute)
		expectLost(t, "the record of a host", "gone", one)
		for range 20 {
			kept.mu.Lock()
			kept.hosts["two"] = true
			kept.mu.Unlock()
			time.Sleep(10 * time.Second) // less than between two lists
			two := joinWith(t, kv, "two", Member{}, kept)
			for range 40 {
				time.Sleep(time.Second)
				expectLost(t, "a host that has just joined", "gone", one)
			}
			two.end()
			time.Sleep(29 * time.Second)
			expectLost(t, "and left", "gone two", one)
			must.Succeed(t, one.Forget(t.Context(), "two"))
		}
	})
}

// A mass failure is few transactions: one entry for all that are lost together, none at rest.
func TestLossOfManyHosts(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		const n = 60
		kv := fleettest.NewMemory()
		var hosts []*host
		for i := range n {
			hosts = append(hosts, join(t, kv, fmt.Sprint("host", i), Member{}))
		}
		time.Sleep(time.Minute)
		leader := slices.IndexFunc(hosts, func(h *host) bool { return h.tree.Mine() })
		rest := []*host{hosts[leader], hosts[(leader+1)%n]}
		for i, h := range hosts {
			if i != leader && i != (leader+1)%n {
				h.end()
			}
		}
		before := txns(rest...)
		time.Sleep(time.Minute)
		expect.Equal(t, len(strings.Fields(rest[1].lostNames())), n-2, "hosts are lost")
		// The rows, each with a member that is removed, need three operations of 125 in a transaction.
		// The two hosts publish themselves in the meantime.
		if got := txns(rest...) - before; got > 2+4 {
			t.Errorf("%d transactions for %d lost hosts", got, n-2)
		}
		rev := rest[1].lost.Rows().Revision()
		time.Sleep(10 * time.Minute)
		expect.Equal(t, rest[1].lost.Rows().Revision(), rev, "the rows change at rest")
	})
}

// During an upgrade of the fleet, an older host keeps the format that a newer one has stated, also when
// the newer one is lost.
func TestFormatOfALaterRelease(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		kv := fleettest.NewMemory()
		old, later := join(t, kv, "old", Member{}), join(t, kv, "later", Member{Format: 3})
		time.Sleep(time.Minute)
		row, _, _ := old.Rows().Get(KeyOf("later"))
		expect.Equal(t, row.Value.Format, 3, "format of a host that is present")
		later.end()
		time.Sleep(3 * time.Minute)
		lost, _, _ := old.Lost().Get(KeyOf("later"))
		expect.Equal(t, lost.Value.Format, 3, "format of a lost host")
	})
}
