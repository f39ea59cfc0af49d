package pipeline

import (
	"testing"
	"time"

	"github.com/ironvip/ironvip/pipeline/compile"
	"github.com/ironvip/ironvip/test/bubble"
	"github.com/ironvip/ironvip/test/expect"
	"github.com/ironvip/ironvip/vip"
)

var n1 = compile.Node{Name: "n1", Zone: "za"}

// For backends without a node, changed host addresses decide which are local. Services that name
// the nodes aren't compiled for such changes.
func TestLocalFollowsTheHostsAddresses(t *testing.T) {
	inWorldOf(t, n1, func(t *testing.T, w *world) {
		w.put(service("web", []string{"10.0.0.1", "10.9.0.1"}, local),
			service("named", []string{"10.0.0.1", "10.9.0.1"}, local, onNode(0, "n1"), onNode(1, "n2")))
		w.expect("192.0.2.1:80/tcp web:", "192.0.2.2:80/tcp named: 10.0.0.1:80*1")
		w.changedRows()
		w.Host.Set(hostAddrs("10.9.0.1/24"))
		w.put()
		w.expect("192.0.2.1:80/tcp web: 10.9.0.1:80*1", "192.0.2.2:80/tcp named: 10.0.0.1:80*1")
		expect.Equal(t, w.changedRows(), 1, "frontends changed")
		w.Host.Set(hostAddrs("10.9.0.7/24"))
		w.put()
		w.expect("192.0.2.1:80/tcp web: 10.9.0.1:80*0@1m0s", "192.0.2.2:80/tcp named: 10.0.0.1:80*1")
		// An address that doesn't serve node ports is also the host's own.
		host := hostAddrs("10.9.0.7/24", "10.9.0.1/24")
		host.Addrs[1].Secondary = true
		w.Host.Set(host)
		w.put()
		w.expect("192.0.2.1:80/tcp web: 10.9.0.1:80*1", "192.0.2.2:80/tcp named: 10.0.0.1:80*1")
		w.stop()
		expect.Equal(t, len(w.compiler.hosted), 1, "services are compiled for every change of the host")
	})
}

// A backend that a policy excludes drains as if it had been removed, and can return.
func TestExcludedBackendDrains(t *testing.T) {
	both := []string{"10.0.0.1", "10.0.0.2"}
	inWorldOf(t, n1, func(t *testing.T, w *world) {
		w.put(service("web", both, onNode(0, "n1"), onNode(1, "n2")))
		w.expect("192.0.2.1:80/tcp web: 10.0.0.1:80*1 10.0.0.2:80*1")
		w.put(service("web", both, onNode(0, "n1"), onNode(1, "n2"), local))
		w.expect("192.0.2.1:80/tcp web: 10.0.0.1:80*1 10.0.0.2:80*0@1m0s")
		w.expectStored("192.0.2.1:80/tcp")
		w.put(service("web", both, onNode(0, "n1"), onNode(1, "n2")))
		w.expect("192.0.2.1:80/tcp web: 10.0.0.1:80*1 10.0.0.2:80*1")
		w.put(service("web", both, onNode(0, "n1"), onNode(1, "n2"), local))
		w.pass(time.Minute)
		w.expect("192.0.2.1:80/tcp web: 10.0.0.1:80*1")
	})
}

// The frontend for internal clients exists while the policies differ. When it is removed, the
// frontend for everyone serves them at once, because a draining one would reject them.
func TestAudiences(t *testing.T) {
	both := []string{"10.0.0.1", "10.0.0.2"}
	internal := func(s *vip.Service) { s.InternalTraffic = vip.Local }
	inWorldOf(t, n1, func(t *testing.T, w *world) {
		w.put(service("web", both, onNode(0, "n1"), onNode(1, "n2"), internal))
		w.expect("192.0.2.1:80/tcp web: 10.0.0.1:80*1 10.0.0.2:80*1", "192.0.2.1:80/tcp+internal web: 10.0.0.1:80*1")
		w.put(service("web", both, onNode(0, "n1"), onNode(1, "n2")))
		w.expect("192.0.2.1:80/tcp web: 10.0.0.1:80*1 10.0.0.2:80*1")
		if events, _ := w.events.Since(0); len(events) != 1 || events[0].Kind != "frontend_ended" || events[0].Object != "192.0.2.1:80/tcp+internal" {
			t.Errorf("events %+v", events)
		}
		w.put(service("web", both, onNode(0, "n1"), onNode(1, "n2"), internal))
		w.remove("web")
		w.expect("192.0.2.1:80/tcp web: 10.0.0.1:80*0@1m0s 10.0.0.2:80*0@1m0s", "192.0.2.1:80/tcp+internal web: 10.0.0.1:80*0@1m0s")
		w.expectStored("192.0.2.1:80/tcp", "192.0.2.1:80/tcp+internal")
		w.stop()
		expectOwners(t, w, 0)
	})
}

