// Package web has the pages of the dashboard, which every agent serves at /ui/.
//
// The pages are files of the program: HTML, CSS, SVG and JavaScript modules, sent as they are. They
// contain nothing of the agent, so anybody may read them; what they show comes from the API, with the
// role of the caller. The package keeps no state and starts nothing: it costs nothing while no page is
// open.
package web

import (
	"bytes"
	"crypto/sha256"
	"embed"
	"encoding/hex"
	"io/fs"
	"net/http"
	"path"
	"strings"
	"time"
)

// Path is where the pages are.
const Path = "/ui/"

//go:embed static
var static embed.FS

// kinds are the content types of the files by extension. A path with another extension, or without one,
// is a page of the application.
var kinds = map[string]string{
	".html": "text/html; charset=utf-8",
	".css":  "text/css; charset=utf-8",
	".js":   "text/javascript; charset=utf-8",
	".svg":  "image/svg+xml",
	".png":  "image/png",
	".ico":  "image/x-icon",
	".json": "application/json",
	".txt":  "text/plain; charset=utf-8",
}

// policy permits what the pages need: their own files and the API. No script or style inside of a page
// runs, and no text becomes HTML: the one policy of Trusted Types is for the address of the worker.
const policy = "default-src 'none'; script-src 'self'; worker-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; form-action 'self'; " +
	"base-uri 'none'; frame-ancestors 'none'; require-trusted-types-for 'script'; trusted-types hub"

// Handler answers GET requests below Path. A path that is not the one of a file is a page of the
// application, which has one HTML file: /ui/, /ui/services, /ui/vips/192.0.2.10.
func Handler() http.Handler {
	files, err := fs.Sub(static, "static")
	if err != nil {
		panic(err) // not with a constant name
	}
	return handler{files}
}

type handler struct{ files fs.FS }

func (h handler) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	header := w.Header()
	header.Set("Content-Security-Policy", policy)
	header.Set("X-Content-Type-Options", "nosniff")
	header.Set("Referrer-Policy", "no-referrer")
	name := strings.TrimPrefix(r.URL.Path, Path)
	kind := kinds[path.Ext(name)]
	if kind == "" {
		name, kind = "index.html", kinds[".html"]
	}
	content, err := fs.ReadFile(h.files, name) // which refuses ".." and a name that is not clean
	if err != nil {
		http.Error(w, "no such file", http.StatusNotFound)
		return
	}
	sum := sha256.Sum256(content)
	header.Set("Content-Type", kind)
	header.Set("Cache-Control", "no-cache") // ask each time: the files of another release have the same names
	header.Set("ETag", `"`+hex.EncodeToString(sum[:16])+`"`)
	http.ServeContent(w, r, name, time.Time{}, bytes.NewReader(content))
}
