package roster

import (
	"testing"
	"time"

	"github.com/ironvip/ironvip/test/bubble"
	"github.com/ironvip/ironvip/test/expect"
	"github.com/ironvip/ironvip/test/fleettest"
	"github.com/ironvip/ironvip/test/must"
)

// During an upgrade of the fleet, one host after the other reads a newer format.
func TestFormatOfAllHosts(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		kv := fleettest.NewMemory()
		older, newer := Member{}, Member{Format: 3}
		one, two := join(t, kv, "one", older), join(t, kv, "two", older)
		hosts := func() []*host { return []*host{one, two} }
		expectFormat := func(when string, want Format) {
			t.Helper()
			time.Sleep(time.Minute)
			for i, h := range hosts() {
				expect.Equal(t, h.Format(), want, "%s: host %d knows format", when, i)
			}
		}
		upgrade := func(h *host, name string, to Member) *host {
			h.end()
			return join(t, kv, name, to)
		}
		expectFormat("before", 0)
		one = upgrade(one, "one", newer)
		expectFormat("one host upgraded", 0)
		two = upgrade(two, "two", newer)
		expectFormat("both upgraded", 3)
		two = upgrade(two, "two", Member{Format: 2})
		expectFormat("one host downgraded", 2)

		// A lost host counts until it is forgotten.
		two.end()
		time.Sleep(3 * time.Minute)
		must.Equal(t, one.lostNames(), "two", "lost")
		expect.Equal(t, one.Format(), 2, "a host of format 2 is lost: format")
		must.Succeed(t, one.Forget(t.Context(), "two"))
		expect.Equal(t, one.Format(), 3, "the host is forgotten: format")
	})
}
