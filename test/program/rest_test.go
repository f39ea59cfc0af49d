//go:build system

package program

import (
	"fmt"
	"testing"

	"github.com/ironvip/ironvip/test/expect"
)

// A backend that registers with a TTL and sends no heartbeats drains, and is removed later.
//
// Slow: the shortest ttl is 2 s.
func TestBackendHeartbeat(t *testing.T) {
	parallel(t)
	h := newHost(t)
	a, b := newBackend(t, "a"), newBackend(t, "b")
	h.start()
	body := fmt.Sprintf(`{"scheduler": "rr", "drain_timeout": "1s", "ports": [{"port": 8080}], "backends": [%s]}`, a.json())
	if code, tree := h.rest("PUT", "/v1/services/default/web", body, "Prefer", "wait=30"); code != 201 {
		t.Fatalf("PUT: %d %v", code, tree)
	}
	path := fmt.Sprintf("/v1/services/default/web/backends/127.0.0.1:%d", b.port)
	if code, tree := h.rest("PUT", path, `{"ttl": "2s"}`, "Prefer", "wait=30"); code/100 != 2 {
		t.Fatalf("PUT of a backend: %d %v", code, tree)
	}
	h.serves(h.vip("web")+":8080", "a")
	h.eventually("the backend is removed", func() error {
		if code, tree := h.rest("GET", path, ""); code != 404 {
			return fmt.Errorf("%d %v", code, tree)
		}
		return nil
	})
}

// Acknowledged services, their VIPs and their traffic survive kill -9.
func TestRegistrationsSurviveKill(t *testing.T) {
	h := newHost(t)
	a := newBackend(t, "a")
	h.start()
	vips := map[string]string{}
	for i := range 20 {
		name := fmt.Sprintf("s%d", i)
		vips[name] = h.put(name, a)
	}
	if code, _ := h.rest("DELETE", "/v1/services/default/s7", "", "Prefer", "wait=30"); code/100 != 2 {
		t.Fatalf("DELETE: %d", code)
	}
	delete(vips, "s7")
	for range 3 {
		h.kill()
		h.start()
		for name, vip := range vips {
			expect.Equal(t, h.vip(name), vip, "%s moved from %s to", name, vip)
			h.serves(vip+":8080", "a")
		}
		if code, _ := h.rest("GET", "/v1/services/default/s7", ""); code != 404 {
			t.Errorf("the deleted service is back: %d", code)
		}
	}
}
