package roster

import (
	"testing"
	"time"

	"github.com/ironvip/ironvip/test/bubble"
	"github.com/ironvip/ironvip/test/fleettest"
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
				if got := h.Format(); got != want {
					t.Errorf("%s: host %d knows format %d, want %d", when, i, got, want)
				}
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
		if got := one.lostNames(); got != "two" {
			t.Fatalf("lost: %q", got)
		}
		if got := one.Format(); got != 2 {
			t.Errorf("a host of format 2 is lost: format %d", got)
		}
		if err := one.Forget(t.Context(), "two"); err != nil {
			t.Fatal(err)
		}
		if got := one.Format(); got != 3 {
			t.Errorf("the host is forgotten: format %d", got)
		}
	})
}
