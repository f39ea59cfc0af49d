package consultest

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"testing"

	"github.com/hashicorp/consul/api"
)

// Cluster is several servers of one datacenter.
type Cluster struct {
	Servers []*Server
	t       testing.TB
}

// StartCluster runs a server for each of the options, three or five, and waits until all are ready.
// All have the same bootstrap token. They must reach each other: servers in several namespaces need
// Addr and a network between them.
func StartCluster(t testing.TB, each ...Options) *Cluster {
	t.Helper()
	c := &Cluster{t: t}
	token := newToken()
	for i, o := range each {
		if o.Memory {
			t.Fatal("consultest: the servers of a cluster can't be of Memory")
		}
		c.Servers = append(c.Servers, prepare(t, o, i+1, token))
	}
	var join []string
	for _, s := range c.Servers {
		join = append(join, s.gossip(s.ports.serfLAN))
	}
	for _, s := range c.Servers {
		s.configure(len(each), join)
		s.Start()
	}
	c.WaitReady()
	return c
}

// For returns the cluster with t for its failures, where t is a subtest of the test that started
// it.
func (c *Cluster) For(t testing.TB) *Cluster {
	d := &Cluster{t: t}
	for _, s := range c.Servers {
		d.Servers = append(d.Servers, s.For(t))
	}
	return d
}

// WaitReady waits until every server is ready that runs and isn't paused.
func (c *Cluster) WaitReady() {
	c.t.Helper()
	for _, s := range c.Servers {
		if s.Running() {
			s.WaitReady()
		}
	}
}

// Leader returns the leader: the running server that a majority of the cluster names and that
// answers as leader. It waits for one.
func (c *Cluster) Leader() *Server {
	c.t.Helper()
	var leader *Server
	c.Servers[0].eventually("in a cluster with a leader", func(ctx context.Context) error {
		var err error
		leader, err = c.leader(ctx)
		return err
	})
	return leader
}

// Followers returns the running servers other than the leader.
func (c *Cluster) Followers() []*Server {
	c.t.Helper()
	leader := c.Leader()
	var others []*Server
	for _, s := range c.Servers {
		if s != leader && s.Running() {
			others = append(others, s)
		}
	}
	return others
}

func (c *Cluster) leader(ctx context.Context) (*Server, error) {
	q := (&api.QueryOptions{}).WithContext(ctx)
	votes := map[string]int{}
	var failed []error
	for _, s := range c.Servers {
		if !s.Running() {
			continue
		}
		name, err := s.Client.Status().LeaderWithQueryOptions(q)
		if err != nil {
			failed = append(failed, fmt.Errorf("%s: %w", s.Name, err))
			continue
		}
		votes[name]++
	}
	for _, s := range c.Servers {
		if s.Running() && votes[s.gossip(s.ports.rpc)] > len(c.Servers)/2 {
			return s, s.ready(ctx)
		}
	}
	return nil, fmt.Errorf("no running server is the leader of a majority: %v: %w", votes, errors.Join(failed...))
}

// gossip returns the server's address with one of its ports.
func (s *Server) gossip(port uint16) string {
	return netip.AddrPortFrom(s.opts.Addr, port).String()
}
