//go:build system && long

package consul

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/hashicorp/consul/api"

	"github.com/ironvip/ironvip/test/consultest"
	"github.com/ironvip/ironvip/test/must"
)

// The source follows a server that is restored to an older state. Consul ends no query for a service
// then, and the one for the list only if it has it: for a second after a change there is none, and the
// next one waits until its time is over.
func TestRealServerIsRestored(t *testing.T) {
	t.Parallel()
	serverGoesBack(t, func(s *consultest.Server) (back func()) {
		snapshot := s.Snapshot()
		return func() { s.Restore(snapshot) }
	})
}

// The leader of three servers is killed. Answers continue, or the source is stale until a new
// leader is elected.
func TestRealClusterLosesItsLeader(t *testing.T) {
	t.Parallel()
	c := consultest.StartCluster(t, consultest.Options{}, consultest.Options{}, consultest.Options{})
	asked := c.Followers()[0]
	register(t, asked, "web-1", "10.0.0.1:80")
	o := Options{Config: Config{Config: at(asked)}}
	o.timing.listHold = time.Second // a former leader keeps blocking queries open
	l := follow(t, o)
	l.wants("web 80/tcp: 10.0.0.1:80")
	others := slices.DeleteFunc(slices.Clone(c.Servers), func(s *consultest.Server) bool { return s == asked })
	if c.Leader() == others[1] { // the queried server may have been elected in the meantime on a busy machine
		slices.Reverse(others)
	}
	others[0].Kill()
	c.WaitReady()
	register(t, asked, "web-2", "10.0.0.2:80")
	l.wants("web 80/tcp: 10.0.0.1:80, 10.0.0.2:80")
	l.fresh()
	// Without a majority there are no answers, and nothing is lost.
	others[1].Kill()
	l.eventually("stale without a leader", func() bool { return l.stale() != "" })
	l.wants("web 80/tcp: 10.0.0.1:80, 10.0.0.2:80")
	others[0].Start()
	others[1].Start()
	c.WaitReady()
	l.fresh()
	must.Succeed(t, asked.Client.Agent().ServiceDeregister("web-1"))
	l.wants("web 80/tcp: 10.0.0.2:80")
}

// fill registers many services in Consul's catalog.
func fill(t *testing.T, s *consultest.Server, n int) {
	t.Helper()
	for i := 0; i < n; i += 50 {
		var ops api.TxnOps
		ops = append(ops, &api.TxnOp{Node: &api.NodeTxnOp{Verb: api.NodeSet, Node: api.Node{Node: "n1", Address: "10.0.0.1"}}})
		for j := i; j < min(n, i+50); j++ {
			name := fmt.Sprintf("s%04d", j)
			ops = append(ops, &api.TxnOp{Service: &api.ServiceTxnOp{Verb: api.ServiceSet, Node: "n1",
				Service: api.AgentService{ID: name, Service: name, Port: 80, Tags: []string{DefaultTag}, Weights: api.AgentWeights{Passing: 1, Warning: 1}}}})
		}
		done, answer, _, err := s.Client.Txn().Txn(ops, nil)
		if err != nil || !done {
			t.Fatalf("%v %v", err, answer)
		}
	}
}

// Over TLS, 1,000 blocking queries share a few connections, within Consul's default limit of 200.
// Without TLS they take turns.
func TestRealLimitOfConnections(t *testing.T) {
	t.Parallel()
	for _, secure := range []bool{true, false} {
		t.Run(fmt.Sprintf("TLS %v", secure), func(t *testing.T) {
			s := consultest.Start(t, consultest.Options{TLS: secure})
			fill(t, s, 1000)
			o := Options{Config: Config{Config: at(s)}}
			if secure {
				o.CAFile, o.CertFile, o.KeyFile = s.TLS.CA, s.TLS.Cert, s.TLS.Key
			}
			l := follow(t, o)
			l.eventually("complete", func() bool {
				l.sink.mu.Lock()
				defer l.sink.mu.Unlock()
				return len(l.sink.rows) == 1000 && l.sink.stale == "" && (len(l.sink.problems) == 0) == secure
			})
			_, err := s.Client.Catalog().Register(&api.CatalogRegistration{Node: "n2", Address: "10.0.0.2",
				Service: &api.AgentService{ID: "s0700", Service: "s0700", Port: 80, Tags: []string{DefaultTag}}}, nil)
			must.Succeed(t, err)
			l.eventually("reports a change", func() bool { return strings.Contains(l.sink.String(), "s0700 80/tcp: 10.0.0.1:80, 10.0.0.2:80") })
			if !secure {
				// Some connections stay free for other programs.
				l.eventually("taking others' connections", func() bool {
					for range 20 {
						_, _, err := s.NewClient("").Catalog().Services(nil)
						if err != nil {
							return false
						}
					}
					return true
				})
			}
		})
	}
}
