//go:build system

package program

import (
	"errors"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"

	consulapi "github.com/hashicorp/consul/api"
	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/ironvip/ironvip/internal/store"
	"github.com/ironvip/ironvip/test/consultest"
	"github.com/ironvip/ironvip/test/etcdtest"
	"github.com/ironvip/ironvip/test/expect"
	"github.com/ironvip/ironvip/test/must"
)

// fleetStore is a store that the hosts of a fleet share.
type fleetStore struct {
	name   string
	addr   string // host and port of the server
	config func(addr string) string
	expire func(t *testing.T) // ends the sessions of all hosts
	put    func(t *testing.T, key, value string)
	remove string // the command that removes a key
}

// onEachStore runs a test with Consul and with etcd.
func onEachStore(t *testing.T, test func(t *testing.T, s *fleetStore)) {
	for name, start := range map[string]func(*testing.T) *fleetStore{"consul": inConsul, "etcd": inEtcd} {
		t.Run(name, func(t *testing.T) {
			parallel(t)
			test(t, start(t))
		})
	}
}

func inConsul(t *testing.T) *fleetStore {
	t.Helper()
	server := consultest.Start(t, consultest.Options{Memory: true})
	return &fleetStore{
		name: "consul", addr: server.Addr.String(), remove: "consul kv delete",
		config: func(addr string) string {
			return fmt.Sprintf("[ipam]\nstore = \"consul\"\n[consul]\naddress = %q\n", addr)
		},
		expire: func(t *testing.T) {
			sessions, _, err := server.Client.Session().List(nil)
			must.Succeed(t, err)
			must.True(t, len(sessions) > 0, "sessions")
			for _, s := range sessions {
				must.Get(server.Client.Session().Destroy(s.ID, nil))(t)
			}
		},
		put: func(t *testing.T, key, value string) {
			must.Get(server.Client.KV().Put(&consulapi.KVPair{Key: key, Value: []byte(value)}, nil))(t)
		},
	}
}

func inEtcd(t *testing.T) *fleetStore {
	t.Helper()
	servers := etcdtest.Start(t, etcdtest.Options{})
	return &fleetStore{
		name: "etcd", addr: strings.TrimPrefix(servers.URLs[0], "http://"), remove: "etcdctl del",
		config: func(addr string) string {
			return fmt.Sprintf("[ipam]\nstore = \"etcd\"\n[etcd]\nendpoints = [%q]\n", "http://"+addr)
		},
		expire: func(t *testing.T) {
			leases := must.Get(servers.Client.Leases(t.Context()))(t)
			must.True(t, len(leases.Leases) > 0, "leases")
			for _, l := range leases.Leases {
				must.Get(servers.Client.Revoke(t.Context(), clientv3.LeaseID(l.ID)))(t)
			}
		},
		put: func(t *testing.T, key, value string) { must.Get(servers.Client.Put(t.Context(), key, value))(t) },
	}
}

// withFleet creates a host with a fleet's store at an address.
func withFleet(t *testing.T, s *fleetStore, addr string) *host {
	t.Helper()
	h := newHost(t)
	h.config(s.config(addr) + "[[source]]\ntype = \"static\"\npath = \"services.d\"\n")
	return h
}

// A host moves from its own disk to the fleet's store and back, and every service keeps its address. Without
// the move the agent doesn't start, because it would assign new addresses.
func TestMovingBetweenStores(t *testing.T) {
	onEachStore(t, movesBetweenStores)
}

func movesBetweenStores(t *testing.T, s *fleetStore) {
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
	fleet := s.config(s.addr) + "[[pool]]"
	move("[[pool]]", fleet, "restored 4 leases, 2 registrations, 1 override into the store "+s.name)
	h.kept(addresses, a, b)
	h.status("OK", "store", "in touch")
	addresses["newer"] = h.put("newer", b) // later services are there after the move back
	if code, tree := h.rest("DELETE", "/v1/services/default/late", "", "Prefer", "wait=300"); code/100 != 2 {
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

// A fleet's hosts know each other: a host with the name of a live one ends and says why, a reinstalled host gets its name back
// when its former session has expired, and a host that has ended is lost until it is forgotten. Values that nobody can read are named.
//
// Slow: hosts compare their own state every 5 s, and a store may hold a lock back for a second after its session.
func TestHostsOfAFleet(t *testing.T) {
	onEachStore(t, hostsOfAFleet)
}

func hostsOfAFleet(t *testing.T, s *fleetStore) {
	one, two, namesake := withFleet(t, s, s.addr), withFleet(t, s, s.addr), withFleet(t, s, s.addr)
	two.edit("ironvip.toml", `name = "lb1"`, `name = "lb2"`)
	one.start()
	two.start()
	refused := make(chan string, 1)
	go func() { refused <- namesake.fails() }()
	namesake.eventually("the second host waits", func() error {
		if log := namesake.log.String(); !strings.Contains(log, "waiting for a lock in the fleet's store") {
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
	s.expire(t)
	one.status("OK", "store", "in touch")
	one.stop()
	two.status("WARN", "nodes", "lb1 is lost: silent for")
	if out := two.ok("node", "list"); !strings.Contains(out, "lb1") || !strings.Contains(out, "lost") {
		t.Errorf("node list:\n%s", out)
	}
	if r := two.cli("fleet", "status"); r.code != 3 || !strings.Contains(r.stdout, "lost") {
		t.Errorf("fleet status: exit %d\n%s", r.code, r.stdout)
	}
	two.ok("node", "forget", "lb1")
	mentions(t, "fleet status", two.ok("fleet", "status"), "in touch, lb2 is elected")
	if out := two.ok("node", "list"); strings.Contains(out, "lb1") {
		t.Errorf("node list after node forget:\n%s", out)
	}

	const junk = "ironvip/v2/tree/leases/banana"
	s.put(t, junk, "junk")
	two.ok("source", "resync", "rest")
	mentions(t, "the status", two.cli("status").stdout, "1 problem", junk+":", s.remove+" "+junk+";")
}

// While the fleet's store is away, an operator can drain a backend on one host. The host keeps that over a
// restart and shows it as local. When the store is back, it applies to all hosts.
//
// Slow: each write waits a second for the store.
func TestDrainWhileTheStoreIsAway(t *testing.T) {
	onEachStore(t, drainsWhileAway)
}

func drainsWhileAway(t *testing.T, s *fleetStore) {
	way := newGate(t, s.addr)
	a, b := newBackend(t, "a"), newBackend(t, "b")
	one, two := withFleet(t, s, way.addr), withFleet(t, s, way.addr)
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
