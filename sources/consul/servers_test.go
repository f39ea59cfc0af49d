//go:build system

package consul

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/hashicorp/consul/api"

	"github.com/ironvip/ironvip/internal/consulclient"
	"github.com/ironvip/ironvip/test/consultest"
	"github.com/ironvip/ironvip/test/wait"
)

// live is a source that follows real servers.
type live struct {
	t    *testing.T
	sink *sink
}

// follow runs a source until the test ends.
func follow(t *testing.T, o Options) *live {
	t.Helper()
	src, err := New(o)
	if err != nil {
		t.Fatal(err)
	}
	l := &live{t, newSink()}
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error)
	go func() { ended <- src.Run(ctx, l.sink) }()
	t.Cleanup(func() {
		cancel()
		if err := <-ended; !errors.Is(err, context.Canceled) {
			t.Errorf("Run returned %v", err)
		}
	})
	return l
}

func at(s *consultest.Server) consulclient.Config {
	return consulclient.Config{Address: s.URL, Token: s.Token}
}

// eventually waits for a condition.
func (l *live) eventually(what string, is func() bool) {
	l.t.Helper()
	wait.Until(l.t, what, is, func() any {
		return fmt.Sprintf("in effect %q, stale %q, problems %v", l.sink, l.stale(), l.sink.problems)
	})
}

func (l *live) wants(rows string) {
	l.t.Helper()
	l.eventually(fmt.Sprintf("%q", rows), func() bool { return l.sink.String() == rows })
}

func (l *live) stale() string {
	l.sink.mu.Lock()
	defer l.sink.mu.Unlock()
	return l.sink.stale
}

func (l *live) fresh() {
	l.t.Helper()
	l.eventually("fresh", func() bool { return l.stale() == "" })
}

// register registers an instance with a TTL check: "web-1" of "web" with address and port.
func register(t *testing.T, s *consultest.Server, id, at string, change ...func(*api.AgentServiceRegistration)) {
	t.Helper()
	name, _, _ := strings.Cut(id, "-")
	host, port, _ := strings.Cut(at, ":")
	r := &api.AgentServiceRegistration{ID: id, Name: name, Address: host, Tags: []string{"other", DefaultTag}, Meta: map[string]string{},
		Check: &api.AgentServiceCheck{CheckID: "ttl-" + id, TTL: "10m", Status: "passing"}}
	_, _ = fmt.Sscan(port, &r.Port)
	for _, c := range change {
		c(r)
	}
	if err := s.Client.Agent().ServiceRegister(r); err != nil {
		t.Fatal(err)
	}
}

func meta(key, value string) func(*api.AgentServiceRegistration) {
	return func(r *api.AgentServiceRegistration) { r.Meta[metaPrefix+key] = value }
}