// A service that has a port has it for every audience.
func TestAudiencesAreOneClaim(t *testing.T) {
	const shared = "192.0.2.99"
	internal := func(s *vip.Service) { s.InternalTraffic = vip.Local }
	inWorldOf(t, n1, func(t *testing.T, w *world) {
		w.put(service("a", []string{"10.0.0.1"}, on("s", shared)), service("b", []string{"10.0.0.2"}, on("s", shared), internal, onNode(0, "n1")))
		w.expect("192.0.2.99:80/tcp a: 10.0.0.1:80*1")
		w.remove("a")
		w.expect("192.0.2.99:80/tcp b: 10.0.0.1:80*0@1m0s 10.0.0.2:80*1", "192.0.2.99:80/tcp+internal b: 10.0.0.2:80*1")
	})
}

// A row contains the answer to health checks: it changes only with the backends' states.
func TestHealthPortRow(t *testing.T) {
	health := func(s *vip.Service) { s.HealthPort.Auto = true }
	web := service("web", []string{"10.0.0.1", "10.0.0.2", "10.0.0.3"}, local, health, onNode(0, "n1"), onNode(1, "n1"), onNode(2, "n2"))
	row := func(w *world) (port uint16, ready int) {
		r, _, _ := w.Compiled.Get(key("web"))
		return r.HealthPort, int(r.LocalReady)
	}
	inWorldOf(t, n1, func(t *testing.T, w *world) {
		expect := func(when string, port uint16, ready int) {
			t.Helper()
			if p, n := row(w); p != port || n != ready {
				t.Errorf("%s: port %d with %d ready, want %d with %d", when, p, n, port, ready)
			}
		}
		without := web
		without.HealthPort = vip.NodePort{}
		w.put(without)
		expect("not asked for", 0, 0)
		w.put(web)
		expect("at first", 32000, 2)
		w.Overrides.Set(vip.BackendState{Backend: vip.BackendKey{Service: key("web"), Address: addrs("10.0.0.1")[0]}, State: vip.Drain})
		w.put()
		expect("one drained", 32000, 1)
		terminating := web
		terminating.Backends = append([]vip.Backend(nil), web.Backends...)
		terminating.Backends[1].State = vip.Terminating
		w.put(terminating)
		expect("the other terminating", 32000, 0)
		w.expect("192.0.2.1:80/tcp web: 10.0.0.1:80*0 10.0.0.2:80*1")
		cluster := web
		cluster.ExternalTraffic = vip.Cluster
		w.put(cluster)
		expect("cluster", 0, 0)
		w.Overrides.Delete(vip.OverrideKey{BackendKey: vip.BackendKey{Service: key("web"), Address: addrs("10.0.0.1")[0]}})
		w.put(service("web", []string{"10.0.0.1"}, local, health, onNode(0, "n1"), unsupported))
		expect("nothing of it is served", 32000, 0)
	})
}

// A service outside of this host's scope has no frontends, health port or problems. One that leaves the scope drains as a
// removed one does.
func TestServiceOutsideOfTheScope(t *testing.T) {
	outside := func(s *vip.Service) { s.NotHere = true }
	health := func(s *vip.Service) {
		s.ExternalTraffic, s.HealthPort = vip.Local, vip.NodePort{Number: 32000}
	}
	inWorld(t, func(t *testing.T, w *world) {
		w.put(service("web", []string{"10.0.0.1"}, nodePort), service("db", []string{"10.0.0.2"}, outside, health, unsupported))
		w.expect("192.0.2.1:80/tcp web: 10.0.0.1:80*1")
		if row, _, _ := w.Compiled.Get(key("db")); !row.NotHere || row.HealthPort != 0 || len(row.Problems) > 0 {
			t.Errorf("row %+v", row)
		}
		w.put(service("web", []string{"10.0.0.1"}, nodePort, outside))
		w.pass(50 * time.Second)
		w.expect("192.0.2.1:80/tcp web: 10.0.0.1:80*0@10s")
		w.pass(10 * time.Second)
		w.expect()
		w.put(service("web", []string{"10.0.0.1"}, nodePort))
		w.expect("192.0.2.1:80/tcp web: 10.0.0.1:80*1")
	})
}

