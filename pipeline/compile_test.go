package pipeline

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/ironvip/ironvip/internal/table"
	"github.com/ironvip/ironvip/pipeline/compile"
	"github.com/ironvip/ironvip/test/bubble"
	"github.com/ironvip/ironvip/test/expect"
	"github.com/ironvip/ironvip/vip"
)

func TestOneBackendChangesOneRowPerPort(t *testing.T) {
	inWorld(t, func(t *testing.T, w *world) {
		w.put(service("web", []string{"10.0.0.1"}, port(443)), service("db", []string{"10.0.0.9"}))
		w.changedRows()
		w.put(service("web", []string{"10.0.0.1", "10.0.0.2"}, port(443)))
		expect.Equal(t, w.changedRows(), 2, "frontends changed, want one for each of 2 ports")
		w.put(service("web", []string{"10.0.0.1", "10.0.0.2"}, port(443), func(s *vip.Service) { s.Origin = "elsewhere" }))
		expect.Equal(t, w.changedRows(), 0, "frontends changed by something that no dataplane sees")
	})
}

func TestOperatorsWordTouchesOneService(t *testing.T) {
	inWorld(t, func(t *testing.T, w *world) {
		w.put(service("web", []string{"10.0.0.1", "10.0.0.2"}), service("db", []string{"10.0.0.1"}))
		w.changedRows()
		backend := vip.BackendKey{Service: key("web"), Address: addrs("10.0.0.1")[0]}
		w.Overrides.Set(vip.BackendState{Backend: backend, State: vip.Maint})
		w.put()
		w.expect("192.0.2.1:80/tcp web: 10.0.0.1:80*0 10.0.0.2:80*1", "192.0.2.2:80/tcp db: 10.0.0.1:80*1")
		w.Overrides.Delete(vip.OverrideKey{BackendKey: backend})
		w.put()
		w.expect("192.0.2.1:80/tcp web: 10.0.0.1:80*1 10.0.0.2:80*1", "192.0.2.2:80/tcp db: 10.0.0.1:80*1")
		expect.Equal(t, w.changedRows(), 1, "frontends changed")
		w.Overrides.Set(vip.BackendState{Backend: vip.BackendKey{Service: key("nobody")}, State: vip.Maint})
		w.put()
	})
}

func TestNodeAddressComesAndGoes(t *testing.T) {
	inWorld(t, func(t *testing.T, w *world) {
		w.put(service("web", []string{"10.0.0.1"}, nodePort), service("db", nil))
		w.expect("192.0.2.1:80/tcp web: 10.0.0.1:80*1", "192.0.2.2:80/tcp db:")

		w.Host.Set(hostAddrs("10.9.0.1/24"))
		w.put()
		w.expect("10.9.0.1:30080/tcp web: 10.0.0.1:80*1", "192.0.2.1:80/tcp web: 10.0.0.1:80*1", "192.0.2.2:80/tcp db:")

		w.changedRows()
		w.Host.Set(hostAddrs("10.9.0.2/24"))
		w.put()
		w.expect("10.9.0.1:30080/tcp web: 10.0.0.1:80*0@1m0s", "10.9.0.2:30080/tcp web: 10.0.0.1:80*1",
			"192.0.2.1:80/tcp web: 10.0.0.1:80*1", "192.0.2.2:80/tcp db:")
		expect.Equal(t, w.changedRows(), 2, "frontends changed, want the two node ports")

		w.Host.Set(hostAddrs("10.9.0.1/24"))
		w.put()
		w.expect("10.9.0.1:30080/tcp web: 10.0.0.1:80*1", "10.9.0.2:30080/tcp web: 10.0.0.1:80*0@1m0s",
			"192.0.2.1:80/tcp web: 10.0.0.1:80*1", "192.0.2.2:80/tcp db:")

		w.put(service("web", []string{"10.0.0.1"}))
		w.Host.Delete(struct{}{})
		w.pass(service("web", nil).DrainTimeout)
		w.expect("192.0.2.1:80/tcp web: 10.0.0.1:80*1", "192.0.2.2:80/tcp db:")
		w.stop()
		n := len(w.compiler.hosted)
		expect.Equal(t, n, 0, "services are compiled for every change of the host though none has a node port")
	})
}

