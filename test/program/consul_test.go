//go:build system

package program

import (
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"

	consulapi "github.com/hashicorp/consul/api"

	"github.com/ironvip/ironvip/internal/store"
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

// gate is the way to a Consul server. A closed one refuses connections, as a stopped server does.
type gate struct {
	backend
	to string

	mu     sync.Mutex
	closed bool
	conns  []net.Conn
}

func newGate(t *testing.T, c *consultest.Server) *gate {
	t.Helper()
	g := &gate{to: c.Addr.String()}
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
	way := newGate(t, consul)
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

// A host moves from its own disk to Consul and back, and every service keeps its address. Without
// the move the agent doesn't start, because it would assign new addresses.
func TestMovingBetweenStores(t *testing.T) {
	parallel(t)
	consul := consultest.Start(t, consultest.Options{Memory: true})
	h := newHost(t)
	a, b := newBackend(t, "a"), newBackend(t, "b")
	h.start()
	addresses := h.hoard(a, b)
	file := filepath.Join(t.TempDir(), "vips.json")
	// move moves the host to another store with a restore that prints says.
	move := func(from, to, says string) {
		t.Helper()
		h.stop()
		text, _ := h.save("--config", h.dir)
		must.Succeed(t, os.WriteFile(file, []byte(text), 0o600))
		h.edit("ironvip.toml", from, to)
		if said := h.fails(); !strings.Contains(said, "would all get new addresses") || !strings.Contains(said, "ironvip snapshot restore") {
			t.Errorf("started on a store without its addresses:\n%s", said)
		}
		r := command(t, "snapshot", "restore", file, "--config", h.dir)
		if r.code != 0 || !strings.Contains(r.stderr, says) {
			t.Fatalf("restore: exit %d\n%s", r.code, r.stderr)
		}
		h.log = nil
		h.start()
	}
	fleet := fmt.Sprintf("[ipam]\nstore = \"consul\"\n[consul]\naddress = %q\n[[pool]]", consul.URL)
	move("[[pool]]", fleet, "restored 4 leases, 2 registrations, 1 override into the store consul")
	h.kept(addresses, a, b)
	h.status("OK", "store", "in touch")
	addresses["newer"] = h.put("newer", b) // later services are there after the move back
	if code, tree := h.rest("DELETE", "/v1/services/default/late", "", "Prefer", "wait=30"); code/100 != 2 {
		t.Fatalf("DELETE: %d %v", code, tree)
	}
	late := addresses["late"]
	delete(addresses, "late")
	move(fleet, "[[pool]]", "outdated value")
	for name, want := range addresses {
		expect.Equal(t, h.vip(name), want, "back on the disk, %s moved from %s to", name, want)
	}
	h.serves(addresses["newer"]+":8080", "b")
	if code, _ := h.rest("GET", "/v1/services/default/late", ""); code != http.StatusNotFound {
		t.Errorf("what was deleted meanwhile (%s) is back: %d", late, code)
	}

	// A second host with the same services at other addresses gets conflicts.
	other := newHost(t)
	other.edit("ironvip.toml", other.pool, h.pool)
	other.write("services.d/other.toml", service("other", `vips = ["`+addresses["web"]+`"]`, a))
	other.write("services.d/web.toml", service("web", "", a))
	other.start()
	other.vip("web")
	other.stop()
	text, _ := other.save("--config", other.dir)
	other.edit("ironvip.toml", "[[pool]]", fleet)
	must.Succeed(t, os.WriteFile(file, []byte(text), 0o600))
	r := command(t, "snapshot", "restore", file, "--config", other.dir)
	if r.code != 5 || !strings.Contains(r.stderr, "lease "+addresses["web"]+" of other: the store has it for web") || !strings.Contains(r.stderr, "nothing restored") {
		t.Errorf("restore with conflicts: exit %d\n%s", r.code, r.stderr)
	}
	if r := command(t, "snapshot", "restore", "--none", "--config", other.dir); r.code != 0 {
		t.Errorf("restore --none: exit %d\n%s", r.code, r.stderr)
	}
	other.remove("services.d/other.toml")
	other.start()
	got := other.vip("web")
	expect.Equal(t, got, addresses["web"], "the second host has web at %s, the fleet at", got)
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
	way := newGate(t, consul)
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

// A fleet's hosts know each other: a host with the name of a live one ends and says why, a reinstalled host gets its name back
// when its former session has expired, and a host that has ended is lost until it is forgotten. Values that nobody can read are named.
//
// Slow: hosts compare their own state every 5 s, and Consul holds a lock back for a second after its session.
func TestHostsOfAFleet(t *testing.T) {
	parallel(t)
	consul := consultest.Start(t, consultest.Options{Memory: true})
	one, two, namesake := withConsul(t, consul.URL, ""), withConsul(t, consul.URL, ""), withConsul(t, consul.URL, "")
	two.edit("ironvip.toml", `name = "lb1"`, `name = "lb2"`)
	one.start()
	two.start()
	refused := make(chan string, 1)
	go func() { refused <- namesake.fails() }()
	namesake.eventually("the second host waits", func() error {
		if log := namesake.log.String(); !strings.Contains(log, "waiting for a lock in consul") {
			return errors.New(log)
		}
		return nil
	})
	one.write("services.d/bad.toml", "bad") // its number of problems shows that it lives
	const inUse = `node name "lb1" is in use: node "lb1"`
	mentions(t, "the refusal", <-refused, inUse, "set node.name in ironvip.toml")

	one.kill()
	one.remove("state/" + store.FileName)
	one.launch()
	one.eventually("the reinstalled host waits", func() error {
		if text := one.cli("status").stdout; !strings.Contains(text, inUse) {
			return errors.New(text)
		}
		return nil
	})
	sessions, _, err := consul.Client.Session().List(nil)
	for _, s := range sessions {
		_, failed := consul.Client.Session().Destroy(s.ID, nil)
		err = errors.Join(err, failed)
	}
	if err != nil || len(sessions) == 0 {
		t.Fatalf("expire sessions %v: %v", sessions, err)
	}
	one.status("OK", "store", "in touch")
	one.stop()
	two.status("WARN", "nodes", "lb1 is lost: silent for")
	if out := two.ok("node", "list"); !strings.Contains(out, "lb1") || !strings.Contains(out, "lost") {
		t.Errorf("node list:\n%s", out)
	}
	two.ok("node", "forget", "lb1")
	if out := two.ok("node", "list"); strings.Contains(out, "lb1") {
		t.Errorf("node list after node forget:\n%s", out)
	}

	const junk = "ironvip/v2/tree/leases/banana"
	must.Get(consul.Client.KV().Put(&consulapi.KVPair{Key: junk, Value: []byte("junk")}, nil))(t)
	two.ok("source", "resync", "rest")
	mentions(t, "the status", two.cli("status").stdout, "1 problem", junk+":", "consul kv delete "+junk+";")
}

// While Consul is away, an operator can drain a backend on one host. The host keeps that over a
// restart and shows it as local. When Consul is back, it applies to all hosts.
//
// Slow: each write waits a second for Consul.
func TestDrainWhileConsulIsAway(t *testing.T) {
	parallel(t)
	consul := consultest.Start(t, consultest.Options{Memory: true})
	way := newGate(t, consul)
	a, b := newBackend(t, "a"), newBackend(t, "b")
	one, two := withConsul(t, way.addr, ""), withConsul(t, way.addr, "")
	two.edit("ironvip.toml", `name = "lb1"`, `name = "lb2"`)
	one.write("services.d/web.toml", service("web", "", a, b)) // not the other host's: it would take the address while this one is down
	one.start()
	two.start()
	web := one.vip("web") + ":8080"
	one.serves(web, "a", "b")
	lists := func(h *host, state string) {
		t.Helper()
		h.eventually("override list has "+state, func() error {
			if out := h.ok("override", "list"); !strings.Contains(out, b.addr) || !strings.Contains(out, state) || strings.Contains(out, "local") != strings.Contains(state, "local") {
				return errors.New(out)
			}
			return nil
		})
	}
	way.shut(t)
	one.status("WARN", "store", "away for")
	if r := one.cli("backend", "drain", "web", b.addr); r.code != 0 || !strings.Contains(r.stderr, "stored on this host only") {
		t.Errorf("drain: exit %d\n%s", r.code, r.stderr)
	}
	one.serves(web, "a")
	one.status("WARN", "overrides", "set on this host only")
	one.kill()
	one.start()
	one.serves(web, "a")
	lists(one, "drain, local")

	way.open(t)
	lists(one, "drain")
	lists(two, "drain")
	one.ok("override", "clear", "web", b.addr)
	one.serves(web, "a", "b")
}
