//go:build system

package routers_test

import (
	"strings"
	"testing"

	"github.com/ironvip/ironvip/test/expect"
	"github.com/ironvip/ironvip/test/routers"
	"github.com/ironvip/ironvip/test/wait"
)

// restartable is a speaker of 1,000 prefixes whose restarts are graceful.
func restartable(t *testing.T, l lab, c routers.Settings) (*routers.Speaker, *routers.RouteEvents) {
	t.Helper()
	c.Prefixes = append(c.Prefixes, vips(1000)...)
	c.NotReady = true
	events := routers.WatchRoutes(t, l.router)
	s := routers.StartSpeaker(t, l.Director, c)
	s.AwaitUp()
	s.Do("ready")
	wait.Until(t, "1,002 routes in the router's kernel", func() bool { return events.Added.Load() >= 1002 }, func() any { return events.Added.Load() })
	return s, events
}

// A restart of the announcing process, by kill -9 or by a stop, deletes no route in the router. The
// prefixes that are not announced again go with the end of the new initial routes.
func TestRestartWithBird(t *testing.T) {
	inLabs(t, func(t *testing.T, l lab, v6 bool) {
		bird := routers.StartBird(t, l.router, birdPeer(l.us(v6), ""))
		s, events := restartable(t, l, l.settings(v6))
		for _, end := range []func(){s.Kill, func() { s.Stop() }} {
			end()
			wait.Until(t, "BIRD waits for the restart", func() bool {
				return strings.Contains(bird.Ask("show", "protocols", "all", "vips"), "Neighbor graceful restart active")
			}, func() any { return bird.Ask("show", "protocols", "all", "vips") })
			s.StartAgain()
			s.AwaitUp()
			s.Do("ready")
			wait.Until(t, "the end of the restart", func() bool {
				return !strings.Contains(bird.Ask("show", "protocols", "all", "vips"), "graceful restart active")
			})
			expect.AtMost(t, events.Deleted.Load(), 0, "deleted routes")
		}
		expect.Equal(t, bird.Count(), 1002, "routes after the restarts")
		s.Kill()
		s.StartAgain()
		s.AwaitUp()
		s.Do("withdraw", vip4) // before it is ready
		s.Do("ready")
		l.awaitKernelRoute(t, vip4, false)
		wait.Until(t, "one route fewer", func() bool { return bird.Count() == 1001 })
		wait.Until(t, "the report of the deletion", func() bool { return events.Deleted.Load() > 0 })
		expect.Equal(t, events.Deleted.Load(), 1, "deleted routes")
	})
}

// A router that restarts waits for this host's routes: the R bit is not set, although this process
// has been restarted before.
func TestRestartOfBird(t *testing.T) {
	inLabs(t, func(t *testing.T, l lab, v6 bool) {
		bird := routers.StartBird(t, l.router, birdPeer(l.us(v6), ""), "-R")
		s, events := restartable(t, l, l.settings(v6))
		s.Kill()
		bird.Kill() // both are away
		s.StartAgain()
		s.AwaitReason("connection refused")
		bird.StartAgain()
		s.AwaitUp()
		// With the R bit, BIRD would end its recovery now, before it has the routes.
		wait.Until(t, "all routes", func() bool { return bird.Count() == 1002 })
		expect.AtMost(t, events.Deleted.Load(), 0, "deleted routes")
		s.Do("ready")
		wait.Until(t, "the end of the recovery", func() bool {
			return strings.Contains(bird.LogEnd(1<<20), "Graceful restart done")
		}, func() any { return bird.Ask("show", "protocols", "all", "vips") })
		wait.Until(t, "all routes", func() bool { return bird.Count() == 1002 })
		expect.AtMost(t, events.Deleted.Load(), 0, "deleted routes")
	})
}
