package overrides

import (
	"errors"
	"testing"
	"time"

	"github.com/ironvip/ironvip/fleet/registry"
	"github.com/ironvip/ironvip/internal/store"
	"github.com/ironvip/ironvip/test/expect"
	"github.com/ironvip/ironvip/test/fleettest"
	"github.com/ironvip/ironvip/vip"
)

// grouped sets the web service: one backend in each of the groups, canary has weight 10 and stable another one.
func (h *host) grouped(stable uint32) {
	h.serves("10.0.0.1", "10.0.0.2")
	svc, _, _ := h.services.Get(webKey)
	svc.Groups = []vip.Group{{Name: "stable", Weight: stable}, {Name: "canary", Weight: 10}}
	svc.Backends[0].Group, svc.Backends[1].Group = "stable", "canary"
	h.services.Set(svc)
}

func (h *host) weigh(group string, weight uint32) error {
	_, err := h.Set(h.t.Context(), Request{Backend: vip.BackendKey{Service: webKey}, Group: group, Weight: weight, Author: "root"})
	return err
}

func (h *host) endGroup(group string) error {
	_, err := h.Set(h.t.Context(), Request{Backend: vip.BackendKey{Service: webKey}, Group: group, State: vip.Ready, Author: "root"})
	return err
}

// The weight of a group stays through restarts until it is reset, and ends an hour after the group has left the service.
func TestWeightsOfGroups(t *testing.T) {
	restarts(t, func(t *testing.T, _ *store.DB, start func() (*host, *writes)) {
		h, disk := start()
		h.grouped(90)
		h.set("10.0.0.1", vip.Drain)
		for range 2 {
			expect.Succeed(t, h.weigh("canary", 30))
		}
		expect.Equal(t, disk.n(), 2, "writes")
		h, _ = start()
		h.expect("after a restart", "10.0.0.1 drain, canary weight 30")
		h.grouped(90)
		expect.Succeed(t, h.weigh("canary", 40))
		expect.Succeed(t, h.endGroup("canary"))
		h.expect("after its end", "10.0.0.1 drain")
		expect.SameList(t, h.messages(), []string{"set to weight 40 by root", "set to the weight of the source by root"}, "events")
		expect.Succeed(t, h.weigh("stable", 1))
		h.serves("10.0.0.1", "10.0.0.2")
		time.Sleep(gracePeriod)
		h.expect("within the grace period", "10.0.0.1 drain, stable weight 1")
		time.Sleep(2 * sweepInterval)
		h.expect("after the grace period", "10.0.0.1 drain")
		expect.Is(t, h.weigh("stable", 1), registry.ErrNoBackend, "of a group that is gone")
		var invalid *registry.InvalidError
		h.grouped(90)
		expect.True(t, errors.As(h.weigh("stable", vip.MaxWeight+1), &invalid), "a weight out of bounds is accepted")
	})
}

// The weight 0 of the last group with usable backends needs force, as does the drain of its last backend.
func TestLastGroupNeedsForce(t *testing.T) {
	for name, c := range map[string]struct {
		stable uint32
		drain  string
		change func(*host) error
		want   string
	}{
		"another group": {stable: 90, change: func(h *host) error { return h.weigh("canary", 0) }},
		"another group without a weight": {stable: 0, change: func(h *host) error { return h.weigh("canary", 0) },
			want: `group canary has the last usable backends of service "web"`},
		"another group that drains": {stable: 90, drain: "10.0.0.1", change: func(h *host) error { return h.weigh("canary", 0) },
			want: `group canary has the last usable backends of service "web"`},
		"a smaller weight": {stable: 0, change: func(h *host) error { return h.weigh("canary", 1) }},
		"a backend beside a group without a weight": {stable: 0, change: func(h *host) error {
			_, err := h.Set(h.t.Context(), request("10.0.0.2", vip.Drain))
			return err
		}, want: `10.0.0.2 is the last usable backend of service "web"`},
		"a backend beside a group that an operator gave a weight": {stable: 0, change: func(h *host) error {
			if err := h.weigh("stable", 5); err != nil {
				return err
			}
			_, err := h.Set(h.t.Context(), request("10.0.0.2", vip.Drain))
			return err
		}},
	} {
		t.Run(name, func(t *testing.T) {
			restarts(t, func(t *testing.T, _ *store.DB, start func() (*host, *writes)) {
				h, _ := start()
				h.grouped(c.stable)
				if c.drain != "" {
					h.set(c.drain, vip.Drain)
				}
				err := c.change(h)
				if c.want == "" {
					expect.Succeed(t, err)
					return
				}
				if _, is := errors.AsType[*LastBackendError](err); !is || err.Error() != c.want {
					t.Errorf("%v, want %s", err, c.want)
				}
			})
		})
	}
}

func TestWeightsOfGroupsAreShared(t *testing.T) {
	inFleet(t, func(t *testing.T, m *fleettest.Memory, join func(string) *host) {
		a, b := join("a"), join("b")
		a.grouped(90)
		b.grouped(90)
		expect.Succeed(t, a.weigh("canary", 0))
		time.Sleep(time.Second)
		b.expect("through the store", "canary weight 0")
	})
}
