package agent

import (
	"testing"
	"time"

	"github.com/ironvip/ironvip/plane/reconcile"
	"github.com/ironvip/ironvip/test/bubble"
	"github.com/ironvip/ironvip/test/expect"
)

func TestPlaneHealth(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		var s reconcile.Stats
		h := newPlaneHealth(func() reconcile.Stats { return s })
		expect := func(when string, want bool) {
			t.Helper()
			expect.Equal(t, h.ok(), want, when)
		}
		turn := func() { s.LastRound = time.Now() }
		turn()
		expect("before the first full reconcile", false)
		s.Synced = true
		expect("synced", true)
		time.Sleep(healthGrace)
		expect("the loop hangs", false)
		turn()
		expect("it goes round again", true)

		s.TargetError = "no such module"
		expect("the dataplane is out of reach", true)
		time.Sleep(healthGrace - time.Second)
		turn()
		expect("for a little while", true)
		time.Sleep(time.Second)
		expect("for too long", false)
		s.TargetError = ""
		expect("back", true)
		s.TargetError = "again"
		expect("a new fault has time of its own", true)
	})
}
