//go:build vm

package program

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/ironvip/ironvip/test/must"
)

// setClock moves the machine's wall clock. Clocks that only measure durations go on as before.
func setClock(t *testing.T, by time.Duration) {
	t.Helper()
	now := unix.NsecToTimespec(time.Now().Add(by).UnixNano())
	must.Succeed(t, unix.ClockSettime(unix.CLOCK_REALTIME, &now))
}

// jump is a step of the wall clock, while the agent runs or between two runs.
type jump struct {
	by      time.Duration
	restart bool
}

// TestMoreWallClockJumps has the other sides.
//
// Slow: two jumps with a failure and a recovery each.
func TestWallClockJumps(t *testing.T) {
	wallClockJumps(t, jump{by: -3 * time.Hour}, jump{by: 4000 * time.Hour, restart: true})
}

// wallClockJumps moves the wall clock. No backend changes its health, no lease and no traffic is lost, and a failure
// and a recovery are found as before.
func wallClockJumps(t *testing.T, jumps ...jump) {
	h := newHost(t)
	a, b := newBackend(t, "a"), newBackend(t, "b")
	h.write("services.d/web.toml", service("web", `health = { type = "tcp", interval = "200ms", timeout = "1m", fall = 2, rise = 1 }`, a, b))
	h.start()
	web := h.vip("web") + ":8080"
	h.serves(web, "a", "b")
	states := func(what string, unhealthy int) {
		t.Helper()
		h.eventually(what, func() error {
			if text := h.ok("backend", "list", "web"); strings.Count(text, "tcp unhealthy") != unhealthy || strings.Count(text, "tcp healthy") != 2-unhealthy {
				return fmt.Errorf("%s", text)
			}
			return nil
		})
	}
	states("both are healthy", 0)
	moved := time.Duration(0)
	defer func() { setClock(t, -moved) }()
	for _, jump := range jumps {
		before := strings.Count(h.ok("events"), "backend_unhealthy")
		if jump.restart {
			h.kill()
		}
		setClock(t, jump.by)
		moved += jump.by
		if jump.restart {
			h.start()
		}
		got := h.vip("web") + ":8080"
		must.Equal(t, got, web, "%v: the VIP is %s, it", jump, got)
		h.serves(web, "a", "b")
		states("both are healthy after a jump", 0)
		if n := strings.Count(h.ok("events"), "backend_unhealthy"); n > before && !jump.restart {
			t.Errorf("%v: %d backends became unhealthy", jump, n-before)
		}
		must.Succeed(t, a.refuse())
		states("one is unhealthy", 1)
		h.serves(web, "b")
		must.Succeed(t, a.accept())
		states("both are healthy again", 0)
	}
}
