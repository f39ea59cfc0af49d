package pipeline

import (
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/ironvip/ironvip/pipeline/compile"
	"github.com/ironvip/ironvip/test/bubble"
	"github.com/ironvip/ironvip/test/expect"
	"github.com/ironvip/ironvip/vip"
)

// slow makes a service start its backends slowly: a step takes 1 s.
func slow(s *vip.Service) { s.SlowStart = 9 }

var twoBackends = []string{"10.0.0.1", "10.0.0.2"}

// expectShare expects web with a whole weight of the first backend and a given one of the second.
func (w *world) expectShare(second int) {
	w.t.Helper()
	w.expect(fmt.Sprintf("192.0.2.1:80/tcp web: 10.0.0.1:80*10 10.0.0.2:80*%d", second))
}

// A backend that is healthy again gets its weight in ten steps, each of one change, and no more
// changes after that. A new backend does, too.
func TestSlowStart(t *testing.T) {
	inWorld(t, func(t *testing.T, w *world) {
		w.put(service("web", twoBackends, slow), service("db", twoBackends))
		w.expect("192.0.2.1:80/tcp web: 10.0.0.1:80*10 10.0.0.2:80*10", "192.0.2.2:80/tcp db: 10.0.0.1:80*1 10.0.0.2:80*1")
		w.remove("db")
		w.pass(time.Hour)
		w.expectShare(10)
		for name, start := range map[string]func(){
			"healthy again": func() {
				w.observe("10.0.0.2", vip.Unhealthy)
				w.put()
				w.expectShare(0)
				w.observe("10.0.0.2", vip.Healthy)
			},
			"new": func() {
				w.put(service("web", []string{"10.0.0.1"}, slow))
				w.pass(time.Hour)
				w.Services.Set(service("web", twoBackends, slow))
			},
			"returns from its drain": func() {
				w.put(service("web", []string{"10.0.0.1"}, slow))
				w.Services.Set(service("web", twoBackends, slow))
			},
			"ready again": func() {
				k := vip.BackendKey{Service: key("web"), Address: addrs("10.0.0.2")[0]}
				w.Overrides.Set(vip.BackendState{Backend: k, State: vip.Maint})
				w.put()
				w.expectShare(0)
				w.Overrides.Delete(vip.OverrideKey{BackendKey: k})
			},
			"gets a weight": func() {
				w.put(service("web", twoBackends, slow, func(s *vip.Service) { s.Backends[1].Weight = 0 }))
				w.Services.Set(service("web", twoBackends, slow))
			},
		} {
			t.Log(name)
			start()
			w.put()
			w.changedRows()
			for step := 1; step < vip.SlowStartSteps; step++ {
				w.expectShare(step)
				w.pass(time.Second)
				n := w.changedRows()
				expect.Equal(t, n, 1, "step %d changed %d frontends, want 1", step, n)
			}
			w.expectShare(10)
			w.pass(time.Hour)
			expect.Equal(t, w.changedRows(), 0, "frontends changed after the end")
			expect.Equal(t, w.compiler.starts.next.Len(), 0, "services wait for a step")
		}
	})
}

// A slow start divides the share of a group differently. The share itself stays.
func TestSlowStartInAGroup(t *testing.T) {
	inWorld(t, func(t *testing.T, w *world) {
		w.put(service("web", []string{"10.0.0.1", "10.0.0.2", "10.0.0.3"}, slow, func(s *vip.Service) {
			s.Groups = []vip.Group{{Name: "stable", Weight: 90}, {Name: "canary", Weight: 10}}
			for i, group := range []string{"stable", "canary", "canary"} {
				s.Backends[i].Group = group
			}
		}))
		expect := func(first, second, third int) {
			t.Helper()
			w.expect(fmt.Sprintf("192.0.2.1:80/tcp web: 10.0.0.1:80*%d 10.0.0.2:80*%d 10.0.0.3:80*%d", first, second, third))
		}
		restart := func(addrs ...string) {
			for _, health := range []vip.Health{vip.Unhealthy, vip.Healthy} {
				for _, a := range addrs {
					w.observe(a, health)
				}
				w.put()
			}
		}
		expect(18, 1, 1)
		restart("10.0.0.3")
		expect(99, 10, 1)
		w.pass(4 * time.Second)
		expect(27, 2, 1)
		w.pass(time.Hour)
		expect(18, 1, 1)
		restart("10.0.0.2", "10.0.0.3")
		expect(18, 1, 1)
	})
}

