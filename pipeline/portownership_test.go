package pipeline

import (
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/ironvip/ironvip/test/expect"
	"github.com/ironvip/ironvip/test/must"
	"github.com/ironvip/ironvip/vip"
)

// Overlapping ranges conflict like equal ports.
func TestOverlappingRangesOnOneAddress(t *testing.T) {
	const shared = "192.0.2.99"
	inWorld(t, func(t *testing.T, w *world) {
		w.put(service("a", []string{"10.0.0.1"}, on("s", shared), portRange(100, 199)),
			service("b", []string{"10.0.0.2"}, on("s", shared), portRange(150, 249)),
			service("c", []string{"10.0.0.3"}, on("s", shared), func(s *vip.Service) { s.Ports[0].Port = 170 }),
			service("d", []string{"10.0.0.4"}, on("s", shared), protocol(vip.UDP), func(s *vip.Service) { s.Ports[0].Port = 170 }))
		w.expect("192.0.2.99:100-199/tcp a: 10.0.0.1:0*1", "192.0.2.99:170/udp d: 10.0.0.4:80*1")
		for name, message := range map[string]string{
			"b": `192.0.2.99:150-249/tcp is served by service "a"`, "c": `192.0.2.99:170/tcp is served by service "a"`,
		} {
			row, _, _ := w.Compiled.Get(key(name))
			if n := len(row.Problems); n == 0 || row.Problems[n-1].Code != vip.CodePortTaken || row.Problems[n-1].Message != message {
				t.Errorf("%s has problems %+v", name, row.Problems)
			}
		}
		// When a releases ports for c, c gets its port, and b still not.
		w.put(service("a", []string{"10.0.0.1"}, on("s", shared), portRange(100, 160)))
		w.expect("192.0.2.99:100-160/tcp a: 10.0.0.1:0*1", "192.0.2.99:170/tcp c: 10.0.0.3:80*1", "192.0.2.99:170/udp d: 10.0.0.4:80*1")
		w.allocator.reconfigure() // this allocator doesn't report freed ports
		w.put()
		w.remove("a")
		w.pass(time.Minute)
		w.expect("192.0.2.99:170/tcp c: 10.0.0.3:80*1", "192.0.2.99:170/udp d: 10.0.0.4:80*1")
		w.remove("c")
		w.pass(time.Minute)
		w.expect("192.0.2.99:150-249/tcp b: 10.0.0.2:0*1", "192.0.2.99:170/udp d: 10.0.0.4:80*1")
		w.stop()
		expectOwners(t, w, 2)
	})
}

// The allocator's answer also decides about ranges, whatever the order of compilation. A service
// that loses a part of its ports loses the whole range.
func TestAllocatorsWordIsOfRanges(t *testing.T) {
	const shared = "192.0.2.99"
	inWorld(t, func(t *testing.T, w *world) {
		w.put(service("a", []string{"10.0.0.1"}, on("s", shared), portRange(100, 199)))
		w.allocator.set(func(f *fakeAllocator) { // as if b had held its port for longer
			f.vips[key("b")], f.ports[key("b")] = addrs(shared)[0], []vip.Port{{Protocol: vip.TCP, Port: 170}}
			delete(f.ports, key("a"))
		})
		w.put(service("b", []string{"10.0.0.2"}, on("s", shared), func(s *vip.Service) { s.Ports[0].Port = 170 }))
		w.Services.Set(service("a", []string{"10.0.0.1", "10.0.0.3"}, on("s", shared), portRange(100, 199)))
		w.allocator.reconfigure() // so that a is requested again
		w.put()
		// The range doesn't drain, because it would reject b's clients until its end.
		w.expect("192.0.2.99:170/tcp b: 10.0.0.2:80*1")
		w.remove("b")
		w.pass(time.Minute)
		w.expect("192.0.2.99:100-199/tcp a: 10.0.0.1:0*1 10.0.0.3:0*1")
	})
}