// A service with a setting that the dataplane doesn't support is not exposed; one with a setting that
// the dataplane ignores is served. Both are reported.
func TestUnsupportedIsReported(t *testing.T) {
	const served = "192.0.2.1:80/tcp web: 10.0.0.1:80*1"
	ignored := func(s *vip.Service) { s.Relay = &vip.ProxySettings{IdleTimeout: time.Minute} }
	for name, tc := range map[string]struct {
		change func(*vip.Service)
		want   []string
		code   string
	}{"unsupported": {unsupported, nil, vip.CodeUnsupported}, "ignored": {ignored, []string{served}, vip.CodeIneffective}} {
		inWorld(t, func(t *testing.T, w *world) {
			w.put(service("web", []string{"10.0.0.1"}, tc.change))
			w.expect(tc.want...)
			expect.SameList(t, w.problems("web"), []string{tc.code}, "%s: problems", name)
			w.put(service("web", []string{"10.0.0.1"}))
			w.expect(served)
			got := w.problems("web")
			expect.Empty(t, got, "%s: problems %v after the request has gone", name, got)
		})
	}
}

// A queue that no limit fills is reported, and the service is served. Without backends it is not:
// they may bring limits.
func TestIneffectiveIsReported(t *testing.T) {
	queue := func(limit uint32) func(*vip.Service) {
		return func(s *vip.Service) {
			s.Relay = vip.RelayOf(vip.ProxySettings{ConnectTimeout: vip.DefaultConnectTimeout, IdleTimeout: vip.DefaultIdleTimeout,
				HalfCloseTimeout: vip.DefaultHalfCloseTimeout, QueueTimeout: vip.DefaultQueueTimeout, MaxQueue: 5, MaxConnections: limit})
		}
	}
	one := []string{"10.0.0.1"}
	for name, tc := range map[string]struct {
		service  vip.Service
		reported bool
	}{
		"no limit":              {service("web", one, queue(0)), true},
		"a limit":               {service("web", one, queue(10)), false},
		"no backend yet":        {service("web", nil, queue(0)), false},
		"a limit of a backend":  {service("web", one, queue(0), func(s *vip.Service) { s.Backends[0].MaxConnections = 3 }), false},
		"no queue and no limit": {service("web", one), false},
	} {
		problems := compile.Ineffective(&tc.service)
		if (len(problems) == 1) != tc.reported || tc.reported && (problems[0].Field != "max_queue" || problems[0].Hint == "" || problems[0].Place != tc.service.Origin) {
			t.Errorf("%s: %+v", name, problems)
		}
	}
	inWorld(t, func(t *testing.T, w *world) {
		w.put(service("web", one, queue(0)))
		w.expect("192.0.2.1:80/tcp web: 10.0.0.1:80*1")
		row, _, _ := w.Compiled.Get(key("web"))
		if !slices.ContainsFunc(row.Problems, func(p vip.Problem) bool { return p.Field == "max_queue" && p.Code == vip.CodeIneffective }) {
			t.Errorf("problems %v", row.Problems)
		}
	})
}

// A director can't send packets of direct routing or a tunnel to itself. A backend at an address of its
// own gets no clients, and the service says why.
func TestADirectorIsNoBackendOfItself(t *testing.T) {
	for forward, own := range map[vip.Forward]string{vip.ForwardNAT: "10.0.0.1:80*1 ", vip.ForwardDirect: "", vip.ForwardTunnel: ""} {
		inWorld(t, func(t *testing.T, w *world) {
			w.Host.Set(hostAddrs("10.0.0.1/24"))
			w.put(service("web", []string{"10.0.0.1", "10.0.0.2"}, func(s *vip.Service) { s.Forward = forward }))
			w.expect("192.0.2.1:80/tcp web: " + own + "10.0.0.2:80*1")
			row, _, _ := w.Compiled.Get(key("web"))
			reported := slices.ContainsFunc(row.Problems, func(p vip.Problem) bool {
				return p.Field == "backends[0].address" && strings.HasPrefix(p.Message, "backend 10.0.0.1 gets no clients from this host") && p.Hint != ""
			})
			if reported != (own == "") || len(row.Problems) > 1 {
				t.Errorf("%s: %v", forward, row.Problems)
			}
		})
	}
}

