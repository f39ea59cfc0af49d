package rest

import (
	"errors"
	"testing"
	"time"

	"github.com/ironvip/ironvip/internal/fleet/fleettest"
	"github.com/ironvip/ironvip/internal/registry"
	"github.com/ironvip/ironvip/vip"
	"github.com/ironvip/ironvip/vip/spec"
)

// patchOf returns a put that patches the service web.
func patchOf(t *testing.T, text string) Put {
	p, problems := spec.DecodePatch([]byte(text))
	if len(problems) > 0 {
		t.Fatal(problems)
	}
	return Put{Key: webKey, Patch: p}
}

// A patch applies to the newest version of the service, also to one that another host has written
// meanwhile, so that no change of either is lost.
func TestPatchesThroughTwoHosts(t *testing.T) {
	hosts := fleetOf(t, fleettest.NewMemory(), "a", "b")
	a, b := hosts[0], hosts[1]
	patch := func(h *host, text string) func() error {
		return func() error { _, err := h.src.PutService(t.Context(), patchOf(t, text)); return err }
	}
	// The host has not received the service when it is asked to change it.
	a.put(web("10.0.0.1"))
	if err := patch(b, `{"labels":{"b":"1"}}`)(); err != nil {
		t.Errorf("a service that was just created: %v", err)
	}
	err := b.overtaken(patch(b, `{"labels":{"b":"2"}}`), func() {
		if err := patch(a, `{"labels":{"a":"2"}}`)(); err != nil {
			t.Error(err)
		}
	})
	if err != nil {
		t.Errorf("two patches at once: %v", err)
	}
	err = b.overtaken(patch(b, `{"scheduler":"mh"}`), func() { a.register("10.0.0.9", time.Hour) })
	if err != nil {
		t.Errorf("a patch and a registration: %v", err)
	}
	everyone(hosts, func(h *host) {
		h.until("every change is there", func() bool {
			s, _, _ := h.services.Get(webKey)
			return s.Labels["a"] == "2" && s.Labels["b"] == "2" && s.Scheduler == vip.MaglevHash && len(s.Backends) == 2
		})
	})
	if err := b.overtaken(patch(b, `{"scheduler":"rr"}`), func() { a.put(web("10.0.0.4")) }); err != nil {
		t.Errorf("a patch and a put: %v", err)
	}
	everyone(hosts, func(h *host) {
		h.until("the put is patched", func() bool {
			s, _, _ := h.services.Get(webKey)
			return s.Scheduler == vip.RoundRobin && len(s.Backends) == 1 && s.Backends[0].Address.String() == "10.0.0.4"
		})
	})
	err = b.overtaken(patch(b, `{"scheduler":"mh"}`), func() {
		if _, err := a.src.DeleteService(t.Context(), webKey, nil); err != nil {
			t.Error(err)
		}
	})
	if !errors.Is(err, registry.ErrNoService) {
		t.Errorf("a patch of a service that was removed: %v", err)
	}
}
