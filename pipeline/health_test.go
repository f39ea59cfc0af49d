package pipeline

import (
	"testing"
	"time"

	"github.com/ironvip/ironvip/test/bubble"
	"github.com/ironvip/ironvip/test/expect"
	"github.com/ironvip/ironvip/vip"
)

// observe writes the health of a backend of web, which has no port of its own.
func (w *world) observe(address string, health vip.Health, ports ...string) {
	w.Health.Set(vip.BackendHealth{Backend: vip.BackendKey{Service: key("web"), Address: addrs(address)[0]},
		Checks: []vip.CheckResult{{Type: vip.CheckTCP, Ports: vip.NamesOf(ports...), Port: 80, Health: health}}})
}

// A change of the health of one backend compiles its service and no other.
func TestHealthTouchesOneService(t *testing.T) {
	inWorld(t, func(t *testing.T, w *world) {
		w.put(service("web", []string{"10.0.0.1", "10.0.0.2"}), service("db", []string{"10.0.0.1"}))
		w.observe("10.0.0.1", vip.Unknown)
		w.put()
		w.changedRows()
		_, compiledDB, _ := w.Compiled.Get(key("db"))
		w.observe("10.0.0.1", vip.Unhealthy)
		w.put()
		w.expect("192.0.2.1:80/tcp web: 10.0.0.1:80*0 10.0.0.2:80*1", "192.0.2.2:80/tcp db: 10.0.0.1:80*1")
		expect.Equal(t, w.changedRows(), 1, "frontends changed")
		w.observe("10.0.0.2", vip.Healthy) // as without a row
		w.put()
		expect.Equal(t, w.changedRows(), 0, "frontends changed by a backend that stays in service")
		w.observe("10.0.0.1", vip.Healthy)
		w.put()
		w.expect("192.0.2.1:80/tcp web: 10.0.0.1:80*1 10.0.0.2:80*1", "192.0.2.2:80/tcp db: 10.0.0.1:80*1")
		w.observe("10.0.0.1", vip.Unhealthy)
		w.put()
		w.Health.Delete(vip.BackendKey{Service: key("web"), Address: addrs("10.0.0.1")[0]})
		w.put()
		w.expect("192.0.2.1:80/tcp web: 10.0.0.1:80*1 10.0.0.2:80*1", "192.0.2.2:80/tcp db: 10.0.0.1:80*1")
		_, rev, _ := w.Compiled.Get(key("db"))
		expect.Equal(t, rev, compiledDB, "the other service was compiled, too")
		w.Health.Set(vip.BackendHealth{Backend: vip.BackendKey{Service: key("nobody")}, Checks: []vip.CheckResult{{Health: vip.Unhealthy}}})
		w.put()
	})
}

// An unhealthy backend keeps its connections for as long as it is listed: it does not drain towards
// a deadline.
func TestUnhealthyBackendStays(t *testing.T) {
	inWorld(t, func(t *testing.T, w *world) {
		w.put(service("web", []string{"10.0.0.1", "10.0.0.2"}))
		w.observe("10.0.0.2", vip.Unhealthy)
		w.pass(time.Hour)
		w.expect("192.0.2.1:80/tcp web: 10.0.0.1:80*1 10.0.0.2:80*0")
		w.expectStored()
		w.put(service("web", []string{"10.0.0.1"})) // removed, it drains as any other
		w.expect("192.0.2.1:80/tcp web: 10.0.0.1:80*1 10.0.0.2:80*0@1m0s")
	})
}

// With on_unhealthy reset, an unhealthy endpoint leaves at once, and comes back with its weight. No
// row has the flag: dataplanes don't know it.
func TestResetRemovesWithoutDrain(t *testing.T) {
	reset := func(s *vip.Service) { s.ResetUnhealthy = true }
	inWorld(t, func(t *testing.T, w *world) {
		noFlag := func() {
			t.Helper()
			for _, f := range sortedFrontends(w.Frontends) {
				for _, e := range f.Backends {
					expect.False(t, e.Reset, "%s has an endpoint to reset: %s", f.Key, e.Addr)
				}
			}
		}
		web := service("web", []string{"10.0.0.1", "10.0.0.2"}, reset)
		w.put(web)
		w.changedRows()
		w.observe("10.0.0.2", vip.Unhealthy)
		w.put()
		w.expect("192.0.2.1:80/tcp web: 10.0.0.1:80*1")
		w.expectStored()
		noFlag()
		expect.Equal(t, w.changedRows(), 1, "frontends changed")
		w.put() // the same again
		expect.Equal(t, w.changedRows(), 0, "frontends changed by nothing")
		w.observe("10.0.0.2", vip.Healthy)
		w.put()
		w.expect("192.0.2.1:80/tcp web: 10.0.0.1:80*1 10.0.0.2:80*1")

		// One that drains because it was removed is not reset: nobody checks it any more.
		w.put(service("web", []string{"10.0.0.1"}, reset))
		w.expect("192.0.2.1:80/tcp web: 10.0.0.1:80*1 10.0.0.2:80*0@1m0s")
		// It returns, and is unhealthy: the drain ends.
		w.observe("10.0.0.2", vip.Unhealthy)
		w.put(web)
		w.expect("192.0.2.1:80/tcp web: 10.0.0.1:80*1")
		w.expectStored()
		noFlag()

		// The last one: clients are refused, and nothing is left to drain.
		w.observe("10.0.0.1", vip.Unhealthy)
		w.put()
		w.expect("192.0.2.1:80/tcp web:")
		noFlag()
	})
}

// Rows of an earlier run are there before the first compilation, so an unhealthy backend gets no
// connections in between.
func TestHealthAfterARestart(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		w := newWorld(t, nil)
		w.run().put(service("web", []string{"10.0.0.1", "10.0.0.2"}))
		w.observe("10.0.0.2", vip.Unhealthy)
		w.put()
		w.expect("192.0.2.1:80/tcp web: 10.0.0.1:80*1 10.0.0.2:80*0")
		w.stop()

		again := newWorld(t, w)
		again.observe("10.0.0.2", vip.Unhealthy)
		feed := again.Frontends.Watch()
		defer feed.Close()
		again.Services.Set(service("web", []string{"10.0.0.1", "10.0.0.2"}, on("", "192.0.2.1")))
		again.run().put()
		again.expect("192.0.2.1:80/tcp web: 10.0.0.1:80*1 10.0.0.2:80*0")
		for batch, _ := feed.TryNext(); len(batch) > 0; batch, _ = feed.TryNext() {
			for i := range batch {
				text := showFrontend(batch[i].Value)
				expect.Equal(t, text, "192.0.2.1:80/tcp web: 10.0.0.1:80*1 10.0.0.2:80*0", "a row")
			}
		}
		again.stop()
	})
}
