package server

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/netip"
	"time"

	v1 "github.com/ironvip/ironvip/api/v1"
	"github.com/ironvip/ironvip/internal/access"
)

// unauthorized returns the problem of a caller that is not identified.
func unauthorized(detail, hint string) *Problem {
	p := Refuse(http.StatusUnauthorized, v1.CodeUnauthorized, detail, hint)
	p.header = http.Header{"Www-Authenticate": {`Bearer realm="ironvip"`}}
	return p
}

// authorize identifies the caller of a request, and returns why the caller may not use the route, or
// nil. namespace is that of the service in the path; "": none.
func (s *Server) authorize(r *http.Request, op string, need access.Need, namespace string) *Problem {
	if op == metricsRoute && s.Policy().PublicMetrics {
		need = access.Public
	}
	of := requestOf(r.Context())
	of.operation = op
	of.identify = func() (access.Caller, *Problem) {
		caller, problem := s.identify(r, s.Policy())
		switch {
		case need == access.Public:
			return caller, nil
		case problem != nil:
			return caller, problem
		case caller.Allows(need, namespace):
			return caller, nil
		case caller.Name == "" && caller.Role == access.None:
			return caller, unauthorized("this request needs a token", "send \"Authorization: Bearer TOKEN\"; create one with ironvip token create")
		}
		return caller, forbidden(caller, need, namespace)
	}
	caller, problem := of.identify()
	of.caller = caller
	switch {
	case problem == nil && caller.Role != access.None: // anybody may use a public route
		of.permitted = true
		keep(r.Context())
	case r.ContentLength != 0: // a handler may read the body, as that of a login does
		_ = of.conn.SetReadDeadline(time.Now().Add(refusedTimeout))
	}
	return problem
}

// stillPermitted returns why the caller of a write may not use the route any more, or nil. The body may have come long
// after the header, and the token was revoked meanwhile.
func stillPermitted(ctx context.Context) *Problem {
	of := requestOf(ctx)
	if of.http.Method == http.MethodGet {
		return nil
	}
	caller, problem := of.identify()
	of.caller = caller
	return problem
}

// metricsRoute is the id of the route that Policy.PublicMetrics is about.
const metricsRoute = "metrics"

// forbidden returns the problem of a caller that lacks a role.
func forbidden(caller access.Caller, need access.Need, namespace string) *Problem {
	needs := "the role " + need.Role().String()
	if need == access.Register && namespace != "" {
		needs = fmt.Sprintf("the role registrar of namespace %q", namespace)
	}
	return Refuse(http.StatusForbidden, v1.CodeForbidden, fmt.Sprintf("%s is %s: this request needs %s", caller.Name, caller.Grant, needs),
		"ask an admin for a token of that role, or for a rule in [[api.role]]")
}

// recheckEvery is how often the caller of a request that lasts is identified again: its token may have been revoked, or
// its role taken away.
const recheckEvery = time.Second

var errNoLongerPermitted = errors.New("the caller is no longer permitted")

// recheck ends the context of a request once its caller is no longer permitted.
func (r *request) recheck(ctx context.Context) {
	tick := time.NewTicker(recheckEvery)
	defer tick.Stop()
	for {
		if _, problem := r.identify(); problem != nil {
			break
		}
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
	}
	r.end(errNoLongerPermitted)
}

// NoLongerPermitted returns the answer to a request that has waited, if its caller is no longer permitted, or nil. Done is
// what the request has done: "service web stored; ", or "".
func NoLongerPermitted(ctx context.Context, done string) error {
	if context.Cause(ctx) != errNoLongerPermitted {
		return nil
	}
	return unauthorized(done+"the caller is no longer permitted to wait: the token was revoked or has expired, or the role was taken away", "send the request with a valid token")
}

// Permit returns why the caller of a request may not write services of a namespace, or nil. Routes
// whose path has no namespace call it for each service of the request.
func Permit(ctx context.Context, namespace string) *Problem {
	r := requestOf(ctx)
	if r.caller.Allows(access.Register, namespace) {
		return nil
	}
	return forbidden(r.caller, access.Register, namespace)
}

// OnlyRegisters reports whether the caller of a request is a registrar: a caller that is trusted with its
// namespaces, and not with the host.
func OnlyRegisters(ctx context.Context) bool {
	return requestOf(ctx).caller.Role == access.Registrar
}

// AllowsHostname reports whether a service that the caller of a request writes may have a hostname.
func AllowsHostname(ctx context.Context, name string) bool {
	return requestOf(ctx).caller.AllowsHostname(name)
}

// AllowsBackend reports whether a service that the caller of a request writes may have a backend with an address.
func AllowsBackend(ctx context.Context, a netip.Addr) bool {
	return requestOf(ctx).caller.AllowsBackend(a)
}

// Wrote notes the revision of a write, for the audit line of the request.
func Wrote(ctx context.Context, revision uint64) { requestOf(ctx).revision = revision }
