//go:build system

package consul

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/hashicorp/consul/api"

	"github.com/ironvip/ironvip/internal/consulclient"
	"github.com/ironvip/ironvip/test/consultest"
	"github.com/ironvip/ironvip/test/must"
	"github.com/ironvip/ironvip/test/scope"
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
	src := must.Get(New(o))(t)
	l := &live{t, newSink()}
	scope.Go(t, func(ctx context.Context) error { return src.Run(ctx, l.sink) })
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
	must.Succeed(t, s.Client.Agent().ServiceRegister(r))
}

func meta(key, value string) func(*api.AgentServiceRegistration) {
	return func(r *api.AgentServiceRegistration) { r.Meta[metaPrefix+key] = value }
}

// Slow: Consul has a health check that critical nodes fail, and answers a dozen changes in turn.
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
	must.Succeed(t, agent.UpdateTTL("ttl-web-2", "", "warning"))
	l.wants("web 80/tcp: 10.0.0.1:8080, 10.0.0.2:9090 w=3")
	must.Succeed(t, agent.UpdateTTL("ttl-web-2", "", "critical"))
	l.wants("web 80/tcp: 10.0.0.1:8080, 10.0.0.2:9090 unhealthy w=10")
	must.Succeed(t, agent.UpdateTTL("ttl-web-2", "", "passing"))
	l.wants("web 80/tcp: 10.0.0.1:8080, 10.0.0.2:9090 w=10")
	must.Succeed(t, agent.EnableServiceMaintenance("web-1", "work"))
	l.wants("web 80/tcp: 10.0.0.1:8080 maint, 10.0.0.2:9090 w=10")
	must.Succeed(t, agent.EnableNodeMaintenance("work"))
	l.wants("web 80/tcp: 10.0.0.1:8080 maint, 10.0.0.2:9090 maint w=10")
	must.Succeed(t, agent.DisableNodeMaintenance())
	must.Succeed(t, agent.DisableServiceMaintenance("web-1"))
	l.wants("web 80/tcp: 10.0.0.1:8080, 10.0.0.2:9090 w=10")

	// An instance that loses its tag is no longer a backend. Without tagged instances the service
	// is gone.
	register(t, s, "web-1", "10.0.0.1:8080", meta("port", "80"), func(r *api.AgentServiceRegistration) { r.Tags = nil })
	l.wants("web 80/tcp: 10.0.0.2:9090 w=10")
	must.Succeed(t, agent.ServiceDeregister("web-2"))
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
			must.Get(s.Client.Catalog().Register(node, nil))(t)
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

// Consul is killed and restarted, and suspended. The known services stay, and the changes made in the
// meantime arrive.
// Slow: Consul restarts and elects itself, and a stalled server is noticed after two seconds.
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
	}{{"killed", s.Kill, s.Start}, {"stalled", s.Pause, s.Continue}} {
		fault.begin()
		l.eventually("stale once it is "+fault.name, func() bool { return l.stale() != "" })
		l.wants(both)
		fault.end()
		s.WaitReady()
		l.fresh()
		l.wants(both)
		must.Succeed(t, s.Client.Agent().ServiceDeregister("db-1"))
		l.wants("web 80/tcp: 10.0.0.1:80")
		register(t, s, "db-1", "10.0.0.1:5432", unchecked)
		l.wants(both)
	}
}

// The source follows a server that starts from an older disk.
// Slow: Consul restarts twice from a copy of its disk, and elects itself.
func TestRealServerGoesBack(t *testing.T) {
	t.Parallel()
	serverGoesBack(t, func(s *consultest.Server) (back func()) {
		disk := s.Disk()
		return func() { s.RestartFrom(disk) }
	})
}

