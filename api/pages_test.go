package api

import (
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
)

// The pages need no role, and are there before the agent has loaded its state.
func TestPages(t *testing.T) {
	s, _ := notBegun()
	for _, c := range []struct {
		method, path, accept string
		want                 int
		location             string
	}{
		{"GET", "/ui/", "text/html", 200, ""},
		{"HEAD", "/ui/services/web", "*/*", 200, ""},
		{"GET", "/ui", "*/*", 302, "/ui/"},
		{"GET", "/", "text/html,application/xhtml+xml", 302, "/ui/"},
		{"GET", "/", "*/*", 404, ""}, // of a program
		{"GET", "/ui/absent.js", "*/*", 404, ""},
		{"POST", "/ui/", "*/*", 405, ""},
		{"DELETE", "/ui/services/web", "text/html", 405, ""},
	} {
		r := httptest.NewRequest(c.method, "http://localhost"+c.path, nil)
		r.Header.Set("Accept", c.accept)
		w := httptest.NewRecorder()
		s.Handler().ServeHTTP(w, r)
		if w.Code != c.want || w.Header().Get("Location") != c.location {
			t.Errorf("%s %s: %d %v", c.method, c.path, w.Code, w.Header())
		}
		if allow := w.Header().Get("Allow"); (allow == "GET") != (c.want == http.StatusMethodNotAllowed) {
			t.Errorf("%s %s: Allow is %q", c.method, c.path, allow)
		}
		if c.want == http.StatusOK && (w.Header().Get("Cache-Control") != "no-cache" || !strings.Contains(w.Header().Get("Content-Security-Policy"), "default-src 'none'")) {
			t.Errorf("%s: %v", c.path, w.Header())
		}
	}
}
