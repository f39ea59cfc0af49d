package server

import (
	"bytes"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	v1 "github.com/ironvip/ironvip/api/v1"
)

// A request that the agent could not serve is logged with its level and reason, once however often
// a client repeats it.
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