// A widened range never becomes two overlapping ranges, also not while it drains. A range that
// moves to other ports drains.
func TestRangeIsWidened(t *testing.T) {
	inWorld(t, func(t *testing.T, w *world) {
		web := func(first, last uint16) vip.Service {
			return service("web", []string{"10.0.0.1"}, portRange(first, last))
		}
		w.put(web(100, 199))
		w.put(web(150, 249))
		w.expect("192.0.2.1:150-249/tcp web: 10.0.0.1:0*1")
		w.put(web(500, 599))
		w.expect("192.0.2.1:150-249/tcp web: 10.0.0.1:0*0@1m0s", "192.0.2.1:500-599/tcp web: 10.0.0.1:0*1")
		w.expectStored("192.0.2.1:150-249/tcp")
		w.put(web(200, 300)) // over a range that drains
		w.expect("192.0.2.1:200-300/tcp web: 10.0.0.1:0*1", "192.0.2.1:500-599/tcp web: 10.0.0.1:0*0@1m0s")
		w.pass(time.Minute)
		w.expect("192.0.2.1:200-300/tcp web: 10.0.0.1:0*1")
		w.stop()
		for at, keys := range w.compiler.drains.ranged {
			expect.Len(t, keys, 1, "known of %v", at)
		}
		expectOwners(t, w, 1)
	})
}

// A draining range rejects clients of all its ports. It ends for each new frontend on one of them,
// of any service and audience.
func TestRangeThatDrainsIsInNobodysWay(t *testing.T) {
	apart := func(s *vip.Service) { s.InternalTraffic = vip.Local }
	single := func(number uint16) func(*vip.Service) { return func(s *vip.Service) { s.Ports[0].Port = number } }
	inWorldOf(t, n1, func(t *testing.T, w *world) {
		both := []string{"10.0.0.1", "10.0.0.2"}
		w.put(service("web", both, onNode(0, "n1"), apart, portRange(100, 199)))
		w.expect("192.0.2.1:100-199/tcp web: 10.0.0.1:0*1 10.0.0.2:0*1", "192.0.2.1:100-199/tcp+internal web: 10.0.0.1:0*1")
		w.put(service("web", both, onNode(0, "n1"), single(170)))
		w.expect("192.0.2.1:170/tcp web: 10.0.0.1:80*1 10.0.0.2:80*1")

		shared := func(s *vip.Service) { on("s", "192.0.2.99")(s) }
		w.put(service("range", both[:1], shared, portRange(100, 199)))
		w.remove("range")
		w.put(service("apart", both[:1], shared, single(200)))
		w.expect("192.0.2.1:170/tcp web: 10.0.0.1:80*1 10.0.0.2:80*1", "192.0.2.99:100-199/tcp range: 10.0.0.1:0*0@1m0s", "192.0.2.99:200/tcp apart: 10.0.0.1:80*1")
		w.put(service("in", both[:1], shared, single(199)))
		w.expect("192.0.2.1:170/tcp web: 10.0.0.1:80*1 10.0.0.2:80*1", "192.0.2.99:199/tcp in: 10.0.0.1:80*1", "192.0.2.99:200/tcp apart: 10.0.0.1:80*1")
		w.expectStored()
	})
}

// A draining frontend for inside clients rejects them. It ends for another service that serves
// everyone on its ports, but not for one that serves inside clients separately, too.
func TestDrainOfClientsInsideIsInNobodysWay(t *testing.T) {
	inWorldOf(t, n1, func(t *testing.T, w *world) {
		shared := func(s *vip.Service) { on("s", "192.0.2.99")(s) }
		apart := func(s *vip.Service) { s.InternalTraffic = vip.Local }
		w.put(service("a", []string{"10.0.0.1"}, onNode(0, "n1"), shared, apart))
		w.remove("a")
		w.put(service("b", []string{"10.0.0.2"}, onNode(0, "n1"), shared, apart))
		w.expect("192.0.2.99:80/tcp b: 10.0.0.1:80*0@1m0s 10.0.0.2:80*1", "192.0.2.99:80/tcp+internal b: 10.0.0.1:80*0@1m0s 10.0.0.2:80*1")
		w.remove("b")
		w.expectStored("192.0.2.99:80/tcp", "192.0.2.99:80/tcp+internal")
		w.put(service("c", []string{"10.0.0.3"}, shared))
		w.expect("192.0.2.99:80/tcp c: 10.0.0.1:80*0@1m0s 10.0.0.2:80*0@1m0s 10.0.0.3:80*1")
		w.expectStored("192.0.2.99:80/tcp")
	})
}

