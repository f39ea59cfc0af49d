package overrides

import (
	"errors"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/ironvip/ironvip/fleet/registry"
	"github.com/ironvip/ironvip/internal/store"
	"github.com/ironvip/ironvip/test/expect"
	"github.com/ironvip/ironvip/test/fleettest"
	"github.com/ironvip/ironvip/test/must"
	"github.com/ironvip/ironvip/vip"
)

// setFor sets an override that expires.
func (h *host) setFor(address string, to vip.State, d time.Duration) {
	h.t.Helper()
	r := request(address, to)
	r.Until = vip.InstantOf(time.Now().Add(d))
	must.Get(h.Set(h.t.Context(), r))(h.t)
}

// stored returns the stored value of a backend's override.
func (h *host) stored(address string) (Override, bool) {
	item := h.Store.Get(storeKey(vip.OverrideKey{BackendKey: backend(address)}))
	return item.Value, item.Version != 0
}

func TestOverridesExpire(t *testing.T) {
	restarts(t, func(t *testing.T, _ *store.DB, start func() (*host, *writes)) {
		h, _ := start()
		h.has("10.0.0.1", "10.0.0.2", "10.0.0.3")
		h.setFor("10.0.0.1", vip.Drain, 2*time.Hour)
		h.setFor("10.0.0.2", vip.Maint, time.Hour)
		h.set("10.0.0.3", vip.Drain)
		time.Sleep(time.Hour - time.Nanosecond)
		h.expect("before the first", "10.0.0.1 drain, 10.0.0.2 maint, 10.0.0.3 drain")
		time.Sleep(time.Nanosecond)
		h.expect("after the first", "10.0.0.1 drain, 10.0.0.3 drain")
		h, _ = start()
		h.has("10.0.0.1", "10.0.0.2", "10.0.0.3")
		h.expect("after a restart", "10.0.0.1 drain, 10.0.0.3 drain")
		h.setFor("10.0.0.1", vip.Drain, 3*time.Hour) // later
		h.setFor("10.0.0.3", vip.Drain, time.Minute) // now expires first
		time.Sleep(time.Minute)
		h.expect("after the one that was set again", "10.0.0.1 drain")
		h.stop()
		time.Sleep(3 * time.Hour)
		h, _ = start()
		h.expect("expired while no agent ran", "")
		if v, there := h.stored("10.0.0.1"); !there || !v.Ended() {
			t.Errorf("stored: %+v", v)
		}
		h.has("10.0.0.1")
		time.Sleep(endedKept + 2*sweepInterval)
		h.expect("a day later", "")
		if v, there := h.stored("10.0.0.1"); there {
			t.Errorf("still stored after a day: %+v", v)
		}
	})
}

func TestExpiryIsRefused(t *testing.T) {
	restarts(t, func(t *testing.T, _ *store.DB, start func() (*host, *writes)) {
		h, disk := start()
		h.has("10.0.0.1")
		for name, r := range map[string]Request{
			"in the past": {Backend: backend("10.0.0.1"), State: vip.Drain, Until: vip.InstantOf(time.Now())},
			"of ready":    {Backend: backend("10.0.0.1"), State: vip.Ready, Until: vip.InstantOf(time.Now().Add(time.Hour))},
		} {
			var invalid *registry.InvalidError
			if _, err := h.Set(t.Context(), r); !errors.As(err, &invalid) || invalid.Problems[0].Field != "expires" || disk.n() != 0 {
				t.Errorf("%s: %v", name, err)
			}
		}
	})
}

