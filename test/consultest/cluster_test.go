//go:build system

package consultest

import (
	"context"
	"testing"

	"github.com/hashicorp/consul/api"

	"github.com/ironvip/ironvip/test/netlab"
)

func TestAClusterOutlivesItsLeader(t *testing.T) {
	t.Parallel()
	c := StartCluster(t, Options{}, Options{}, Options{})
	names := map[string]bool{}
	for _, s := range c.Servers {
		names[s.Name] = true
		put(t, s, s.Name, "1")
	}
	if len(names) != 3 {
		t.Fatalf("names of servers: %v", names)
	}

	first := c.Leader()
	if n := len(c.Followers()); n != 2 {
		t.Errorf("%d followers, want 2", n)
	}
	first.Kill()
	second := c.Leader()
	if second == first || len(c.Followers()) != 1 {
		t.Fatalf("%s is the leader that was killed", first.Name)
	}
	put(t, second, "after", "kill")

	first.Start()
	c.WaitReady()
	wants(t, first, "after", "kill")

	leader := c.Leader()
	leader.Pause()
	third := c.Leader()
	if third == leader {
		t.Fatalf("%s is the leader that is stalled", leader.Name)
	}
	put(t, third, "after", "pause")
	leader.Continue()
	c.WaitReady()
	wants(t, leader, "after", "pause")

	for _, s := range c.Servers {
		s.Stop()
	}
	for _, s := range c.Servers {
		s.Start()
	}
	c.WaitReady()
	for _, s := range c.Servers {
		wants(t, s, "after", "pause")
	}
}

func TestAClusterHasOneBootstrapToken(t *testing.T) {
	t.Parallel()
	o := Options{ACL: true}
	c := StartCluster(t, o, o, o)
	put(t, c.Servers[0], "a", "1")
	secret := c.Leader().NewToken(`key_prefix "" { policy = "read" }`)
	snapshot := c.Leader().Snapshot()
	put(t, c.Servers[0], "a", "2")
	c.Leader().Restore(snapshot)
	for _, s := range c.Servers {
		wants(t, s, "a", "1")
		reader := s.NewClient(secret)
		s.eventually("read with the token", func(ctx context.Context) error {
			_, _, err := reader.KV().Get("a", (&api.QueryOptions{}).WithContext(ctx))
			return err
		})
	}
}

func TestAClusterInThreeNamespaces(t *testing.T) {
	t.Parallel()
	l := netlab.New(t)
	l.AddBackend()
	var each []Options
	for _, n := range l.Backends {
		each = append(each, Options{Name: n.Name, In: n, Addr: n.Addr4})
	}
	c := StartCluster(t, each...)
	put(t, c.Leader(), "a", "1")
	for _, s := range c.Servers {
		wants(t, s, "a", "1")
	}
}
