package rest

import (
	"testing"
	"time"

	"github.com/ironvip/ironvip/fleet/registry"
	"github.com/ironvip/ironvip/test/expect"
	"github.com/ironvip/ironvip/test/must"
	"github.com/ironvip/ironvip/vip"
	"github.com/ironvip/ironvip/vip/spec"
)

// patchOf returns a put that patches the service web.
func patchOf(t *testing.T, text string) Put {
	p, problems := spec.DecodePatch([]byte(text))
	must.Empty(t, problems)
	return Put{Key: webKey, Patch: p}
}

// A patch applies to the newest version of the service, also to one that another host has written
// meanwhile, so that no change of either is lost.
func TestPatchesThroughTwoHosts(t *testing.T) {
	a, b := pair(t)
	patch := func(h *host, text string) func() error {
		return func() error { _, err := h.src.PutService(t.Context(), patchOf(t, text)); return err }
	}
	// The host has not received the service when it is asked to change it.
	a.put(web("10.0.0.1"))
	expect.Succeed(t, patch(b, `{"labels":{"b":"1"}}`)(), "a service that was just created")
	err := b.overtaken(patch(b, `{"labels":{"b":"2"}}`), func() {
		expect.Succeed(t, patch(a, `{"labels":{"a":"2"}}`)())
	})
	expect.Succeed(t, err, "two patches at once")
	err = b.overtaken(patch(b, `{"scheduler":"mh"}`), func() { a.register("10.0.0.9", time.Hour) })
	expect.Succeed(t, err, "a patch and a registration")
	everyone([]*host{a, b}, func(h *host) {
		h.until("every change is there", func() bool {
			s, _, _ := h.services.Get(webKey)
			return s.Labels["a"] == "2" && s.Labels["b"] == "2" && s.Scheduler == vip.MaglevHash && len(s.Backends) == 2
		})
	})
	expect.Succeed(t, b.overtaken(patch(b, `{"scheduler":"rr"}`), func() { a.put(web("10.0.0.4")) }), "a patch and a put")
	everyone([]*host{a, b}, func(h *host) {
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
	expect.Is(t, err, registry.ErrNoService, "a patch of a service that was removed")
}