func ok(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

func TestRealRegistrations(t *testing.T) {
	t.Parallel()
	s := consultest.Start(t, consultest.Options{Memory: true, Config: map[string]any{"connect": map[string]any{"enabled": true}}})
	agent := s.Client.Agent()
	register(t, s, "web-1", "10.0.0.1:8080", meta("port", "80"))
	register(t, s, "untagged-1", "10.0.0.9:80", func(r *api.AgentServiceRegistration) { r.Tags = []string{"other"} })
	l := follow(t, Options{Config: Config{Config: at(s)}})
	l.wants("web 80/tcp: 10.0.0.1:8080")
	register(t, s, "web-2", "10.0.0.2:9090", meta("port", "80"), func(r *api.AgentServiceRegistration) {
		r.Weights = &api.AgentWeights{Passing: 10, Warning: 3}
		r.Connect = &api.AgentServiceConnect{SidecarService: &api.AgentServiceRegistration{}}
	})
	l.wants("web 80/tcp: 10.0.0.1:8080, 10.0.0.2:9090 w=10")
	ok(t, agent.UpdateTTL("ttl-web-2", "", "warning"))
	l.wants("web 80/tcp: 10.0.0.1:8080, 10.0.0.2:9090 w=3")
	ok(t, agent.UpdateTTL("ttl-web-2", "", "critical"))
	l.wants("web 80/tcp: 10.0.0.1:8080, 10.0.0.2:9090 unhealthy w=10")
	ok(t, agent.UpdateTTL("ttl-web-2", "", "passing"))
	l.wants("web 80/tcp: 10.0.0.1:8080, 10.0.0.2:9090 w=10")
	ok(t, agent.EnableServiceMaintenance("web-1", "work"))
	l.wants("web 80/tcp: 10.0.0.1:8080 maint, 10.0.0.2:9090 w=10")
	ok(t, agent.EnableNodeMaintenance("work"))
	l.wants("web 80/tcp: 10.0.0.1:8080 maint, 10.0.0.2:9090 maint w=10")
	ok(t, agent.DisableNodeMaintenance())
	ok(t, agent.DisableServiceMaintenance("web-1"))
	l.wants("web 80/tcp: 10.0.0.1:8080, 10.0.0.2:9090 w=10")

	// An instance that loses its tag is no longer a backend. Without tagged instances the service
	// is gone.
	register(t, s, "web-1", "10.0.0.1:8080", meta("port", "80"), func(r *api.AgentServiceRegistration) { r.Tags = nil })
	l.wants("web 80/tcp: 10.0.0.2:9090 w=10")
	ok(t, agent.ServiceDeregister("web-2"))
	l.wants("")
	register(t, s, "web-2", "10.0.0.2:9090", meta("port", "443"))
	register(t, s, "db-1", ":5432", meta("scheduler", "fast"))
	l.wants("web 443/tcp: 10.0.0.2:9090")
	l.eventually("reports db", func() bool {
		l.sink.mu.Lock()
		defer l.sink.mu.Unlock()
		return texts(l.sink.problems) == `ironvip-scheduler: "fast" is not a known value`
	})
	register(t, s, "db-1", ":5432") // uses the node's address
	l.wants("db 5432/tcp: 127.0.0.1:5432; web 443/tcp: 10.0.0.2:9090")

	// When a node is gone, its instances are unhealthy.
	node := &api.CatalogRegistration{Node: "elsewhere", Address: "10.0.0.3", SkipNodeUpdate: false,
		Service: &api.AgentService{ID: "db-2", Service: "db", Port: 5432, Tags: []string{DefaultTag}},
		Checks:  api.HealthChecks{{Node: "elsewhere", CheckID: "serfHealth", Status: "passing"}}}
	for _, health := range []struct{ status, rows string }{
		{"passing", "db 5432/tcp: 10.0.0.3:5432, 127.0.0.1:5432; web 443/tcp: 10.0.0.2:9090"},
		{"critical", "db 5432/tcp: 10.0.0.3:5432 unhealthy, 127.0.0.1:5432; web 443/tcp: 10.0.0.2:9090"},
	} {
		node.Checks[0].Status = health.status
		l.eventually(fmt.Sprintf("%q", health.rows), func() bool {
			// This is repeated, because Consul's leader removes unknown nodes with this check every
			// minute.
			_, err := s.Client.Catalog().Register(node, nil)
			ok(t, err)
			return l.sink.String() == health.rows
		})
	}
	l.fresh()
}

func TestRealSocketServicesByNameAndAddresses(t *testing.T) {
	t.Parallel()
	s := consultest.Start(t, consultest.Options{Memory: true})
	wan := func(r *api.AgentServiceRegistration) {
		r.Tags = nil
		r.TaggedAddresses = map[string]api.ServiceAddress{"wan": {Address: "198.51.100.1", Port: 8080}}
	}
	register(t, s, "web-1", "10.0.0.1:80", wan)
	register(t, s, "db-1", "10.0.0.1:5432", wan)
	l := follow(t, Options{Config: Config{Config: consulclient.Config{Address: "unix://" + s.Socket}, Services: []string{"web"}, TaggedAddress: "wan"}})
	l.wants("web 8080/tcp: 198.51.100.1:8080")
}

// Consul is stopped, suspended and restarted. The known services stay, and the changes made in the
// meantime arrive.
func TestRealServerStopsAndComesBack(t *testing.T) {
	t.Parallel()
	s := consultest.Start(t, consultest.Options{})
	unchecked := func(r *api.AgentServiceRegistration) { r.Check = nil } // a TTL check fails after a restart
	register(t, s, "web-1", "10.0.0.1:80", unchecked)
	register(t, s, "db-1", "10.0.0.1:5432", unchecked)
	o := Options{Config: Config{Config: at(s)}}
	o.timing.listHold, o.timing.answer = time.Second, 2*time.Second
	l := follow(t, o)
	const both = "db 5432/tcp: 10.0.0.1:5432; web 80/tcp: 10.0.0.1:80"
	l.wants(both)
	for _, fault := range []struct {
		name       string
		begin, end func()
	}{{"killed", s.Kill, s.Start}, {"stopped", s.Stop, s.Start}, {"stalled", s.Pause, s.Continue}} {
		fault.begin()
		l.eventually("stale once it is "+fault.name, func() bool { return l.stale() != "" })
		l.wants(both)
		fault.end()
		s.WaitReady()
		l.fresh()
		l.wants(both)
		ok(t, s.Client.Agent().ServiceDeregister("db-1"))
		l.wants("web 80/tcp: 10.0.0.1:80")
		register(t, s, "db-1", "10.0.0.1:5432", unchecked)
		l.wants(both)
	}
}

// The source follows a server that is restored to an older state, and one that starts from an older
// disk.
func TestRealServerGoesBack(t *testing.T) {
	t.Parallel()
	s := consultest.Start(t, consultest.Options{})
	put := func(node, address string) {
		_, err := s.Client.Catalog().Register(&api.CatalogRegistration{Node: node, Address: address,
			Service: &api.AgentService{ID: "web", Service: "web", Port: 80, Tags: []string{DefaultTag}}}, nil)
		ok(t, err)
	}
	put("n1", "10.0.0.1")
	snapshot, disk := s.Snapshot(), s.Disk()
	l := follow(t, Options{Config: Config{Config: at(s)}})
	l.wants("web 80/tcp: 10.0.0.1:80")
	for _, back := range []func(){func() { s.Restore(snapshot) }, func() { s.RestartFrom(disk) }} {
		put("n2", "10.0.0.2")
		put("n3", "10.0.0.3")
		l.wants("web 80/tcp: 10.0.0.1:80, 10.0.0.2:80, 10.0.0.3:80")
		back()
		l.wants("web 80/tcp: 10.0.0.1:80")
		put("n4", "10.0.0.4")
		l.wants("web 80/tcp: 10.0.0.1:80, 10.0.0.4:80")
		_, err := s.Client.Catalog().Deregister(&api.CatalogDeregistration{Node: "n4"}, nil)
		ok(t, err)
		l.wants("web 80/tcp: 10.0.0.1:80")
	}
}

// A token that is revoked or loses its permissions removes nothing. A new token in the token file
// is used.
func TestRealToken(t *testing.T) {
	t.Parallel()
	s := consultest.Start(t, consultest.Options{ACL: true})
	register(t, s, "web-1", "10.0.0.1:80")
	const rules = `service_prefix "" { policy = "read" } node_prefix "" { policy = "read" }`
	token := s.NewToken(rules)
	file := filepath.Join(t.TempDir(), "token")
	ok(t, os.WriteFile(file, []byte(token), 0o600))
	o := Options{Config: Config{Config: consulclient.Config{Address: s.URL, TokenFile: file}}}
	o.timing.listHold = time.Second
	l := follow(t, o)
	l.wants("web 80/tcp: 10.0.0.1:80")
	s.RevokeToken(token)
	l.eventually("stale without its token", func() bool { return strings.Contains(l.stale(), "403") })
	// This token may read nothing.
	ok(t, os.WriteFile(file, []byte(s.NewToken(`key "a" { policy = "read" }`)), 0o600))
	l.eventually("stale with a token that may see nothing", func() bool { return strings.Contains(l.stale(), "the token may not read its instances") })
	l.wants("web 80/tcp: 10.0.0.1:80")
	ok(t, s.Client.Agent().ServiceDeregister("web-1"))
	register(t, s, "web-2", "10.0.0.2:80")
	ok(t, os.WriteFile(file, []byte(s.NewToken(rules)), 0o600))
	l.fresh()
	l.wants("web 80/tcp: 10.0.0.2:80")
}

// A token that can no longer read one node removes none of its instances. Other instances are
// followed. A token that never could read the node has the readable instances.
func TestRealTokenLosesANode(t *testing.T) {
	t.Parallel()
	s := consultest.Start(t, consultest.Options{ACL: true})
	put := func(n int, port int) {
		_, err := s.Client.Catalog().Register(&api.CatalogRegistration{Node: fmt.Sprintf("n%d", n), Address: fmt.Sprintf("10.0.0.%d", n),
			Service: &api.AgentService{ID: "web", Service: "web", Port: port, Meta: map[string]string{"ironvip-port": "80"}, Tags: []string{DefaultTag}}}, nil)
		ok(t, err)
	}
	for n := range 4 {
		put(n+1, 80)
	}
	file := filepath.Join(t.TempDir(), "token")
	sees := func(nodes string) {
		ok(t, os.WriteFile(file, []byte(s.NewToken(`service_prefix "" { policy = "read" } `+nodes)), 0o600))
	}
	const most = `node "n1" { policy = "read" } node "n2" { policy = "read" } node "n3" { policy = "read" }`
	sees(`node_prefix "" { policy = "read" }`)
	o := Options{Config: Config{Config: consulclient.Config{Address: s.URL, TokenFile: file}}}
	o.timing.listHold, o.timing.hold = time.Second, time.Second
	l := follow(t, o)
	l.wants("web 80/tcp: 10.0.0.1:80, 10.0.0.2:80, 10.0.0.3:80, 10.0.0.4:80")
	sees(most)
	l.eventually("stale for an instance that it may not see", func() bool { return strings.Contains(l.stale(), "the token may not read instance n4/web any more") })
	put(1, 81)
	l.wants("web 80/tcp: 10.0.0.1:81, 10.0.0.2:80, 10.0.0.3:80, 10.0.0.4:80")
	sees(`node_prefix "" { policy = "read" }`)
	l.fresh()
	l.wants("web 80/tcp: 10.0.0.1:81, 10.0.0.2:80, 10.0.0.3:80, 10.0.0.4:80")

	sees(most)
	l = follow(t, o) // as after a resync
	l.wants("web 80/tcp: 10.0.0.1:81, 10.0.0.2:80, 10.0.0.3:80")
	_, err := s.Client.Catalog().Deregister(&api.CatalogDeregistration{Node: "n3"}, nil)
	ok(t, err)
	l.wants("web 80/tcp: 10.0.0.1:81, 10.0.0.2:80")
	l.fresh()
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
	ok(t, asked.Client.Agent().ServiceDeregister("web-1"))
	l.wants("web 80/tcp: 10.0.0.2:80")
}

// Two sources read two datacenters through one server.
func TestRealDatacentres(t *testing.T) {
	t.Parallel()
	one := consultest.Start(t, consultest.Options{Memory: true})
	two := consultest.Start(t, consultest.Options{Memory: true, Datacenter: "dc2", Name: "far", WAN: one})
	register(t, one, "web-1", "10.0.0.1:80")
	register(t, two, "web-1", "10.2.0.1:80")
	near, far := at(one), at(one)
	far.Datacenter = "dc2"
	here, there := follow(t, Options{Config: Config{Config: near}}), follow(t, Options{Name: "far", Config: Config{Config: far, ServiceNamespace: "dc2"}})
	here.wants("web 80/tcp: 10.0.0.1:80")
	there.wants("dc2/web 80/tcp: 10.2.0.1:80")
	register(t, two, "web-2", "10.2.0.2:80")
	there.wants("dc2/web 80/tcp: 10.2.0.1:80, 10.2.0.2:80")
	here.wants("web 80/tcp: 10.0.0.1:80")
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
			ok(t, err)
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