// On a real server, services with direct routing and a backend on this host are frontends. Other
// services are ignored.
func TestRealServerStage(t *testing.T) {
	direct := func(s *vip.Service) { s.Forward = vip.ForwardDirect }
	inWorldOf(t, compile.Node{RealServer: true}, func(t *testing.T, w *world) {
		w.conns.set(nil, nil) // the dataplane has no part in them
		w.put(service("web", []string{"10.0.0.1", "10.9.0.1"}, direct), service("db", []string{"10.9.0.1"}, nodePort))
		w.expect()
		if row, _, _ := w.Compiled.Get(key("web")); !row.NotHere || len(row.Problems) > 0 {
			t.Errorf("row %+v", row)
		}
		w.Host.Set(hostAddrs("10.9.0.1/24"))
		w.put()
		w.expect("192.0.2.1:80/tcp web: 10.9.0.1:80*1")
		expect.Equal(t, sortedFrontends(w.Frontends)[0].Kind, vip.OnRealServer)
		w.Overrides.Set(vip.BackendState{Backend: vip.BackendKey{Service: key("web"), Address: addrs("10.9.0.1")[0]}, State: vip.Drain})
		w.put()
		if row, _, _ := w.Compiled.Get(key("web")); row.NotHere || len(row.Frontends) != 1 || row.Frontends[0].Value.Refuses() {
			t.Errorf("row %+v: the directors decide whom it serves", row)
		}
		w.put(service("web", []string{"10.0.0.1"}, direct))
		w.pass(50 * time.Second)
		w.expect("192.0.2.1:80/tcp web: 10.9.0.1:80*0@10s")
		w.pass(10 * time.Second)
		w.expect()
	})
}

// A drain from before a restart is not restored if it would conflict with a present frontend.
func TestDrainsInTheWayAreNotTakenUpAgain(t *testing.T) {
	internal := func(s *vip.Service) { s.InternalTraffic = vip.Local }
	both := []string{"10.0.0.1", "10.0.0.2"}
	bubble.Test(t, func(t *testing.T) {
		w := newWorld(t, nil)
		w.node = n1
		w.run().put(service("web", both, onNode(0, "n1"), internal), service("media", both[:1], portRange(100, 199)),
			service("phone", both[:1], portRange(100, 199)), service("games", both[:1], portRange(100, 199)))
		w.remove("web", "media", "phone", "games")
		w.expectStored("192.0.2.1:80/tcp", "192.0.2.1:80/tcp+internal", "192.0.2.2:100-199/tcp", "192.0.2.3:100-199/tcp", "192.0.2.4:100-199/tcp")
		w.stop()

		again := newWorld(t, w)
		again.Services.Set(service("web", both, onNode(0, "n1"), on("", "192.0.2.1")))
		again.Services.Set(service("media", both[:1], portRange(150, 249), on("", "192.0.2.2")))
		again.Services.Set(service("phone", both[:1], on("", "192.0.2.3"), func(s *vip.Service) { s.Ports[0].Port = 170 }))
		again.Services.Set(service("games", both[:1], on("", "192.0.2.4"), func(s *vip.Service) { s.Ports[0].Port = 200 }))
		again.run().put()
		again.expect("192.0.2.1:80/tcp web: 10.0.0.1:80*1 10.0.0.2:80*1", "192.0.2.2:150-249/tcp media: 10.0.0.1:0*1",
			"192.0.2.3:170/tcp phone: 10.0.0.1:80*1", "192.0.2.4:100-199/tcp games: 10.0.0.1:0*0@1m0s", "192.0.2.4:200/tcp games: 10.0.0.1:80*1")
		again.expectStored("192.0.2.4:100-199/tcp")
		again.stop()
	})
}