// The time left does not depend on steps of the host's clock. A clock that was set back while no
// agent ran does not make an override last longer than the operator asked for.
func TestExpiryKeepsTheTimeLeft(t *testing.T) {
	restarts(t, func(t *testing.T, db *store.DB, start func() (*host, *writes)) {
		h, _ := start()
		h.has("10.0.0.1", "10.0.0.2", "10.0.0.3")
		h.setFor("10.0.0.1", vip.Drain, 2*time.Hour)
		h.setFor("10.0.0.2", vip.Drain, 30*time.Minute)
		time.Sleep(30*time.Minute - time.Nanosecond)
		h.expect("before half an hour", "10.0.0.1 drain, 10.0.0.2 drain")
		time.Sleep(time.Nanosecond)
		h.expect("after half an hour", "10.0.0.1 drain")
		time.Sleep(90*time.Minute - time.Nanosecond)
		h.expect("just before the end", "10.0.0.1 drain")
		time.Sleep(time.Nanosecond)
		h.expect("at the end", "")

		// The stored time is a day ahead of the clock.
		ahead, until := time.Now().Add(24*time.Hour), time.Now().Add(25*time.Hour)
		h.stop()
		bucket := store.NewBucket[Override](db, "states")
		must.Succeed(t, bucket.Put("default/web/10.0.0.1", Override{State: "drain", Since: ahead, Until: &until}))
		h, _ = start()
		h.has("10.0.0.1")
		h.expect("after the clock was set back", "10.0.0.1 drain")
		time.Sleep(time.Hour)
		h.expect("an hour later", "")
	})
}

// Every host of a fleet ends an expired override by itself. The one through which it was set writes
// that down once, for releases that know no expiry.
func TestOverridesExpireInAFleet(t *testing.T) {
	inFleet(t, func(t *testing.T, m *fleettest.Memory, join func(string) *host) {
		hosts := []*host{join("a"), join("b"), join("c")}
		var writes atomic.Int32
		for _, h := range hosts {
			h.has("10.0.0.1")
			h.tree.Client.Before(func(c fleettest.Call) error {
				for _, op := range c.Ops {
					if strings.Contains(op.Key, "/tree/"+Folder) && op.Value != nil {
						writes.Add(1)
					}
				}
				return nil
			})
		}
		hosts[1].setFor("10.0.0.1", vip.Drain, time.Hour)
		time.Sleep(time.Second)
		for _, h := range hosts {
			h.expect("before", "10.0.0.1 drain")
			if row, _, _ := h.table.Get(vip.OverrideKey{BackendKey: backend("10.0.0.1")}); row.Author != "root" || row.Node != "b" || row.Until.IsZero() || row.Since.IsZero() {
				t.Errorf("%s has %+v", h.name, row)
			}
		}
		m.SetDown(true)
		time.Sleep(time.Hour)
		for _, h := range hosts {
			h.expect("while the store is away", "")
		}
		m.SetDown(false)
		time.Sleep(time.Minute)
		for _, h := range hosts {
			h.expect("after it is back", "")
			if v, _ := h.stored("10.0.0.1"); !v.Ended() {
				t.Errorf("%s has %+v", h.name, v)
			}
			if got := h.messages(); len(got) != 2 || !strings.HasPrefix(got[1], "override expired: drain by root") {
				t.Errorf("%s has the events %q", h.name, got)
			}
			h.tree.Client.Before(nil)
		}
		expect.Equal(t, writes.Load(), 2, "writes for an override and its end")
	})
}

// The stored form of overrides, also of one without an author and an expiry.
func TestStoredFormat(t *testing.T) {
	inFleet(t, func(t *testing.T, m *fleettest.Memory, join func(string) *host) {
		const at = "ironvip/v2/tree/states/default/web/10.0.0."
		m.Put(at+"2", `{"v":1,"value":{"state":"maint","since":"2026-01-01T00:00:00Z","node":"x"}}`)
		a := join("a")
		a.has("10.0.0.1", "10.0.0.2", "10.0.0.3")
		a.expect("without an author", "10.0.0.2 maint")
		a.setFor("10.0.0.1", vip.Drain, time.Hour)
		a.set("10.0.0.2", vip.Ready)
		for key, want := range map[string][]string{
			"1": {`{"v":1,"value":{"state":"drain","since":"`, `","node":"a","author":"root","until":"`},
			"2": {`{"v":1,"value":{"state":"ready","since":"`, `","node":"a","author":"root"}}`},
		} {
			text, _ := m.Get(at + key)
			if slices.ContainsFunc(want, func(part string) bool { return !strings.Contains(text, part) }) {
				t.Errorf("stored: %s", text)
			}
		}
	})
}
