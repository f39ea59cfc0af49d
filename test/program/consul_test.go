//go:build system

package program

import (
	"errors"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	consulapi "github.com/hashicorp/consul/api"

	"github.com/ironvip/ironvip/internal/store"
	"github.com/ironvip/ironvip/test/consultest"
	"github.com/ironvip/ironvip/test/wait"
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
func TestConsulAway(t *testing.T) {
	consul := consultest.Start(t, consultest.Options{})
	a, b := newBackend(t, "a"), newBackend(t, "b")
	register(t, consul, "web", a, b)
	h := withConsul(t, consul.URL, "")
	h.start()
	web := h.vip("web")
	h.serves(web+":8080", "a", "b")
	api := h.put("api", b)
	h.serves(api+":8080", "b")
	h.status("OK", "store", "in touch, lb1 is elected")
	if out := h.ok("node", "list"); !strings.Contains(out, "lb1") || !strings.Contains(out, "this node") {
		t.Errorf("node list:\n%s", out)
	}

	away := func(name string) {
		t.Helper()
		h.status("WARN", "store", "away for")
		h.serves(web+":8080", "a", "b")
		h.serves(api+":8080", "b")
		code, tree := h.rest("PUT", "/v1/services/default/"+name, `{"ports": [{"port": 8080}]}`)
		if hint, _ := tree["hint"].(string); code != http.StatusServiceUnavailable || tree["code"] != "store_unavailable" || !strings.Contains(hint, "store is reachable") {
			t.Errorf("PUT while Consul is away: %d %v", code, tree)
		}
		h.write("tried.toml", service(name, "", a))
		if r := h.cli("service", "apply", "-f", filepath.Join(h.dir, "tried.toml")); r.code != 1 || !strings.Contains(r.stderr, "hint:") {
			t.Errorf("apply: exit %d\n%s", r.code, r.stderr)
		}
		if r := h.cli("node", "list"); r.code != 1 || !strings.Contains(r.stderr, "hint:") {
			t.Errorf("node list: exit %d\n%s", r.code, r.stderr)
		}
		if code, _ := h.rest("GET", "/v1/services/default/api", ""); code != http.StatusOK {
			t.Errorf("GET: %d", code)
		}
	}
	consul.Stop()
	away("more")
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

	consul.Start()
	consul.WaitReady()
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
	consul.Stop()
	away("still")
	h.kill()
	h.start()
	for name, want := range map[string]string{"web": web, "api": api, "late": late, "more": more} {
		if got := h.vip(name); got != want {
			t.Errorf("%s moved from %s to %s", name, want, got)
		}
	}
	h.serves(late+":8080", "a")
	h.serves(more+":8080", "a")
	away("again")

	consul.Start()
	consul.WaitReady()
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
		if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
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
	fleet := fmt.Sprintf("[ipam]\nstore = \"consul\"\nconsul_address = %q\n[[pool]]", consul.URL)
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
		if got := h.vip(name); got != want {
			t.Errorf("back on the disk, %s moved from %s to %s", name, want, got)
		}
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
	if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	r := command(t, "snapshot", "restore", file, "--config", other.dir)
	if r.code != 5 || !strings.Contains(r.stderr, "lease "+addresses["web"]+" of other: the store has it for web") || !strings.Contains(r.stderr, "nothing restored") {
		t.Errorf("restore with conflicts: exit %d\n%s", r.code, r.stderr)
	}
	if r := command(t, "snapshot", "restore", "--none", "--config", other.dir); r.code != 0 {
		t.Errorf("restore --none: exit %d\n%s", r.code, r.stderr)
	}
	other.remove("services.d/other.toml")
	other.start()
	if got := other.vip("web"); got != addresses["web"] {
		t.Errorf("the second host has web at %s, the fleet at %s", got, addresses["web"])
	}
}

// An agent that starts on a catalog without most of this host's former services keeps everything
// for a while, unless an operator confirms the loss.
func TestCatalogLostWhileDown(t *testing.T) {
	consul := consultest.Start(t, consultest.Options{})
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
	if _, err := consul.Client.Catalog().Deregister(&consulapi.CatalogDeregistration{Node: "node-a"}, nil); err != nil {
		t.Fatal(err)
	}
	h.launch()
	h.status("WARN", "sources", "not synced yet")
	h.eventually("the list is doubted", func() error { // once there is a list
		if out := h.ok("source", "list"); !strings.Contains(out, "this host had 3 of it before") || !strings.Contains(out, "ironvip source resync consul") {
			return errors.New(out)
		}
		return nil
	})
	if code, _ := h.rest("GET", "/readyz", ""); code == http.StatusOK {
		t.Error("ready, though the first list is doubted")
	}
	h.ok("source", "resync", "consul")
	h.ready()
	h.status("OK", "sources", "consul 0 services")
}

// With ACLs, over the unix socket: the token comes from a file. A revoked token leaves everything
// as it is, and a new one in the file is used without a restart.
func TestConsulTokens(t *testing.T) {
	consul := consultest.Start(t, consultest.Options{ACL: true})
	a := newBackend(t, "a")
	register(t, consul, "web", a)
	rules := `key_prefix "ironvip/" { policy = "write" }
session_prefix "" { policy = "write" }
service_prefix "" { policy = "read" }
node_prefix "" { policy = "read" }`
	h := withConsul(t, "unix://"+consul.Socket, `token_file = "token"`)
	token := consul.NewToken(rules)
	h.write("token", token+"\n")
	h.start()
	web := h.vip("web")
	h.serves(web+":8080", "a")
	consul.RevokeToken(token)
	h.eventually("a revoked token is noticed", func() error {
		r := h.cli("status")
		if !strings.Contains(r.stdout, "token") {
			return fmt.Errorf("%s", r.stdout)
		}
		return nil
	})
	h.serves(web+":8080", "a")
	h.write("token", consul.NewToken(rules))
	h.status("OK", "store", "in touch")
	h.status("OK", "sources", "consul 1 service")
	h.serves(h.put("api", a)+":8080", "a")

	h.remove("token")
	if r := command(t, "config", "validate", h.dir); r.code != 1 || !strings.Contains(r.stdout, "consul.token_file: ") {
		t.Errorf("validate without the token's file: exit %d\n%s%s", r.code, r.stdout, r.stderr)
	}
	h.stop()
	r := command(t, "snapshot", "save", "--config", h.dir, "--timeout", "5s")
	if r.code != 1 || !strings.Contains(r.stderr, "token") || !strings.Contains(r.stderr, "hint:") {
		t.Errorf("save without a token: exit %d\n%s", r.code, r.stderr)
	}
}

// An agent that has never read the store reports what it waits for, and assigns and rejects
// nothing. When the store is available, it begins without a restart.
func TestConsulIsNotThereYet(t *testing.T) {
	consul := consultest.Start(t, consultest.Options{})
	a := newBackend(t, "a")
	former := withConsul(t, consul.URL, "")
	former.start()
	held := former.put("api", a)
	former.stop()
	consul.Stop()

	h := withConsul(t, consul.URL, "")
	h.write("services.d/web.toml", service("web", "", a))
	h.launch()
	h.status("FAIL", "store", "waiting for consul at")
	if code, health := h.rest("GET", "/healthz", ""); code != http.StatusOK {
		t.Errorf("healthz: %d %v", code, health)
	}
	if code, doc := h.rest("GET", "/readyz", ""); code != http.StatusServiceUnavailable || !strings.Contains(fmt.Sprint(doc["detail"]), "waiting for consul at") {
		t.Errorf("readyz: %d %v", code, doc)
	}
	for _, ask := range []struct{ method, path, body string }{
		{"GET", "/v1/services/default/api", ""}, {"GET", "/v1/vips", ""}, {"DELETE", "/v1/services/default/api", ""},
		{"PUT", "/v1/services/default/new", `{"ports":[{"port":8080}]}`}, {"PUT", "/v1/services/default/api/backends/127.0.0.1:9/heartbeat", ""},
	} {
		if code, doc := h.rest(ask.method, ask.path, ask.body); code != http.StatusServiceUnavailable || doc["code"] != "store_unavailable" {
			t.Errorf("%s %s: %d %v", ask.method, ask.path, code, doc)
		}
	}
	if r := h.cli("service", "list"); r.code != 1 || r.stdout != "" || !strings.Contains(r.stderr, "waiting for consul at") || !strings.Contains(r.stderr, "hint: ") {
		t.Errorf("service list: exit %d\n%s%s", r.code, r.stdout, r.stderr)
	}
	if r := command(t, "doctor", "--config", h.dir); !strings.Contains(r.stdout, "FAIL  store: waiting for consul at") {
		t.Errorf("doctor: exit %d\n%s%s", r.code, r.stdout, r.stderr)
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

	consul.Start()
	consul.WaitReady()
	h.ready()
	h.serves(h.vip("web")+":8081", "a")
	if got := h.vip("api"); got != held {
		t.Errorf("api has %s, and had %s before", got, held)
	}
	h.status("OK", "store", "in touch")
}

// Invalid values in the store are reported by key. A resync after the fix ends the report.
func TestJunkInTheStore(t *testing.T) {
	consul := consultest.Start(t, consultest.Options{Memory: true})
	h := withConsul(t, consul.URL, "")
	h.start()
	h.status("OK", "store", "in touch, lb1 is elected")
	h.put("api", newBackend(t, "a"))
	keys := []string{"log/XX", "tree/leases/banana", "tree/nowhere/x"}
	for _, key := range keys {
		if _, err := consul.Client.KV().Put(&consulapi.KVPair{Key: "ironvip/v2/" + key, Value: []byte("junk")}, nil); err != nil {
			t.Fatal(err)
		}
	}
	for i := range 30 {
		if _, err := consul.Client.KV().Put(&consulapi.KVPair{Key: fmt.Sprintf("ironvip/v2/tree/zz/%d", i), Value: []byte("junk")}, nil); err != nil {
			t.Fatal(err)
		}
	}
	h.ok("source", "resync", "rest")
	r := h.cli("status") // immediately
	for _, key := range keys {
		if !strings.Contains(r.stdout, "ironvip/v2/"+key+":") || !strings.Contains(r.stdout, "consul kv delete ironvip/v2/"+key+";") {
			t.Errorf("status lacks %s:\n%s", key, r.stdout)
		}
	}
	if !strings.Contains(r.stdout, "33 problems") || !strings.Contains(r.stdout, "and 13 more") || !strings.Contains(r.stdout, "ironvip source resync rest") {
		t.Errorf("status:\n%s", r.stdout)
	}
	for _, key := range append(keys, "tree/zz/") {
		if _, err := consul.Client.KV().DeleteTree("ironvip/v2/"+key, nil); err != nil {
			t.Fatal(err)
		}
	}
	h.ok("source", "resync", "rest")
	if r := h.cli("status"); !strings.Contains(r.stdout, "in touch, lb1 is elected") {
		t.Errorf("status after the fix:\n%s", r.stdout)
	}
	consul.Stop()
	h.status("WARN", "store", "away for")
	if r := h.cli("source", "resync", "rest"); r.code != 1 || !strings.Contains(r.stderr, "consul") || !strings.Contains(r.stderr, "hint:") {
		t.Errorf("resync without Consul: exit %d\n%s%s", r.code, r.stdout, r.stderr)
	}
}

// stored returns the fleet's content in Consul by key, without what a live agent writes
// periodically.
func stored(t *testing.T, c *consultest.Server) map[string]string {
	t.Helper()
	pairs, _, err := c.Client.KV().List("ironvip/", nil)
	if err != nil {
		t.Fatal(err)
	}
	out := map[string]string{}
	for _, p := range pairs {
		if !strings.HasPrefix(p.Key, "ironvip/v2/nodes/") && p.Key != "ironvip/v2/leader" {
			out[p.Key] = string(p.Value)
		}
	}
	return out
}

// A host with the id or the name of a live one ends, names that host and a fix, and changes nothing
// in Consul. The live one is not affected.
func TestSecondHostIsRefused(t *testing.T) {
	consul := consultest.Start(t, consultest.Options{Memory: true})
	a := newBackend(t, "a")
	one, namesake, clone := withConsul(t, consul.URL, ""), withConsul(t, consul.URL, ""), withConsul(t, consul.URL, "")
	one.write("services.d/first.toml", service("first", "", a))
	namesake.write("services.d/second.toml", service("second", "", a))
	clone.write("services.d/third.toml", service("third", "", a))
	clone.edit("ironvip.toml", `name = "lb1"`, `name = "lb2"`)
	one.start()
	first := one.vip("first")
	one.stop()
	state, err := os.ReadFile(filepath.Join(one.dir, "state", store.FileName))
	if err != nil {
		t.Fatal(err)
	}
	if err := os.Mkdir(filepath.Join(clone.dir, "state"), 0o750); err != nil {
		t.Fatal(err)
	}
	clone.write("state/"+store.FileName, string(state))
	one.start()
	one.serves(first+":8080", "a")
	var before map[string]string
	wait.Until(t, "the elected host writes the digests, its last write of the next minutes", func() bool {
		before = stored(t, consul)
		return strings.Contains(before["ironvip/v2/log/head"], `"digests"`)
	})
	var refused sync.WaitGroup // each waits until the live host's session would have expired
	said := map[*host]*string{namesake: new(string), clone: new(string)}
	for h, text := range said {
		refused.Go(func() { *text = h.failsWithin(2 * time.Minute) })
	}
	refused.Wait()
	for h, wanted := range map[*host][]string{
		namesake: {`node name "lb1" is in use: node "lb1"`, "started", "set node.name in ironvip.toml"},
		clone:    {"host id", `is in use: node "lb1"`, "started", "ironvip node new-id"},
	} {
		for _, part := range wanted {
			if !strings.Contains(*said[h], part) {
				t.Errorf("it lacks %q:\n%s", part, *said[h])
			}
		}
	}
	if diff := cmp.Diff(before, stored(t, consul)); diff != "" {
		t.Errorf("changed in Consul by the refused hosts:\n%s", diff)
	}
	one.serves(first+":8080", "a")
	one.status("OK", "store", "in touch, lb1 is elected")

	// The copy gets its own identity, and is then another host.
	if r := one.cli("node", "new-id", "--config", one.dir); r.code != 5 || !strings.Contains(r.stderr, "systemctl stop ironvip") {
		t.Errorf("new-id while the agent runs: exit %d\n%s%s", r.code, r.stdout, r.stderr)
	}
	clone.ok("node", "new-id", "--config", clone.dir)
	clone.log = nil
	clone.start()
	clone.serves(clone.vip("third")+":8080", "a")
	if out := one.ok("node", "list"); !strings.Contains(out, "lb1") || !strings.Contains(out, "lb2") {
		t.Errorf("node list:\n%s", out)
	}
	// The name is free again. Its node is lost, until it is forgotten or back.
	one.stop()
	clone.eventually("lb1 is lost", func() error {
		if out := clone.ok("node", "list"); !strings.Contains(out, "lost") {
			return errors.New(out)
		}
		return nil
	})
	clone.status("WARN", "nodes", "lb1 is lost: silent for")
	if out := clone.ok("events"); !strings.Contains(out, "node_lost") {
		t.Errorf("events:\n%s", out)
	}
	clone.ok("node", "forget", "lb1")
	if out := clone.ok("node", "list"); strings.Contains(out, "lb1") {
		t.Errorf("node list after node forget:\n%s", out)
	}
	if r := clone.cli("node", "forget", "lb2"); r.code != 5 || !strings.Contains(r.stderr, "present") {
		t.Errorf("forget a node that is present: exit %d\n%s", r.code, r.stderr)
	}
	namesake.log = nil
	namesake.start()
	namesake.serves(namesake.vip("second")+":8080", "a")
}

// An agent that was killed starts again at once. A host that was killed and reinstalled gets its
// name back when the session of its former run has expired.
func TestRestartAndReinstallOfAFleetHost(t *testing.T) {
	consul := consultest.Start(t, consultest.Options{Memory: true})
	a := newBackend(t, "a")
	h := withConsul(t, consul.URL, "")
	h.write("services.d/web.toml", service("web", "", a))
	h.start()
	web := h.vip("web")
	for range 3 {
		wait.Undisturbed(t, "a restart after a kill", func() error {
			h.kill()
			began := time.Now()
			h.start()
			if took := time.Since(began); took > 10*time.Second { // a session takes at least 15 s
				return fmt.Errorf("it took %s", took)
			}
			return nil
		})
		h.serves(web+":8080", "a")
		h.status("OK", "store", "in touch, lb1 is elected")
	}
	h.kill()
	h.remove("state/" + store.FileName)
	h.log = nil
	h.launch()
	h.status("FAIL", "store", `node name "lb1" is in use: node "lb1"`)
	h.within(2*time.Minute, "the reinstalled host is ready", func() error {
		if r := h.cli("status"); !strings.Contains(r.stdout, "in touch, lb1 is elected") {
			return fmt.Errorf("exit %d\n%s%s", r.code, r.stdout, r.stderr)
		}
		return nil
	})
	if got := h.vip("web"); got != web {
		t.Errorf("web moved from %s to %s", web, got)
	}
	h.serves(web+":8080", "a")
}

// A stalled host resumes when another one has its name. It serves its former state, reports the
// conflict, writes nothing, and gets its name back once the other host is gone.
func TestStalledHostLosesItsName(t *testing.T) {
	consul := consultest.Start(t, consultest.Options{Memory: true})
	a, b := newBackend(t, "a"), newBackend(t, "b")
	one, two := withConsul(t, consul.URL, ""), withConsul(t, consul.URL, "")
	one.write("services.d/first.toml", service("first", "", a))
	one.start()
	first := one.vip("first")
	one.serves(first+":8080", "a")
	if err := one.cmd.Process.Signal(syscall.SIGSTOP); err != nil {
		t.Fatal(err)
	}
	two.write("services.d/second.toml", service("second", "", b))
	two.launch()
	two.within(2*time.Minute, "the second one is ready", func() error {
		if r := two.cli("status"); !strings.Contains(r.stdout, "in touch, lb1 is elected") {
			return fmt.Errorf("exit %d\n%s%s", r.code, r.stdout, r.stderr)
		}
		return nil
	})
	second := two.vip("second")
	if err := one.cmd.Process.Signal(syscall.SIGCONT); err != nil {
		t.Fatal(err)
	}
	one.within(2*time.Minute, "the stalled one says so", func() error {
		if r := one.cli("status"); !strings.Contains(r.stdout, `node name "lb1" is in use: node "lb1"`) || !strings.Contains(r.stdout, "FAIL  store") {
			return fmt.Errorf("exit %d\n%s%s", r.code, r.stdout, r.stderr)
		}
		return nil
	})
	one.serves(first+":8080", "a")
	two.serves(second+":8080", "b")
	if code, tree := one.rest("PUT", "/v1/services/default/third", `{"ports": [{"port": 8080}]}`); code != http.StatusServiceUnavailable {
		t.Errorf("a registration in another host's name: %d %v", code, tree)
	}
	two.status("OK", "store", "in touch, lb1 is elected")
	two.stop()
	one.status("OK", "store", "in touch, lb1 is elected")
	one.serves(first+":8080", "a")
	one.serves(one.put("third", b)+":8080", "b")
}

// While Consul is away, an operator can drain a backend on one host. The host keeps that over a
// restart and shows it as local. When Consul is back, it applies to all hosts, and of two decisions
// the later one wins.
func TestDrainWhileConsulIsAway(t *testing.T) {
	consul := consultest.Start(t, consultest.Options{})
	a, b := newBackend(t, "a"), newBackend(t, "b")
	one, two := withConsul(t, consul.URL, ""), withConsul(t, consul.URL, "")
	two.edit("ironvip.toml", `name = "lb1"`, `name = "lb2"`)
	for _, h := range []*host{one, two} {
		h.write("services.d/web.toml", service("web", "", a, b))
		h.start()
	}
	web := one.vip("web") + ":8080"
	one.serves(web, "a", "b")
	one.ok("backend", "drain", "web", b.addr)
	lists := func(h *host, says ...string) {
		t.Helper()
		h.eventually(fmt.Sprintf("override list has %q", says), func() error {
			out := h.ok("override", "list")
			for _, s := range says {
				if !strings.Contains(out, s) {
					return errors.New(out)
				}
			}
			if len(says) == 0 && strings.Contains(out, ":") {
				return errors.New(out)
			}
			return nil
		})
	}
	lists(two, b.addr, "drain", "lb1")

	consul.Stop()
	for _, h := range []*host{one, two} {
		h.status("WARN", "store", "away for")
	}
	says := func(h *host, args ...string) {
		t.Helper()
		r := h.cli(append([]string{"backend"}, args...)...)
		if r.code != 0 || !strings.Contains(r.stderr, "stored on this host only") {
			t.Errorf("%v: exit %d\n%s", args, r.code, r.stderr)
		}
	}
	says(one, "ready", "web", b.addr)
	one.serves(web, "a", "b")
	says(one, "drain", "web", a.addr)
	one.serves(web, "b")
	one.status("WARN", "overrides", "set on this host only")
	says(two, "maint", "web", a.addr, "--force", "--no-wait") // later than lb1; lb1 has the address
	lists(two, a.addr, "maint, local", b.addr, "drain")
	one.kill()
	one.start()
	one.serves(web, "b")
	lists(one, a.addr, "drain, local", b.addr, "ready, local")

	consul.Start()
	consul.WaitReady()
	for _, h := range []*host{one, two} {
		h.eventually("lb2's decision about a is in effect, and lb1's about b", func() error {
			out := h.ok("override", "list")
			if !strings.Contains(out, a.addr) || !strings.Contains(out, "maint") || strings.Contains(out, b.addr) || strings.Contains(out, "local") {
				return errors.New(out)
			}
			return nil
		})
	}
	one.serves(web, "b")
	one.ok("override", "clear", "web", a.addr)
	lists(two)
	one.serves(web, "a", "b")
}
