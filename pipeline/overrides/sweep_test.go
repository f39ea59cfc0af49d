package overrides

import (
	"testing"
	"testing/synctest"
	"time"

	"github.com/ironvip/ironvip/internal/store"
	"github.com/ironvip/ironvip/test/expect"
	"github.com/ironvip/ironvip/test/fleettest"
	"github.com/ironvip/ironvip/vip"
)

// An override is removed with its service. While the sources have not synced, no service counts as
// removed.
func TestOverridesGoWithTheirService(t *testing.T) {
	restarts(t, func(t *testing.T, _ *store.DB, start func() (*host, *writes)) {
		h, disk := start()
		h.has("10.0.0.1", "10.0.0.2")
		h.set("10.0.0.1", vip.Drain)
		h.set("10.0.0.2", vip.Maint)
		synced := h.services.Initializer()
		h.services.Delete(webKey)
		h.expect("before the sources have synced", "10.0.0.1 drain, 10.0.0.2 maint")
		synced()
		h.expect("after that", "")
		h.has("10.0.0.1")
		h.set("10.0.0.1", vip.Drain)
		h.services.Delete(webKey)
		h.has("10.0.0.1") // at once
		h.expect("a service that was replaced", "10.0.0.1 drain")
		h.services.Delete(webKey)
		h.expect("removed again", "")
		_, there := h.stored("10.0.0.1")
		expect.False(t, there, "still stored")
		h.has("10.0.0.1")
		h.set("10.0.0.1", vip.Drain)
		before := disk.n()
		disk.fail(true)
		h.services.Delete(webKey)
		h.expect("while the disk is full", "10.0.0.1 drain")
		disk.fail(false)
		time.Sleep(sweepRetry)
		h.expect("with free space", "")
		if disk.n() != before+1 {
			t.Errorf("%d writes", disk.n()-before)
		}
	})
}

// In a fleet, the host through which an override was set removes it with its service, or the
// elected one if that host is absent.
func TestFleetRemovesOverridesOfRemovedServices(t *testing.T) {
	inFleet(t, func(t *testing.T, m *fleettest.Memory, join func(string) *host) {
		a, b := join("a"), join("b")
		for _, h := range []*host{a, b} {
			h.has("10.0.0.1")
		}
		b.set("10.0.0.1", vip.Drain)
		time.Sleep(time.Second)
		a.services.Delete(webKey) // it has another static source
		time.Sleep(time.Minute)
		a.expect("the service is removed from a only", "10.0.0.1 drain")
		b.services.Delete(webKey)
		time.Sleep(time.Second)
		a.expect("the service is removed from both", "")
		b.expect("the service is removed from both", "")

		for _, h := range []*host{a, b} {
			h.has("10.0.0.1")
		}
		b.set("10.0.0.1", vip.Drain)
		time.Sleep(time.Second)
		b.stop()
		b.tree.End()
		time.Sleep(time.Minute)
		a.services.Delete(webKey)
		synctest.Wait()
		a.expect("b is absent", "")
	})
}

// A stored value that is newer than what is known of it is looked at again, so that the end of an override is not lost.
func TestSweepLooksAgain(t *testing.T) {
	restarts(t, func(t *testing.T, _ *store.DB, start func() (*host, *writes)) {
		h, _ := start()
		h.has("10.0.0.1")
		h.set("10.0.0.1", vip.Drain)
		known := func(older int) {
			h.mu.Lock()
			defer h.mu.Unlock()
			for _, e := range h.entries {
				e.version -= uint64(older)
			}
		}
		known(1)
		h.services.Delete(webKey)
		h.expect("while an older value is known", "10.0.0.1 drain")
		known(-1)
		time.Sleep(sweepRetry)
		h.expect("then", "")
	})
}
