package roster

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/ironvip/ironvip/fleet"
	"github.com/ironvip/ironvip/test/bubble"
	"github.com/ironvip/ironvip/test/expect"
	"github.com/ironvip/ironvip/test/fleettest"
	"github.com/ironvip/ironvip/test/must"
)

type host struct {
	*Roster
	tree *fleettest.Host
	end  func()
}

func join(t *testing.T, kv *fleettest.Memory, name string, self Member) *host {
	return joinWith(t, kv, name, self, nil)
}

func joinWith(t *testing.T, kv *fleettest.Memory, name string, self Member, kept Records) *host {
	h := &host{}
	h.tree = kv.Run(t, fleet.Options{Node: name, Folders: Folders()}, func(tree *fleet.Tree) { h.Roster = New(tree, name, self, nil) })
	h.Keep(kept)
	h.forgetAfter = time.Hour
	ctx, stop := context.WithCancel(t.Context())
	var running sync.WaitGroup
	running.Go(func() { _ = h.Run(ctx) })
	h.end = sync.OnceFunc(func() { stop(); running.Wait(); h.tree.End() })
	t.Cleanup(h.end)
	return h
}

// names lists the hosts, those without probes in parentheses.
func (h *host) names() string {
	var out []string
	for key, row := range h.Rows().All() {
		name := NodeOf(key)
		if row.Value.NoProbes {
			name = "(" + name + ")"
		}
		out = append(out, name)
	}
	slices.Sort(out)
	return strings.Join(out, " ")
}

func expectState(t *testing.T, when, want string, hosts ...*host) {
	t.Helper()
	expectAll(t, when, "present", want, (*host).names, hosts)
}

// expectAll compares what each host knows.
func expectAll(t *testing.T, when, what, want string, known func(*host) string, hosts []*host) {
	t.Helper()
	synctest.Wait()
	for i, h := range hosts {
		got := known(h)
		expect.Equal(t, got, want, "%s: host %d knows %q as %s", when, i, got, what)
	}
}

func TestRosterHasThePresentHosts(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		kv := fleettest.NewMemory()
		one := join(t, kv, "one", Member{})
		time.Sleep(5 * time.Second)
		expectState(t, "alone", "one", one)
		two, real := join(t, kv, "two/2", Member{}), join(t, kv, "real", Member{NoProbes: true})
		time.Sleep(30 * time.Second)
		expectState(t, "after two joined", "(real) one two/2", one, two, real)
		if one.WasThere() || two.WasThere() {
			t.Error("hosts that have just joined were there before")
		}

		// A restart is not noticed.
		before := one.Rows().Revision()
		for range 10 {
			two.end()
			time.Sleep(3 * time.Second)
			two = join(t, kv, "two/2", Member{})
			time.Sleep(17 * time.Second)
			expect.True(t, two.WasThere(), "a host was not there before its restart")
		}
		expectState(t, "after restarts", "(real) one two/2", one, two, real)
		expect.Equal(t, one.Rows().Revision(), before, "restarts have changed the rows")

		// One that leaves is removed by the second list.
		two.end()
		time.Sleep(25 * time.Second)
		expectState(t, "after one left", "(real) one", one, real)

		// The leader is lost.
		must.True(t, one.tree.Mine(), "the first host is not the leader")
		one.tree.SetDown(true)
		time.Sleep(90 * time.Second)
		expectState(t, "after the leader was lost", "(real)", real)
		one.tree.SetDown(false)
		time.Sleep(90 * time.Second)
		expectState(t, "after it is back", "(real) one", one, real)

		// A host that changes its role quickly corrects its row.
		real.end()
		real = join(t, kv, "real", Member{})
		time.Sleep(30 * time.Second)
		expectState(t, "after a change of the role", "one real", one, real)
	})
}

// Many hosts that join at once are few transactions, and nothing is written at rest.
func TestRosterOfManyHosts(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		const n = 60
		kv := fleettest.NewMemory()
		var hosts []*host
		for i := range n {
			hosts = append(hosts, join(t, kv, fmt.Sprint("host", i), Member{}))
		}
		time.Sleep(time.Minute)
		txns := func() (sum int) {
			for _, h := range hosts {
				sum += h.tree.Counts().Txns
			}
			return sum
		}
		for i, h := range hosts {
			got := len(strings.Fields(h.names()))
			expect.Equal(t, got, n, "host %d knows %d hosts", i, got)
		}
		// Each host has written its own row of the nodes, and one or two more at the start.
		if sum := txns(); sum > 4*n+20 {
			t.Errorf("%d transactions for the start of %d hosts", sum, n)
		}
		before := hosts[0].Rows().Revision()
		time.Sleep(10 * time.Minute)
		expect.Equal(t, hosts[0].Rows().Revision(), before, "the rows change at rest")
	})
}

func TestKeysAreNames(t *testing.T) {
	for _, name := range []string{"lb1", "a.b", "ü x", "a/b", "%"} {
		expect.Equal(t, NodeOf(KeyOf(name)), name, "becomes")
	}
	for _, key := range []string{"a/b", "%zz", "a b"} {
		expect.Equal(t, NodeOf(key), "", "key %q is the node", key)
	}
}
