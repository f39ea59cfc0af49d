package server

import (
	"context"
	"fmt"
	"net/http"

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
	policy := s.Policy()
	if op == metricsRoute && policy.PublicMetrics {
		need = access.Public
	}
	of := requestOf(r.Context())
	if of == nil { // a test that calls the routes without the middleware
		of = &request{}
	}
	of.operation = op
	of.again = func() bool {
		caller, problem := s.identify(r, s.Policy())
		return problem == nil && caller.Allows(need, namespace)
	}
	caller, problem := s.identify(r, policy)
	of.caller = caller
	switch {
	case need == access.Public:
		return nil
	case problem != nil:
		return problem
	case caller.Allows(need, namespace):
		return nil
	case caller.Name == "" && caller.Role == access.None:
		return unauthorized("this request needs a token", "send \"Authorization: Bearer TOKEN\"; create one with ironvip token create")
	}
	return forbidden(caller, need, namespace)
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

// StillPermitted identifies the caller of a response without an end again: its token may have been
// revoked, or its role taken away.
func StillPermitted(ctx context.Context) bool {
	r := requestOf(ctx)
	return r == nil || r.again == nil || r.again()
}

// Permit returns why the caller of a request may not write services of a namespace, or nil. Routes
// whose path has no namespace call it for each service of the request.
func Permit(ctx context.Context, namespace string) error {
	r := requestOf(ctx)
	if r == nil || r.caller.Allows(access.Register, namespace) { // a test calls a handler without a request
		return nil
	}
	return forbidden(r.caller, access.Register, namespace)
}

// Wrote notes the revision of a write, for the audit line of the request.
func Wrote(ctx context.Context, revision uint64) {
	if r := requestOf(ctx); r != nil {
		r.revision = revision
	}
}
