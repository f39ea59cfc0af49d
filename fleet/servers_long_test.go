//go:build system && long

package fleet_test

import (
	"context"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/ironvip/ironvip/fleet"
	"github.com/ironvip/ironvip/fleet/consul"
	"github.com/ironvip/ironvip/fleet/kv"
	"github.com/ironvip/ironvip/test/consultest"
	"github.com/ironvip/ironvip/test/expect"
	"github.com/ironvip/ironvip/test/must"
	"github.com/ironvip/ironvip/test/seed"
	"github.com/ironvip/ironvip/test/wait"
)

// A storm on one server that is killed, stalled and has its sessions ended.
func TestStormOnConsul(t *testing.T) {
	t.Parallel()
	s := consultest.Start(t, consultest.Options{})
	trees := []*fleet.Tree{join(t, config(s), "one"), join(t, config(s), "two"), join(t, config(s), "three")}
	storm(t, seed.Of(t), 300, trees, func() []kv.Pair { return pairs(t, s) }, func(ctx context.Context, r *rand.Rand) {
		switch r.IntN(3) {
		case 0:
			s.Kill()
			pause(ctx, time.Duration(r.IntN(500))*time.Millisecond)
			s.Start()
			pause(ctx, 3*time.Second)
		case 1:
			s.Pause()
			pause(ctx, time.Duration(r.IntN(2000))*time.Millisecond)
			s.Continue()
		case 2:
			if sessions, _, err := s.Client.Session().List(nil); err == nil {
				for _, session := range sessions {
					_, _ = s.Client.Session().Destroy(session.ID, nil)
				}
			}
		}
		pause(ctx, time.Duration(r.IntN(500))*time.Millisecond)
	}, s.WaitReady)
}

// A server that has lost the others still answers stale reads, such as a blocking query of the log.
// A host that asks this server notices that it is cut off, and goes on with what it knows.
func TestServerWithoutALeader(t *testing.T) {
	t.Parallel()
	c := consultest.StartCluster(t, consultest.Options{}, consultest.Options{}, consultest.Options{})
	last := c.Followers()[0]
	tree := join(t, config(last), "one")
	put(t, tree, "x", "1")
	store := must.Get(consul.New(config(last)))(t)
	t.Cleanup(store.Close)
	reads := func(q kv.Query) bool {
		ctx, cancel := context.WithTimeout(t.Context(), 3*time.Second)
		defer cancel()
		pair, _, err := store.Get(ctx, treePrefix+"a/x", q)
		return err == nil && pair != nil && string(pair.Value) == "1"
	}
	wait.Until(t, "the server has the value", func() bool { return reads(kv.Query{Stale: true}) })
	for _, s := range c.Servers {
		if s != last {
			s.Kill()
		}
	}
	wait.Until(t, "the server has no leader", func() bool { return !reads(kv.Query{}) })
	expect.True(t, reads(kv.Query{Stale: true}), "the server doesn't answer stale reads")
	wait.Until(t, "the host is out of touch", func() bool { return tree.Stale() != "" })
	got := at(tree, "a", "x")
	expect.Equal(t, got, "1", "x is %q without Consul", got)
	for _, s := range c.Servers {
		if s != last {
			s.Start()
		}
	}
	c.WaitReady()
	wait.Until(t, "the host is in touch", func() bool { return tree.Stale() == "" })
	put(t, tree, "x", "2")
	wantSameOn(t, c.Leader(), tree)
}