// Two services share an address and request the same port: the allocator refuses it to the second,
// which keeps its address.
func TestSamePortOnOneAddress(t *testing.T) {
	const shared = "192.0.2.99"
	a := service("a", []string{"10.0.0.1"}, on("s", shared))
	b := service("b", []string{"10.0.0.2"}, on("s", shared), port(443))
	inWorld(t, func(t *testing.T, w *world) {
		w.put(a, b)
		w.expect("192.0.2.99:80/tcp a: 10.0.0.1:80*1", "192.0.2.99:443/tcp b: 10.0.0.2:443*1")
		row, _, _ := w.Compiled.Get(key("b"))
		last := row.Problems[len(row.Problems)-1]
		if last.Code != vip.CodePortTaken || last.Service != "b" || last.Message != `192.0.2.99:80/tcp is served by service "a"` {
			t.Errorf("problem %+v", last)
		}
		w.remove("a")
		w.expect("192.0.2.99:80/tcp b: 10.0.0.1:80*0@1m0s 10.0.0.2:80*1", "192.0.2.99:443/tcp b: 10.0.0.2:443*1")
		expect.Empty(t, w.problems("b"), "b still has problems")
		w.pass(a.DrainTimeout)
		w.expect("192.0.2.99:80/tcp b: 10.0.0.2:80*1", "192.0.2.99:443/tcp b: 10.0.0.2:443*1")
		w.stop()
		expectOwners(t, w, 2)
	})
}

// expectOwners checks a stopped stage: it must have this number of port owners, and no service that
// waits for another's.
func expectOwners(t *testing.T, w *world, want int) {
	t.Helper()
	got, losers := 0, len(w.compiler.owners.losing)
	for _, l := range w.compiler.owners.byAddress {
		got += len(l.owned)
	}
	if got != want || losers != 0 || len(w.compiler.owners.lost) != 0 {
		t.Errorf("%d owners, losers at %d addresses, lost %v; want %d owners", got, losers, w.compiler.owners.lost, want)
	}
}

// If the allocator ever grants one port twice, the second service gets it when the first is
// deleted, although the allocator reports no change.
func TestLoserIsCompiledWhenTheWinnerGoes(t *testing.T) {
	inWorld(t, func(t *testing.T, w *world) {
		w.put(service("a", []string{"10.0.0.1"}), service("b", []string{"10.0.0.2"}), service("c", []string{"10.0.0.3"}))
		for _, name := range []string{"b", "c"} {
			row, _, _ := w.Allocations.Get(key(name))
			row.VIPs = addrs("192.0.2.1")
			w.Allocations.Set(row)
		}
		w.pass(time.Minute)
		w.expect("192.0.2.1:80/tcp a: 10.0.0.1:80*1")
		expect.SameList(t, w.problems("b"), []string{vip.CodePortTaken}, "b has problems")
		w.remove("a")
		w.pass(time.Minute)
		w.expect("192.0.2.1:80/tcp b: 10.0.0.2:80*1")
		if row, _, _ := w.Compiled.Get(key("c")); len(row.Problems) != 1 || row.Problems[0].Message != `192.0.2.1:80/tcp is served by service "b"` {
			t.Errorf("c has problems %+v", row.Problems)
		}
	})
}

// A row states which version of the service it answers: the newest one only after the allocator has
// answered it, too.
func TestCompiledRevisionIsTheAllocatorsAnswer(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		w := newWorld(t, nil)
		c := w.bareCompile()
		asked := w.Services.Put(service("web", nil))
		w.Allocations.Set(vip.Allocation{Asked: &asked.Value, ServiceRev: asked.Rev, VIPs: addrs("192.0.2.1")})
		w.Services.Set(service("web", []string{"10.0.0.1"}))
		c.compile(key("web"))
		row, _, _ := w.Compiled.Get(key("web"))
		if row.ServiceRev != asked.Rev || len(row.Frontends) != 1 {
			t.Errorf("row %+v, want revision %d with what is known so far", row, asked.Rev)
		}
	})
}