// serverGoesBack takes a server back, twice, to its state when prepare was called.
func serverGoesBack(t *testing.T, prepare func(*consultest.Server) (back func())) {
	s := consultest.Start(t, consultest.Options{})
	put := func(node, address string) {
		_, err := s.Client.Catalog().Register(&api.CatalogRegistration{Node: node, Address: address,
			Service: &api.AgentService{ID: "web", Service: "web", Port: 80, Tags: []string{DefaultTag}}}, nil)
		must.Succeed(t, err)
	}
	put("n1", "10.0.0.1")
	back := prepare(s)
	l := follow(t, Options{Config: Config{Config: at(s)}})
	l.wants("web 80/tcp: 10.0.0.1:80")
	for range 2 {
		put("n2", "10.0.0.2")
		put("n3", "10.0.0.3")
		l.wants("web 80/tcp: 10.0.0.1:80, 10.0.0.2:80, 10.0.0.3:80")
		back()
		l.wants("web 80/tcp: 10.0.0.1:80")
		put("n4", "10.0.0.4")
		l.wants("web 80/tcp: 10.0.0.1:80, 10.0.0.4:80")
		must.Get(s.Client.Catalog().Deregister(&api.CatalogDeregistration{Node: "n4"}, nil))(t)
		l.wants("web 80/tcp: 10.0.0.1:80")
	}
}

// A token that is revoked or loses its permissions removes nothing. A new token in the token file
// is used.
// Slow: a token is noticed when a query of a second has ended, and three tokens follow each other.
func TestRealToken(t *testing.T) {
	t.Parallel()
	s := consultest.Start(t, consultest.Options{ACL: true})
	register(t, s, "web-1", "10.0.0.1:80")
	const rules = `service_prefix "" { policy = "read" } node_prefix "" { policy = "read" }`
	token := s.NewToken(rules)
	file := filepath.Join(t.TempDir(), "token")
	must.Succeed(t, os.WriteFile(file, []byte(token), 0o600))
	o := Options{Config: Config{Config: consulclient.Config{Address: s.URL, TokenFile: file}}}
	o.timing.listHold = time.Second
	l := follow(t, o)
	l.wants("web 80/tcp: 10.0.0.1:80")
	s.RevokeToken(token)
	l.eventually("stale without its token", func() bool { return strings.Contains(l.stale(), "403") })
	// This token may read nothing.
	must.Succeed(t, os.WriteFile(file, []byte(s.NewToken(`key "a" { policy = "read" }`)), 0o600))
	l.eventually("stale with a token that may see nothing", func() bool { return strings.Contains(l.stale(), "the token may not read its instances") })
	l.wants("web 80/tcp: 10.0.0.1:80")
	must.Succeed(t, s.Client.Agent().ServiceDeregister("web-1"))
	register(t, s, "web-2", "10.0.0.2:80")
	must.Succeed(t, os.WriteFile(file, []byte(s.NewToken(rules)), 0o600))
	l.fresh()
	l.wants("web 80/tcp: 10.0.0.2:80")
}

// A token that can no longer read one node removes none of its instances. Other instances are
// followed. A token that never could read the node has the readable instances.
// Slow: a token is noticed when a query of a second has ended, and three tokens follow each other.
func TestRealTokenLosesANode(t *testing.T) {
	t.Parallel()
	s := consultest.Start(t, consultest.Options{ACL: true})
	put := func(n int, port int) {
		_, err := s.Client.Catalog().Register(&api.CatalogRegistration{Node: fmt.Sprintf("n%d", n), Address: fmt.Sprintf("10.0.0.%d", n),
			Service: &api.AgentService{ID: "web", Service: "web", Port: port, Meta: map[string]string{"ironvip-port": "80"}, Tags: []string{DefaultTag}}}, nil)
		must.Succeed(t, err)
	}
	for n := range 4 {
		put(n+1, 80)
	}
	file := filepath.Join(t.TempDir(), "token")
	sees := func(nodes string) {
		must.Succeed(t, os.WriteFile(file, []byte(s.NewToken(`service_prefix "" { policy = "read" } `+nodes)), 0o600))
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
	must.Get(s.Client.Catalog().Deregister(&api.CatalogDeregistration{Node: "n3"}, nil))(t)
	l.wants("web 80/tcp: 10.0.0.1:81, 10.0.0.2:80")
	l.fresh()
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
