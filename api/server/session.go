package server

import (
	"context"
	"net"
	"net/http"
	"net/url"
	"strconv"
	"strings"

	v1 "github.com/ironvip/ironvip/api/v1"
	"github.com/ironvip/ironvip/internal/access"
)

// A session is a token in a cookie of a browser. The agent stores nothing: each request is checked as
// one with the token in a header is, so a token that is revoked or has expired ends its sessions at
// once, and a restart ends none.

// cookieName returns the name of the cookie of a session. A browser sends the cookies of a host to all
// of its ports, so the name has the port: two agents on one host have sessions of their own. With TLS,
// the prefix makes browsers refuse the cookie from anybody but this host.
func cookieName(r *http.Request) string {
	prefix, port := "", "80"
	if r.TLS != nil {
		prefix, port = "__Host-", "443"
	}
	if _, p, err := net.SplitHostPort(r.Host); err == nil {
		if n, err := strconv.ParseUint(p, 10, 16); err == nil {
			port = strconv.FormatUint(n, 10)
		}
	}
	return prefix + "ironvip-" + port
}

// sessionCookie returns the header that sets the cookie of a session; without a token, it removes it.
func sessionCookie(r *http.Request, token string) string {
	path := "/v1/" // other servers of the host get the cookie, too
	if r.TLS != nil {
		path = "/" // the prefix __Host- needs it
	}
	c := http.Cookie{Name: cookieName(r), Value: token, Path: path, HttpOnly: true, Secure: schemeOf(r) == "https", SameSite: http.SameSiteStrictMode}
	if token == "" {
		c.MaxAge = -1
	}
	return c.String()
}

// sessionToken returns the token in the cookie of a request.
func sessionToken(r *http.Request) (token string, has bool) {
	c, err := r.Cookie(cookieName(r))
	if err != nil {
		return "", false
	}
	return c.Value, true
}

// SameOrigin reports whether a request proves that a page of its own host sent it, by the headers that
// browsers set and pages can't change. A request without these headers proves nothing.
func SameOrigin(r *http.Request) bool {
	if site := r.Header.Get("Sec-Fetch-Site"); site != "" {
		return site == "same-origin"
	}
	origin := r.Header["Origin"] // from a browser that sends no Sec-Fetch-Site, such as to a name without TLS
	return len(origin) == 1 && isOwnOrigin(r, origin[0])
}

// isOwnOrigin reports whether an Origin header is the scheme and the host of the request.
func isOwnOrigin(r *http.Request, origin string) bool {
	u, err := url.Parse(origin)
	return err == nil && u.Host != "" && u.Host == r.Host && u.Scheme == schemeOf(r)
}

// schemeOf returns the scheme by which a browser has reached the agent. A proxy that ends TLS names it in a
// header. A page of another origin can't set that header: the browser would ask the agent first, which
// permits it to none.
func schemeOf(r *http.Request) string {
	first, _, _ := strings.Cut(r.Header.Get("X-Forwarded-Proto"), ",") // of several proxies, the one of the browser
	if r.TLS != nil || strings.EqualFold(strings.TrimSpace(first), "https") {
		return "https"
	}
	return "http"
}

// crossOrigin returns the problem of a request in a session that a page of another origin has sent, or nil.
// The browser adds the cookie to a request of any page of the same site, such as one of another port. A
// write must prove its origin.
func crossOrigin(r *http.Request) *Problem {
	site := r.Header.Get("Sec-Fetch-Site")
	foreign := site == "same-site" || site == "cross-site"
	navigates := r.Header.Get("Sec-Fetch-Mode") == "navigate" // the user follows a link
	if r.Method == http.MethodGet && (!foreign || navigates) || SameOrigin(r) {
		return nil
	}
	return Refuse(http.StatusForbidden, v1.CodeForbiddenOrigin, "the request does not come from a page of this agent",
		"send the token as \"Authorization: Bearer TOKEN\" instead of a cookie")
}

// CrossOrigin returns the problem of a request that a page of another origin has sent, or nil.
func CrossOrigin(ctx context.Context) *Problem { return crossOrigin(requestOf(ctx).http) }

// Login checks the token of a browser, and returns who has it and the Set-Cookie header of the session. The
// caller has checked the origin.
func (s *Server) Login(ctx context.Context, token string) (caller access.Caller, cookie string, err error) {
	of := requestOf(ctx)
	caller, p := holder(s.Policy(), token)
	if p != nil {
		return access.Caller{}, "", p
	}
	of.caller = caller // for the audit line
	return caller, sessionCookie(of.http, token), nil
}

// Logout returns the Set-Cookie header that ends the session of a request.
func Logout(ctx context.Context) (cookie string, err error) {
	of := requestOf(ctx)
	if p := crossOrigin(of.http); p != nil {
		return "", p
	}
	return sessionCookie(of.http, ""), nil
}