// A draining frontend refuses the other ports of its VIP. It ends when the whole VIP becomes one for programs of the host, of
// the same service or of another one, and the other way around nothing drains.
func TestDrainIsInNobodysWayAtAWholeVIP(t *testing.T) {
	host := func(s *vip.Service) {
		s.Forward, s.Check, s.Backends = vip.ForwardHost, &vip.HealthCheck{Type: vip.CheckNone}, []vip.Backend{{Address: netip.MustParseAddr("127.0.0.1"), Weight: 1}}
	}
	inWorldOf(t, n1, func(t *testing.T, w *world) {
		w.put(service("web", []string{"10.0.0.1"}))
		w.put(service("web", nil, host))
		w.expect("192.0.2.1 web: 127.0.0.1:0*1")
		w.put(service("web", []string{"10.0.0.1"}))
		w.expect("192.0.2.1:80/tcp web: 10.0.0.1:80*1")

		at := func(s *vip.Service) { s.VIPs = []netip.Addr{netip.MustParseAddr("192.0.2.99")} }
		w.put(service("a", []string{"10.0.0.1"}, at))
		w.remove("a")
		w.put(service("b", nil, host, at))
		w.expect("192.0.2.1:80/tcp web: 10.0.0.1:80*1", "192.0.2.99 b: 127.0.0.1:0*1")
		w.expectStored()
	})
}

// portOwnership compared with a naive implementation.
func TestPortOwnershipOracle(t *testing.T) {
	type held struct {
		key     vip.FrontendKey
		service vip.ServiceKey
	}
	overlap := func(a, b vip.FrontendKey) bool {
		x, y := vip.PortKey{Port: a.Port, LastPort: a.LastPort, Protocol: a.Protocol}, vip.PortKey{Port: b.Port, LastPort: b.LastPort, Protocol: b.Protocol}
		return a.Addr == b.Addr && x.Overlaps(y)
	}
	samePorts := func(a, b vip.FrontendKey) bool {
		a.Audience = b.Audience
		return a == b
	}
	rapid.Check(t, func(t *rapid.T) {
		c, oracle := newPortOwnership(), map[held]bool{}
		drawKey := func() vip.FrontendKey {
			k := vip.FrontendKey{
				Addr:     rapid.SampledFrom(addrs("192.0.2.1", "2001:db8::1")).Draw(t, "address"),
				Port:     rapid.Uint16Range(1, 12).Draw(t, "port"),
				Protocol: rapid.SampledFrom([]vip.Protocol{vip.TCP, vip.UDP}).Draw(t, "protocol"),
				Audience: rapid.SampledFrom([]vip.Audience{vip.Everyone, vip.InternalClients}).Draw(t, "audience"),
			}
			if n := rapid.Uint16Range(0, 4).Draw(t, "more"); n > 0 {
				k.LastPort = k.Port + n
			}
			return k
		}
		for range rapid.IntRange(1, 60).Draw(t, "steps") {
			k, name := drawKey(), key(rapid.SampledFrom([]string{"a", "b", "c"}).Draw(t, "service"))
			switch rapid.IntRange(0, 1).Draw(t, "op") {
			case 0:
				maps.DeleteFunc(oracle, func(h held, _ bool) bool {
					return overlap(h.key, k) && (h.service != name || !samePorts(h.key, k))
				})
				oracle[held{k, name}] = true
				c.take(k, name)
			case 1:
				delete(oracle, held{k, name})
				c.release(k, name)
			}
			probe := drawKey()
			var want, got []string
			for h := range oracle {
				if overlap(h.key, probe) && h.service != name {
					want = append(want, fmt.Sprint(h.service, h.key.Port))
				}
			}
			slices.Sort(want)
			want = slices.Compact(want) // audiences
			for _, r := range c.rivals(probe, name) {
				got = append(got, fmt.Sprint(r.service, r.first))
			}
			slices.Sort(got)
			must.SameList(t, got, want, "rivals of %s for %s", name, probe)
			if want := slices.ContainsFunc(slices.Collect(maps.Keys(oracle)), func(h held) bool { return h.key == probe }); c.held(probe) != want {
				t.Fatalf("%s is held: %t, want %t", probe, c.held(probe), want)
			}
		}
		for h := range oracle {
			c.release(h.key, h.service)
		}
		if len(c.byAddress)+len(c.losing) != 0 {
			t.Fatalf("left over: %v, %v", slices.Collect(maps.Keys(c.byAddress)), c.losing)
		}
	})
}