// The allocator's answer decides who has the port, whatever the order of compilation.
func TestAllocatorsWordDecidesWhoHasAPort(t *testing.T) {
	const shared = "192.0.2.99"
	inWorld(t, func(t *testing.T, w *world) {
		w.put(service("a", []string{"10.0.0.1"}, on("s", shared)))
		w.expect("192.0.2.99:80/tcp a: 10.0.0.1:80*1")
		w.allocator.set(func(f *fakeAllocator) { // as if b had held it for longer
			f.vips[key("b")], f.ports[key("b")] = addrs(shared)[0], service("b", nil).Ports
			delete(f.ports, key("a"))
		})
		w.put(service("b", []string{"10.0.0.2"}, on("s", shared)))
		w.expect("192.0.2.99:80/tcp a: 10.0.0.1:80*1") // neither was refused: the first keeps it
		w.Services.Set(service("a", []string{"10.0.0.1", "10.0.0.3"}, on("s", shared)))
		w.allocator.reconfigure() // so that a is requested again
		w.put()
		w.expect("192.0.2.99:80/tcp b: 10.0.0.1:80*0@1m0s 10.0.0.2:80*1 10.0.0.3:80*0@1m0s")
		expect.SameList(t, w.problems("a"), []string{vip.CodePortTaken, vip.CodePortTaken}, "a has problems")
		expect.Empty(t, w.problems("b"), "b has problems")
	})
}

// A refusal is of one port. Each of two services may have a port that the other requests, too: the one that is compiled
// first, as after a restart, must not get both. A refused node port has no effect on the port itself.
func TestAllocatorsWordIsOfSinglePorts(t *testing.T) {
	for name, tc := range map[string]struct {
		refused map[string]string // the field of each service
		want    []string
	}{
		"two ports": {map[string]string{"a": "ports[1].port", "b": "ports[0].port"}, []string{"80 a", "443 b"}},
		"node port": {map[string]string{"a": "ports[0].node_port", "b": "ports[0].port"}, []string{"80 a", "443 b"}},
	} {
		bubble.Test(t, func(t *testing.T) {
			w := newWorld(t, nil)
			c := w.bareCompile()
			for of, field := range tc.refused {
				s := service(of, []string{"10.0.0.1"}, on("s", "192.0.2.99"), port(443))
				w.Allocations.Set(vip.Allocation{Asked: &s, ServiceRev: w.Services.Set(s), VIPs: addrs("192.0.2.99"),
					Problems: []vip.Problem{{Code: vip.CodePortTaken, Field: field, Message: "taken"}}})
			}
			c.compile(key("b"))
			c.compile(key("a"))
			for k, ok := c.todo.Take(); ok; k, ok = c.todo.Take() {
				c.compile(k)
			}
			var got []string
			for _, f := range sortedFrontends(w.Frontends) {
				got = append(got, fmt.Sprintf("%d %s", f.Key.Port, f.Service))
			}
			expect.SameList(t, got, tc.want, "%s: frontends", name)
		})
	}
}

// No table may be Ready before it is complete, because the reconciler removes what is missing in a
// Ready table.
func TestNotReadyBeforeEveryInput(t *testing.T) {
	inLateWorld(t, func(t *testing.T, w *world, sourcesSynced, hostKnown, statesKnown func()) {
		expectReady := func(when string, want bool) {
			t.Helper()
			w.put()
			got := table.IsClosed(w.Frontends.Ready()) && table.IsClosed(w.Compiled.Ready())
			expect.Equal(t, got, want, "%s: ready", when)
		}
		w.put(service("web", []string{"10.0.0.1"}))
		expectReady("nothing known", false)
		expect.Equal(t, w.Allocations.Len(), 0, "an address was given out before the host's own were known")
		w.Host.Set(hostAddrs("10.9.0.1/24"))
		hostKnown()
		expectReady("host known", false)
		expect.Equal(t, w.Frontends.Len(), 0, "a backend was exposed before the operator's words were known")
		statesKnown()
		expectReady("operator's words known", false)
		w.expect("192.0.2.1:80/tcp web: 10.0.0.1:80*1")
		_, settled, _ := w.allocator.received()
		expect.True(t, settled == nil, "the allocator received that services are settled")
		w.pass(2 * hostWait) // the sources take their time
		sourcesSynced()
		expectReady("services known", true)
		events, _ := w.events.Since(0)
		expect.Empty(t, events, "events %+v of a host that was known in time", events)
		_, known, host := w.allocator.received()
		if known == nil || !known(key("web")) || known(key("db")) {
			t.Error("the allocator did not receive which services are known")
		}
		expect.Equal(t, len(host.Addrs), 1, "the allocator did not receive the host's addresses")
	})
}