// Backends that start at different times take their steps together: one change of the frontend for
// each step, whatever their number.
func TestStepsOfAServiceAreOneChange(t *testing.T) {
	var all []string
	for i := range 100 {
		all = append(all, fmt.Sprintf("10.0.1.%d", i+1))
	}
	inWorld(t, func(t *testing.T, w *world) {
		web := service("web", all, slow)
		w.put(web)
		for _, a := range all[1:] {
			w.observe(a, vip.Unhealthy)
		}
		w.put()
		w.changedRows()
		for _, a := range all[1:50] {
			w.observe(a, vip.Healthy)
		}
		w.pass(500 * time.Millisecond)
		for _, a := range all[50:] {
			w.observe(a, vip.Healthy)
		}
		w.put()
		changes := 0
		for range 40 { // a row that changed twice at a time would count once
			changes += w.changedRows()
			w.pass(250 * time.Millisecond)
		}
		expect.Equal(t, changes, 1+vip.SlowStartSteps-1, "changes for the starts, seen at once, and the steps")
		f := sortedFrontends(w.Frontends)[0]
		if i := slices.IndexFunc(f.Backends, func(e vip.Endpoint) bool { return e.Weight != 10 || e.Step != 0 }); i >= 0 {
			t.Errorf("endpoint %d is %+v", i, f.Backends[i])
		}
	})
}

// A slow start and the events that interrupt it.
func TestSlowStartInterrupted(t *testing.T) {
	inWorld(t, func(t *testing.T, w *world) {
		w.put(service("web", twoBackends, slow))
		start := func() {
			w.observe("10.0.0.2", vip.Unhealthy)
			w.put()
			w.observe("10.0.0.2", vip.Healthy)
			w.pass(3 * time.Second)
			w.expectShare(4)
		}
		start()
		w.put(service("web", twoBackends, slow)) // the same again
		w.expectShare(4)
		w.put(service("web", twoBackends, slow, func(s *vip.Service) { s.Backends[1].Weight = 5 })) // keeps its step
		w.expectShare(20)
		w.put(service("web", twoBackends, slow))
		w.setClock(time.Hour) // the host's clock has no effect
		w.pass(time.Second)
		w.expectShare(5)
		start()                            // unhealthy in between: from the first step on
		w.put(service("web", twoBackends)) // turned off: the whole weight, at once
		w.expect("192.0.2.1:80/tcp web: 10.0.0.1:80*1 10.0.0.2:80*1")
		w.put(service("web", twoBackends, slow)) // turning it on starts nothing
		w.expectShare(10)
		start()
		w.remove("web")
		expect.Equal(t, w.compiler.starts.next.Len(), 0, "services wait for a step")
		w.put(service("web", twoBackends, slow)) // a new service has no slow start
		w.pass(time.Minute)
		w.expect("192.0.2.2:80/tcp web: 10.0.0.1:80*10 10.0.0.2:80*10")
	})
}

// A great weight needs no factor, and the least weight is 1.
func TestSlowStartOfGreatWeights(t *testing.T) {
	inWorld(t, func(t *testing.T, w *world) {
		web := service("web", []string{"10.0.0.1", "10.0.0.2", "10.0.0.3"}, slow, func(s *vip.Service) {
			s.Backends[1].Weight, s.Backends[2].Weight = vip.MaxWeight, 3
		})
		w.put(web)
		for _, a := range []string{"10.0.0.1", "10.0.0.2", "10.0.0.3"} {
			w.observe(a, vip.Unhealthy)
		}
		w.put()
		for _, a := range []string{"10.0.0.1", "10.0.0.2", "10.0.0.3"} {
			w.observe(a, vip.Healthy)
		}
		w.put()
		w.expect("192.0.2.1:80/tcp web: 10.0.0.1:80*1 10.0.0.2:80*6553 10.0.0.3:80*1")
		w.pass(4 * time.Second)
		w.expect("192.0.2.1:80/tcp web: 10.0.0.1:80*1 10.0.0.2:80*32767 10.0.0.3:80*1")
		w.pass(time.Minute)
		w.expect("192.0.2.1:80/tcp web: 10.0.0.1:80*1 10.0.0.2:80*65535 10.0.0.3:80*3")
	})
}

