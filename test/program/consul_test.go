//go:build system

package program

import (
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"sync"
	"syscall"
	"testing"

	consulapi "github.com/hashicorp/consul/api"

	"github.com/ironvip/ironvip/test/consultest"
	"github.com/ironvip/ironvip/test/expect"
	"github.com/ironvip/ironvip/test/must"
)

// withConsul creates a host with a Consul as its store and as one of its sources. More is appended
// to its configuration.
func withConsul(t *testing.T, address, more string) *host {
	t.Helper()
	h := newHost(t)
	h.config(fmt.Sprintf(`[ipam]
store = "consul"
[consul]
address = %q
%s
[[source]]
type = "consul"
[[source]]
type = "static"
path = "services.d"
`, address, more))
	return h
}

// gate is the way to a server. A closed one refuses connections, as a stopped server does.
type gate struct {
	backend
	to string

	mu     sync.Mutex
	closed bool
	conns  []net.Conn
}

func newGate(t *testing.T, to string) *gate {
	t.Helper()
	g := &gate{to: to}
	g.serve = g.relay
	g.begin(t)
	t.Cleanup(g.cut)
	return g
}

func (g *gate) relay(in net.Conn) {
	out, err := net.Dial("tcp", g.to)
	if err != nil {
		in.Close()
		return
	}
	g.mu.Lock()
	if g.conns = append(g.conns, in, out); g.closed {
		in.Close()
		out.Close()
	}
	g.mu.Unlock()
	go func() { io.Copy(out, in); out.Close(); in.Close() }()
	io.Copy(in, out)
	out.Close()
	in.Close()
}

// cut ends all connections. New ones end at once.
func (g *gate) cut() {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.closed = true
	for _, c := range g.conns {
		c.Close()
	}
	g.conns = nil
}

func (g *gate) shut(t *testing.T) {
	t.Helper()
	must.Succeed(t, g.refuse())
	g.cut()
}

func (g *gate) open(t *testing.T) {
	t.Helper()
	g.mu.Lock()
	g.closed = false
	g.mu.Unlock()
	must.Succeed(t, g.accept())
}

// register adds backends to Consul's catalog as instances of a service.
func register(t *testing.T, c *consultest.Server, name string, backends ...*backend) {
	t.Helper()
	for _, b := range backends {
		_, err := c.Client.Catalog().Register(&consulapi.CatalogRegistration{Node: "node-" + b.name, Address: "127.0.0.1",
			Service: &consulapi.AgentService{ID: name + "-" + b.name, Service: name, Tags: []string{"ironvip"}, Port: b.port, Address: "127.0.0.1",
				Meta: map[string]string{"ironvip-port": "8080", "ironvip-scheduler": "rr"}}}, nil)
		if err != nil {
			t.Fatal(err)
		}
	}
}

// A service in Consul gets a VIP and its traffic. While Consul is unavailable, everything
// continues, and what needs Consul reports that. When Consul is back, no restart is needed, not
// even if the agent was restarted meanwhile.
//
// Slow: writes wait a second for Consul, and an agent starts without it after 2 s.
func TestConsulAway(t *testing.T) {
	parallel(t)
	consul := consultest.Start(t, consultest.Options{Memory: true})
	way := newGate(t, consul.Addr.String())
	a, b := newBackend(t, "a"), newBackend(t, "b")
	register(t, consul, "web", a, b)
	h := withConsul(t, way.addr, "")
	h.start()
	web := h.vip("web")
	h.serves(web+":8080", "a", "b")
	api := h.put("api", b)
	h.serves(api+":8080", "b")
	h.status("OK", "store", "in touch, lb1 is elected")
	if out := h.ok("node", "list"); !strings.Contains(out, "lb1") || !strings.Contains(out, "this node") {
		t.Errorf("node list:\n%s", out)
	}

	away := func() {
		t.Helper()
		h.status("WARN", "store", "away for")
		h.serves(web+":8080", "a", "b")
		h.serves(api+":8080", "b")
	}
	way.shut(t)
	away()
	code, tree := h.rest("PUT", "/v1/services/default/more", `{"ports": [{"port": 8080}]}`)
	if hint, _ := tree["hint"].(string); code != http.StatusServiceUnavailable || tree["code"] != "store_unavailable" || !strings.Contains(hint, "store is reachable") {
		t.Errorf("PUT while Consul is away: %d %v", code, tree)
	}
	if r := h.cli("node", "list"); r.code != 1 || !strings.Contains(r.stderr, "hint:") {
		t.Errorf("node list: exit %d\n%s", r.code, r.stderr)
	}
	if r := h.cli("fleet", "status"); r.code != 3 || !strings.Contains(r.stdout, "away for") {
		t.Errorf("fleet status: exit %d\n%s", r.code, r.stdout)
	}
	if code, _ := h.rest("GET", "/v1/services/default/api", ""); code != http.StatusOK {
		t.Errorf("GET: %d", code)
	}
	h.write("services.d/late.toml", service("late", "", a))
	h.eventually("a new service says what it waits for", func() error {
		code, tree := h.rest("GET", "/v1/services/default/late", "")
		status, _ := tree["status"].(map[string]any)
		problems, _ := status["problems"].([]any)
		if code != 200 || status["state"] != "pending" || len(problems) == 0 {
			return fmt.Errorf("%d %v", code, tree)
		}
		return nil
	})

	way.open(t)
	late := h.vip("late")
	h.serves(late+":8080", "a")
	h.status("OK", "store", "in touch")
	more := h.put("more", a)
	h.serves(more+":8080", "a")

	something := func(string) bool { return true }
	for _, key := range []string{"services/default/more", "holdings/default/more", "leases/" + more, "holdings/default/late"} {
		h.keeps("fleet", key, something)
	}
	h.keeps("cache consul", "default/web", something)
	way.shut(t)
	away()
	h.kill()
	h.start()
	for name, want := range map[string]string{"web": web, "api": api, "late": late, "more": more} {
		expect.Equal(t, h.vip(name), want, "%s moved from %s to", name, want)
	}
	h.serves(late+":8080", "a")
	h.serves(more+":8080", "a")
	away()

	way.open(t)
	h.status("OK", "store", "in touch")
	register(t, consul, "new", b)
	h.serves(h.vip("new")+":8080", "b")
	h.serves(h.put("newer", a)+":8080", "a")
	if _, err := consul.Client.Catalog().Deregister(&consulapi.CatalogDeregistration{Node: "node-a", ServiceID: "web-a"}, nil); err != nil {
		t.Fatal(err)
	}
	h.serves(web+":8080", "b")
}

