package server

import (
	"net/http"
	"strings"
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
