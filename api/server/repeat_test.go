package server

import (
	"bytes"
	"fmt"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	v1 "github.com/ironvip/ironvip/api/v1"
)

// What the agent could not serve is logged with its level and reason, once however often a client
// repeats it.
func TestFailuresAreLoggedOnce(t *testing.T) {
	for _, c := range []struct {
		method, path string
		status       int
		want         string // "": no line
	}{
		{"PUT", "/v1/services/default/web", 200, "INFO"},
		{"PUT", "/v1/services/default/web", 409, "INFO"},
		{"PUT", "/v1/services/default/web", 503, "WARN"},
		{"GET", "/v1/nodes", 503, "WARN"},
		{"PUT", "/v1/services/default/web", 507, "ERROR"},
		{"DELETE", "/v1/services/default/web", 500, "WARN"},
		{"GET", v1.PathReadyz, 503, ""},
		{"GET", "/v1/services", 200, ""},
	} {
		var log bytes.Buffer
		s := New(Options{Log: slog.New(slog.NewTextHandler(&log, nil))})
		handler := s.wrap(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			if c.status < 300 {
				w.WriteHeader(c.status)
				return
			}
			write(w, r, Refuse(c.status, "some_code", "the store is away", ""))
		}))
		const times = 5
		for range times {
			r := httptest.NewRequest(c.method, c.path, nil)
			r.Host = "localhost"
			handler.ServeHTTP(httptest.NewRecorder(), r)
		}
		lines := strings.Count(log.String(), "\n")
		switch {
		case c.want == "" && lines > 0, c.want == "INFO" && lines != times, c.want != "" && c.want != "INFO" && lines != 1,
			!strings.Contains(log.String(), c.want):
			t.Errorf("%s %s, answered with %d: %d lines, want %s\n%s", c.method, c.path, c.status, lines, c.want, &log)
		case (c.want == "WARN" || c.want == "ERROR") && !strings.Contains(log.String(), `code=some_code err="the store is away"`):
			t.Errorf("%s %s, answered with %d: no reason\n%s", c.method, c.path, c.status, &log)
		}
	}
}

func TestRepeatedFailures(t *testing.T) {
	var r repeats
	now := time.Now()
	pass := func(f failure, want bool, unlogged int) {
		t.Helper()
		if n, ok := r.pass(f, now); ok != want || n != unlogged {
			t.Errorf("%+v: %v after %d, want %v after %d", f, ok, n, want, unlogged)
		}
	}
	web, other := failure{503, "PUT", "/web"}, failure{507, "PUT", "/web"}
	pass(web, true, 0)
	pass(web, false, 0)
	pass(web, false, 0)
	pass(other, true, 0)
	now = now.Add(repeatPause)
	pass(web, true, 2)
	pass(web, false, 0)
	// Callers choose paths, and can't fill the memory with them.
	for i := range 10 * maxRepeats {
		r.pass(failure{404, "PUT", fmt.Sprint("/", i)}, now)
	}
	if n := len(r.seen); n > maxRepeats+2 {
		t.Errorf("%d failures are kept", n)
	}
	pass(failure{503, "PUT", "/new"}, true, 0) // shares a line with others of its status
	pass(failure{503, "PUT", "/newer"}, false, 0)
	now = now.Add(repeatPause)
	pass(failure{503, "PUT", "/new"}, true, 0) // has one of its own again
	if n := len(r.seen); n != 1 {
		t.Errorf("%d failures are kept after a minute", n)
	}
}
