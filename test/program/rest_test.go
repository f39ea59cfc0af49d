//go:build system || vm

package program

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/ironvip/ironvip/test/wait"
)

// A backend that registers with a TTL and stops its heartbeats drains, and is removed later. A
// heartbeat keeps it.
func TestBackendHeartbeat(t *testing.T) {
	h := newHost(t)
	a, b := newBackend(t, "a"), newBackend(t, "b")
	h.start()
	vip := h.put("web", a)
	if code, tree := h.rest("PUT", "/v1/services/default/web",
		fmt.Sprintf(`{"scheduler": "rr", "drain_timeout": "1s", "ports": [{"port": 8080}], "backends": [%s]}`, a.json()), "Prefer", "wait=30"); code != 200 {
		t.Fatalf("PUT again: %d %v", code, tree)
	}
	path := fmt.Sprintf("/v1/services/default/web/backends/127.0.0.1:%d", b.port)
	wait.Undisturbed(t, "a backend is kept by its heartbeats", func() error {
		if code, tree := h.rest("PUT", path, `{"ttl": "2s"}`, "Prefer", "wait=30"); code/100 != 2 {
			return fmt.Errorf("PUT of a backend: %d %v", code, tree)
		}
		beat := func() error {
			if code, tree := h.rest("PUT", path+"/heartbeat", ""); code != 204 {
				return fmt.Errorf("heartbeat: %d %v", code, tree)
			}
			return nil
		}
		for range 4 { // longer than its ttl
			if err := beat(); err != nil {
				return err
			}
			time.Sleep(time.Second)
		}
		var err error
		h.eventually("it takes connections, or a heartbeat fails", func() error {
			if err = beat(); err != nil {
				return nil
			}
			if got := answered(t, vip+":8080", 4); got["a"] == 0 || got["b"] == 0 {
				return fmt.Errorf("answered by %v", got)
			}
			return nil
		})
		return err
	})
	h.serves(vip+":8080", "a") // no heartbeats from here on
	h.eventually("a heartbeat of a removed backend has to register again", func() error {
		if code, _ := h.rest("GET", path, ""); code != 404 {
			return fmt.Errorf("still there: %d", code)
		}
		if code, _ := h.rest("PUT", path+"/heartbeat", ""); code != 404 {
			return fmt.Errorf("heartbeat: %d", code)
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
			if got := h.vip(name); got != vip {
				t.Errorf("%s moved from %s to %s", name, vip, got)
			}
			h.serves(vip+":8080", "a")
		}
		if code, _ := h.rest("GET", "/v1/services/default/s7", ""); code != 404 {
			t.Errorf("the deleted service is back: %d", code)
		}
	}
}

// A request body above the limit is refused.
func TestLargeBody(t *testing.T) {
	parallel(t)
	h := newHost(t)
	h.start()
	body := `{"ports": [{"port": 80}], "labels": {"a": "` + strings.Repeat("x", 2<<20) + `"}}`
	if code, tree := h.rest("PUT", "/v1/services/default/x", body); code != 413 {
		t.Errorf("%d %v, want 413", code, tree)
	}
}
