package server

import (
	"net/http"
	"strings"

	v1 "github.com/ironvip/ironvip/api/v1"
)

// pagesPath is where Options.Pages are.
const pagesPath = "/ui/"

// withPages adds the pages to the routes. They are files that contain nothing of the agent, so they have
// no role, need no loaded state, and are not in the OpenAPI document.
func (s *Server) withPages(routes http.Handler) http.Handler {
	if s.Pages == nil {
		return routes
	}
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		switch path := r.URL.Path; {
		case r.Method != http.MethodGet && strings.HasPrefix(path, pagesPath) && path != v1.PathSession:
			w.Header().Set("Allow", http.MethodGet)
			write(w, r, methodNotAllowed(r, http.MethodGet))
		case r.Method != http.MethodGet:
			routes.ServeHTTP(w, r)
		case strings.HasPrefix(path, pagesPath):
			s.Pages.ServeHTTP(w, r)
		case path == "/" && strings.Contains(r.Header.Get("Accept"), "text/html"), path+"/" == pagesPath:
			http.Redirect(w, r, pagesPath, http.StatusFound)
		default:
			routes.ServeHTTP(w, r)
		}
	})
}