// After a restart, backends have their whole weight at once: those that started when the agent
// ended, and those that the sources list only later during the start.
func TestRestartHasNoSlowStart(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		w := newWorld(t, nil)
		w.run().put(service("web", []string{"10.0.0.1"}, slow))
		w.put(service("web", twoBackends, slow))
		w.expectShare(1)
		w.stop()

		again := newWorld(t, w)
		complete := again.Services.Initializer() // a source that has not synced
		web := service("web", []string{"10.0.0.1"}, slow, on("", "192.0.2.1"))
		again.Services.Set(web)
		again.run().put()
		again.put(service("web", twoBackends, slow, on("", "192.0.2.1")))
		complete()
		again.put()
		again.expectShare(10)
		again.put(service("web", append(slices.Clone(twoBackends), "10.0.0.3"), slow, on("", "192.0.2.1")))
		again.expect("192.0.2.1:80/tcp web: 10.0.0.1:80*10 10.0.0.2:80*10 10.0.0.3:80*1")
		again.stop()
	})
}

// Each port and each protocol has its own slow start. A panic needs all backends at once. A real server shows the weights
// of its endpoints, because the director decides on the traffic.
func TestWhoStartsSlowly(t *testing.T) {
	for name, tc := range map[string]struct {
		change          func(*vip.Service)
		port            string // of the check; "" is all
		realServer      bool
		unhealthy, back []string // the frontends
	}{
		"panic": {change: func(s *vip.Service) { s.PanicThreshold = 60 },
			unhealthy: []string{"192.0.2.1:80/tcp web: 10.0.0.1:80*10 10.0.0.2:80*10"}, back: []string{"192.0.2.1:80/tcp web: 10.0.0.1:80*10 10.0.0.2:80*10"}},
		"one port": {change: port(443), port: "443",
			unhealthy: []string{"192.0.2.1:80/tcp web: 10.0.0.1:80*10 10.0.0.2:80*10", "192.0.2.1:443/tcp web: 10.0.0.1:443*10 10.0.0.2:443*0"},
			back:      []string{"192.0.2.1:80/tcp web: 10.0.0.1:80*10 10.0.0.2:80*10", "192.0.2.1:443/tcp web: 10.0.0.1:443*10 10.0.0.2:443*1"}},
		"UDP": {change: protocol(vip.UDP),
			unhealthy: []string{"192.0.2.1:80/udp web: 10.0.0.1:80*10"}, back: []string{"192.0.2.1:80/udp web: 10.0.0.1:80*10 10.0.0.2:80*1"}},
		"real server": {change: func(s *vip.Service) { s.Forward = vip.ForwardDirect }, realServer: true,
			unhealthy: []string{"192.0.2.1:80/tcp web: 10.0.0.2:80*0"}, back: []string{"192.0.2.1:80/tcp web: 10.0.0.2:80*10"}},
	} {
		t.Run(name, func(t *testing.T) {
			inWorldOf(t, compile.Node{RealServer: tc.realServer}, func(t *testing.T, w *world) {
				if tc.realServer {
					w.Host.Set(hostAddrs("10.0.0.2/24"))
				}
				var ports []string
				if tc.port != "" {
					ports = []string{tc.port}
				}
				w.put(service("web", twoBackends, slow, tc.change))
				w.observe("10.0.0.2", vip.Unhealthy, ports...)
				w.put()
				w.expect(tc.unhealthy...)
				w.observe("10.0.0.2", vip.Healthy, ports...)
				w.put()
				w.expect(tc.back...)
			})
		})
	}
}
