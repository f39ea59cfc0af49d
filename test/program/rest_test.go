//go:build program || vm

package program

import (
	"fmt"
	"strings"
	"testing"
	"time"
)

// Services and single backends are registered, read, listed and deleted; when
// a waited-for PUT is answered, the very next connection is served.
func TestRESTRegistration(t *testing.T) {
	h := newHost(t)
	a, b := newBackend(t, "a"), newBackend(t, "b")
	h.start()
	vip := h.put("web", a)
	if got := answered(t, vip+":8080", 2); got["a"] != 2 {
		t.Fatalf("answered by %v", got)
	}
	code, tree := h.rest("PUT", fmt.Sprintf("/v1/services/default/web/backends/127.0.0.1:%d", b.port), `{}`, "Prefer", "wait=30")
	if code/100 != 2 {
		t.Fatalf("PUT of a backend: %d %v", code, tree)
	}
	h.serves(vip+":8080", "a", "b")
	if code, tree := h.rest("GET", "/v1/services", ""); code != 200 || len(tree["items"].([]any)) != 1 {
		t.Errorf("list: %d %v", code, tree)
	}
	if code, tree := h.rest("DELETE", fmt.Sprintf("/v1/services/default/web/backends/127.0.0.1:%d", a.port), "", "Prefer", "wait=30"); code/100 != 2 {
		t.Errorf("DELETE of a backend: %d %v", code, tree)
	}
	h.serves(vip+":8080", "b")

	if code, tree := h.rest("DELETE", "/v1/services/default/web", "", "Prefer", "wait=30"); code/100 != 2 {
		t.Errorf("DELETE: %d %v", code, tree)
	}
	h.eventually("the VIP is refused", func() error {
		if name, err := who(vip + ":8080"); err == nil {
			return fmt.Errorf("%s answers", name)
		}
		return nil
	})
	if code, tree := h.rest("GET", "/v1/services/default/web", ""); code != 404 || tree["code"] != "not_found" {
		t.Errorf("GET of what is gone: %d %v", code, tree)
	}
}

// A backend that registers with a ttl and falls silent drains, and is removed
// later; a heartbeat keeps it.
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
	if code, tree := h.rest("PUT", path, `{"ttl": "2s"}`, "Prefer", "wait=30"); code/100 != 2 {
		t.Fatalf("PUT of a backend: %d %v", code, tree)
	}
	beat := func() {
		t.Helper()
		if code, tree := h.rest("PUT", path+"/heartbeat", ""); code != 204 {
			t.Fatalf("heartbeat: %d %v", code, tree)
		}
	}
	for range 4 { // longer than its ttl
		beat()
		time.Sleep(time.Second)
	}
	h.eventually("it is kept by its heartbeats", func() error {
		beat()
		if got := answered(t, vip+":8080", 4); got["a"] == 0 || got["b"] == 0 {
			return fmt.Errorf("answered by %v", got)
		}
		return nil
	})
	h.serves(vip+":8080", "a") // silent now
	h.eventually("a heartbeat of a removed backend is told to register again", func() error {
		if code, _ := h.rest("GET", path, ""); code != 404 {
			return fmt.Errorf("still there: %d", code)
		}
		if code, _ := h.rest("PUT", path+"/heartbeat", ""); code != 404 {
			return fmt.Errorf("heartbeat: %d", code)
		}
		return nil
	})
}

// What was acknowledged is there after kill -9: the services, their VIPs and
// their traffic.
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

// What the API refuses, it refuses with a problem that names the place.
func TestRESTRefusals(t *testing.T) {
	h := newHost(t)
	a := newBackend(t, "a")
	h.write("services.d/web.toml", service("web", "", a))
	h.start()
	h.vip("web")
	big := strings.Repeat("x", 2<<20)
	for _, c := range []struct {
		what, method, path, body string
		code                     int
		says                     string
	}{
		{"a name that TOML owns", "PUT", "/v1/services/default/web", `{"ports":[{"port":80}]}`, 409, "read_only_source"},
		{"deleting what TOML owns", "DELETE", "/v1/services/default/web", ``, 409, "read_only_source"},
		{"no ports", "PUT", "/v1/services/default/x", `{}`, 422, "ports"},
		{"an unknown key", "PUT", "/v1/services/default/x", `{"ports":[{"port":80}],"prot":1}`, 422, "prot"},
		{"a port out of range", "PUT", "/v1/services/default/x", `{"ports":[{"port":99999}]}`, 422, "port"},
		{"a wrong type", "PUT", "/v1/services/default/x", `{"ports":"80"}`, 422, "ports"},
		{"half a body", "PUT", "/v1/services/default/x", `{"ports":[{"po`, 422, ""},
		{"a bad name", "PUT", "/v1/services/default/No_Good", `{"ports":[{"port":80}]}`, 422, "DNS label"},
		{"an address outside the pool", "PUT", "/v1/services/default/x", `{"ports":[{"port":80}],"vips":["203.0.113.9"]}`, 0, "203.0.113.9"},
		{"2 MiB", "PUT", "/v1/services/default/x", `{"labels":{"a":"` + big + `"}}`, 413, ""},
		{"an unknown path", "GET", "/v1/nothing", ``, 404, "no_route"},
		{"a wrong method", "POST", "/v1/pools", ``, 405, ""},
	} {
		code, tree := h.rest(c.method, c.path, c.body)
		if c.code != 0 && code != c.code && !(c.code == 422 && code == 400) {
			t.Errorf("%s: %d, want %d: %v", c.what, code, c.code, tree)
		}
		if text := fmt.Sprint(tree); !strings.Contains(text, c.says) {
			t.Errorf("%s: the answer does not say %q: %v", c.what, c.says, tree)
		}
	}
	h.serves(h.vip("web")+":8080", "a")
}
