package web

import (
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"testing/fstest"

	"github.com/ironvip/ironvip/test/expect"
)

func get(h http.Handler, path string, headers ...string) *httptest.ResponseRecorder {
	r := httptest.NewRequest(http.MethodGet, path, nil)
	for i := 0; i < len(headers); i += 2 {
		r.Header.Set(headers[i], headers[i+1])
	}
	w := httptest.NewRecorder()
	h.ServeHTTP(w, r)
	return w
}

func TestFilesAndPages(t *testing.T) {
	h := handler{fstest.MapFS{"index.html": {Data: []byte("<!doctype html>")}, "js/app.js": {Data: []byte("export {}")}, "style.css": {Data: []byte("a{}")}, "icon.svg": {Data: []byte("<svg/>")}}}
	for path, want := range map[string]string{
		"/ui/":                       "200 text/html; charset=utf-8",
		"/ui/index.html":             "200 text/html; charset=utf-8",
		"/ui/services/shop/web":      "200 text/html; charset=utf-8",
		"/ui/vips/192.0.2.10":        "200 text/html; charset=utf-8",
		"/ui/js/app.js":              "200 text/javascript; charset=utf-8",
		"/ui/style.css":              "200 text/css; charset=utf-8",
		"/ui/icon.svg":               "200 image/svg+xml",
		"/ui/absent.js":              "404 text/plain; charset=utf-8",
		"/ui/../web.js":              "404 text/plain; charset=utf-8",
		"/ui//style.css":             "404 text/plain; charset=utf-8",
		"/ui/js%2f..%2fstyle.css":    "404 text/plain; charset=utf-8",
		"/ui/static/../../style.css": "404 text/plain; charset=utf-8",
	} {
		w := get(h, path)
		if got := http.StatusText(w.Code); !strings.HasPrefix(want, map[string]string{"OK": "200", "Not Found": "404"}[got]) || !strings.HasSuffix(want, w.Header().Get("Content-Type")) {
			t.Errorf("%s: %d %s, want %s", path, w.Code, w.Header().Get("Content-Type"), want)
		}
		for _, name := range []string{"Content-Security-Policy", "X-Content-Type-Options", "Referrer-Policy"} {
			expect.True(t, w.Header().Get(name) != "", "%s has no %s", path, name)
		}
		policy := w.Header().Get("Content-Security-Policy")
		expect.False(t, strings.Contains(policy, "unsafe"), "%s: %s", path, policy)
	}
}

// A browser asks each time, and gets a file again only if it has changed.
func TestFilesAreNotSentAgain(t *testing.T) {
	files := fstest.MapFS{"style.css": {Data: []byte("a{}")}}
	h := handler{files}
	first := get(h, "/ui/style.css")
	tag := first.Header().Get("ETag")
	if first.Header().Get("Cache-Control") != "no-cache" || tag == "" {
		t.Fatal(first.Header())
	}
	if again := get(h, "/ui/style.css", "If-None-Match", tag); again.Code != http.StatusNotModified || again.Body.Len() > 0 {
		t.Errorf("the same file: %d %s", again.Code, again.Body)
	}
	files["style.css"] = &fstest.MapFile{Data: []byte("b{}")}
	if again := get(h, "/ui/style.css", "If-None-Match", tag); again.Code != http.StatusOK || again.Body.String() != "b{}" {
		t.Errorf("another file: %d %s", again.Code, again.Body)
	}
}

// The program has the pages.
func TestPagesAreEmbedded(t *testing.T) {
	w := get(Handler(), "/ui/")
	if w.Code != http.StatusOK || !strings.Contains(w.Body.String(), "<noscript>") {
		t.Errorf("%d %s", w.Code, w.Body)
	}
}