// An agent that starts on a catalog without most of this host's former services keeps everything
// for a while, unless an operator confirms the loss.
//
// Slow: the copy of the catalog on the disk is written with a delay.
func TestCatalogLostWhileDown(t *testing.T) {
	parallel(t)
	consul := consultest.Start(t, consultest.Options{Memory: true})
	a := newBackend(t, "a")
	names := []string{"api", "db", "web"}
	for _, name := range names {
		register(t, consul, name, a)
	}
	h := withConsul(t, consul.URL, "")
	h.start()
	for _, name := range names {
		h.vip(name)
		h.keeps("cache consul", "default/"+name, func(string) bool { return true })
	}
	h.kill()
	must.Get(consul.Client.Catalog().Deregister(&consulapi.CatalogDeregistration{Node: "node-a"}, nil))(t)
	h.launch()
	h.eventually("the list is doubted", func() error { // once there is a list
		if out := h.cli("source", "list").stdout; !strings.Contains(out, "this host had 3 of it before") || !strings.Contains(out, "ironvip source resync consul") {
			return errors.New(out)
		}
		return nil
	})
	code, _ := h.rest("GET", "/readyz", "")
	expect.True(t, code != http.StatusOK, "ready, though the first list is doubted")
	h.ok("source", "resync", "consul")
	h.ready()
	h.status("OK", "sources", "consul 0 services")
}

// An agent that has never read the store reports what it waits for, and assigns and rejects
// nothing. When the store is available, it begins without a restart.
//
// Slow: status fails after 5 s without a store.
func TestConsulIsNotThereYet(t *testing.T) {
	parallel(t)
	consul := consultest.Start(t, consultest.Options{Memory: true})
	way := newGate(t, consul.Addr.String())
	a := newBackend(t, "a")
	former := withConsul(t, way.addr, "")
	former.start()
	held := former.put("api", a)
	former.stop()
	way.shut(t)

	h := withConsul(t, way.addr, "")
	h.write("services.d/web.toml", service("web", "", a))
	h.launch()
	h.status("FAIL", "store", "waiting for consul at")
	if code, health := h.rest("GET", "/healthz", ""); code != http.StatusOK {
		t.Errorf("healthz: %d %v", code, health)
	}
	if code, doc := h.rest("GET", "/readyz", ""); code != http.StatusServiceUnavailable || !strings.Contains(fmt.Sprint(doc["detail"]), "waiting for consul at") {
		t.Errorf("readyz: %d %v", code, doc)
	}
	if r := h.cli("service", "list"); r.code != 1 || r.stdout != "" || !strings.Contains(r.stderr, "waiting for consul at") || !strings.Contains(r.stderr, "hint: ") {
		t.Errorf("service list: exit %d\n%s%s", r.code, r.stdout, r.stderr)
	}
	h.edit("services.d/web.toml", "port = 8080", "port = 8081")
	h.ok("reload")
	h.cmd.Process.Signal(syscall.SIGHUP)
	h.eventually("the log has it, and both reloads", func() error {
		if log := h.log.String(); !strings.Contains(log, "waiting for the store") || strings.Count(log, "msg=reloaded") < 2 {
			return fmt.Errorf("not yet")
		}
		return nil
	})

	way.open(t)
	h.ready()
	h.serves(h.vip("web")+":8081", "a")
	got := h.vip("api")
	expect.Equal(t, got, held, "api has %s, and had %s before", got, held)
	h.status("OK", "store", "in touch")
}
