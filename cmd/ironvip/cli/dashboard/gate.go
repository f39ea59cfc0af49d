// Package dashboard forwards the dashboard of an agent from a port of this host's loopback.
//
// Its input is requests of a browser. Its output is the agent's responses, with the rights of the
// process that runs it. Everybody on the host can connect to the port, so a request to the API needs the
// key that the browser got for a text in a URL, which is known to the process's user and works once. The
// key is a header and not a cookie, because browsers send cookies to all ports of a host. The files of
// the pages need no key: they contain nothing of the agent. The package stores nothing and decides
// nothing about services.
package dashboard

import (
	"crypto/rand"
	"crypto/subtle"
	"encoding/base64"
	"encoding/json"
	"net"
	"net/http"
	"net/http/httputil"
	"net/netip"
	"strings"
	"sync/atomic"

	"github.com/ironvip/ironvip/api/server"
	v1 "github.com/ironvip/ironvip/api/v1"
)

// pages is where the agent has the dashboard.
const pages = "/ui/"

// KeyHeader has the key of a browser. The pages send it.
const KeyHeader = "X-Ironvip-Key"

// Gate forwards the requests of one browser to the agent, and refuses all others.
type Gate struct {
	at    netip.AddrPort
	once  atomic.Pointer[string] // nil: used
	key   string
	agent *httputil.ReverseProxy
}

// New returns a gate for a port of the loopback. agent sends requests to the agent: an *client.Client.
func New(at netip.AddrPort, agent http.RoundTripper) *Gate {
	g := &Gate{at: at, key: secret()}
	once := secret()
	g.once.Store(&once)
	g.agent = &httputil.ReverseProxy{Rewrite: rewrite, Transport: agent, FlushInterval: -1, ErrorHandler: unreachable}
	return g
}

func secret() string {
	var b [32]byte
	_, _ = rand.Read(b[:]) // never fails
	return base64.RawURLEncoding.EncodeToString(b[:])
}

// URL returns the address of the dashboard that a browser can open once.
func (g *Gate) URL() string {
	once := g.once.Load()
	if once == nil {
		return "http://" + g.at.String() + pages
	}
	return "http://" + g.at.String() + pages + "?once=" + *once
}

// ServeHTTP implements http.Handler.
func (g *Gate) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	isRead := r.Method == http.MethodGet || r.Method == http.MethodHead
	path := r.URL.Path
	switch once := r.URL.Query().Get("once"); {
	case !isLoopback(r.Host): // a page of another name that resolves to the loopback
		refuse(w, r, http.StatusForbidden, v1.CodeForbiddenOrigin, "Host header \""+r.Host+"\" is not an address of the loopback", "use the printed URL")
	case path == v1.PathSession || !strings.HasPrefix(path, pages) && !strings.HasPrefix(path, "/v1/"):
		// A session of the agent would have other rights than this process.
		refuse(w, r, http.StatusNotFound, v1.CodeNoRoute, "path "+path+" does not exist here", "open "+pages)
	case once != "" && r.Method == http.MethodGet && path == pages && g.redeem(once): // not HEAD, which previews of links send
		w.Header().Set("Cache-Control", "no-store")
		w.Header().Set("Referrer-Policy", "no-referrer")
		http.Redirect(w, r, pages+"#key="+g.key, http.StatusSeeOther) // no browser sends the part after #
	case once == "" && isRead && strings.HasPrefix(path, pages):
		g.agent.ServeHTTP(w, r)
	case !g.knows(r):
		refuse(w, r, http.StatusForbidden, v1.CodeForbidden, "this browser has not opened the printed URL, or another one has: it works once", "run ironvip dashboard again")
	case !isRead && !server.SameOrigin(r):
		refuse(w, r, http.StatusForbidden, v1.CodeForbiddenOrigin, "the request does not come from a page of the dashboard", "use the page")
	default:
		g.agent.ServeHTTP(w, r)
	}
}

// redeem uses up the text in the URL.
func (g *Gate) redeem(text string) bool {
	once := g.once.Load()
	return once != nil && same(text, *once) && g.once.CompareAndSwap(once, nil)
}

// knows reports whether a request is from the browser that has opened the URL.
func (g *Gate) knows(r *http.Request) bool { return same(r.Header.Get(KeyHeader), g.key) }

func same(a, b string) bool { return subtle.ConstantTimeCompare([]byte(a), []byte(b)) == 1 }

// isLoopback reports whether a Host header is the loopback. The port may be that of a tunnel.
func isLoopback(host string) bool {
	if h, _, err := net.SplitHostPort(host); err == nil {
		host = h
	}
	addr, err := netip.ParseAddr(strings.Trim(host, "[]"))
	return host == "localhost" || err == nil && addr.IsLoopback()
}

// rewrite makes a request one of this process: without anything by which a browser is known or where it
// comes from, which is checked here.
func rewrite(p *httputil.ProxyRequest) {
	p.Out.URL.Scheme, p.Out.URL.Host, p.Out.Host = "http", "agent", ""
	for name := range p.Out.Header {
		if name == KeyHeader || name == "Cookie" || name == "Authorization" || name == "Origin" || name == "Referer" || strings.HasPrefix(name, "Sec-Fetch-") {
			p.Out.Header.Del(name)
		}
	}
}

// unreachable answers a request that the agent didn't.
func unreachable(w http.ResponseWriter, r *http.Request, err error) {
	if r.Context().Err() != nil {
		return // the browser is gone
	}
	refuse(w, r, http.StatusBadGateway, v1.CodeUnavailable, "the agent does not answer: "+err.Error(), "start the agent; the page connects again by itself")
}

func refuse(w http.ResponseWriter, r *http.Request, status int, code, detail, hint string) {
	w.Header().Set("Content-Type", v1.ProblemType)
	w.Header().Set("Cache-Control", "no-store")
	w.Header().Set("X-Content-Type-Options", "nosniff")
	w.WriteHeader(status)
	problem := server.Refuse(status, code, detail, hint)
	problem.Instance = r.URL.Path
	_ = json.NewEncoder(w).Encode(problem.ProblemDocument) // the browser may be gone
}
