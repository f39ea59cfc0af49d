package api

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"strconv"
	"syscall"

	"github.com/danielgtaylor/huma/v2"

	v1 "github.com/ironvip/ironvip/api/v1"
	"github.com/ironvip/ironvip/internal/fleet"
	"github.com/ironvip/ironvip/internal/registry"
	"github.com/ironvip/ironvip/sources/rest"
	"github.com/ironvip/ironvip/vip"
)

// problem is a problem document for a response.
type problem struct {
	v1.ProblemDocument
	header http.Header
}

// The methods that huma requires of an error response.

func (p *problem) Error() string             { return p.Detail }
func (p *problem) GetStatus() int            { return p.Status }
func (p *problem) ContentType(string) string { return v1.ProblemType }
func (p *problem) GetHeaders() http.Header   { return p.header }

// retryAfter adds the header that makes clients try again after some seconds.
func (p *problem) retryAfter(seconds int) *problem {
	p.header = http.Header{"Retry-After": {strconv.Itoa(seconds)}}
	return p
}

// refuse returns a problem. The rest of its document is filled in when it is written.
func refuse(status int, code, detail, hint string, errs ...vip.Problem) *problem {
	return &problem{ProblemDocument: v1.ProblemDocument{Type: "urn:ironvip:problem:" + code, Title: http.StatusText(status),
		Status: status, Code: code, Detail: detail, Hint: hint, Errors: problems(errs)}}
}

// problems converts to the API's type. It never returns nil.
func problems(in []vip.Problem) []v1.Problem {
	return convert(in, func(p vip.Problem) v1.Problem { return v1.Problem(p) })
}

// convert returns the results of f for all elements. It never returns nil, because lists in the API
// are never null.
func convert[T, U any](in []T, f func(T) U) []U {
	out := make([]U, len(in))
	for i := range in {
		out[i] = f(in[i])
	}
	return out
}

func noService(key vip.ServiceKey) *problem {
	return refuse(http.StatusNotFound, v1.CodeNotFound, "service \""+key.String()+"\" does not exist",
		"create it first: PUT "+v1.ServicePath(key.Namespace, key.Name)+"; list services: GET "+v1.PathServices)
}

func noBackend(key vip.BackendKey) *problem {
	id := backendID(key)
	return refuse(http.StatusNotFound, v1.CodeNotFound, "service \""+key.Service.String()+"\" has no backend "+id,
		"register it: PUT "+v1.BackendPath(key.Service.Namespace, key.Service.Name, id))
}

// goneMeanwhile returns the problem of a write that another client reverted before the response. A
// 404 would mean that the object never existed.
func goneMeanwhile(what string) *problem {
	return refuse(http.StatusConflict, v1.CodeDeletedMeanwhile, what+" was written, but another client deleted it", "write it again if needed")
}

func unavailable(what string) *problem {
	return refuse(http.StatusServiceUnavailable, v1.CodeUnavailable, "this agent has no "+what, "")
}

func badRequest(detail, hint string, errs ...vip.Problem) *problem {
	return refuse(http.StatusBadRequest, v1.CodeInvalidRequest, detail, hint, errs...)
}

// writeFailed returns the problem of a write that sources/rest refused.
func writeFailed(key vip.BackendKey, err error) error {
	if own, ok := errors.AsType[*problem](err); ok {
		return own
	}
	if owned, ok := errors.AsType[*rest.OwnedError](err); ok {
		return refuse(http.StatusConflict, v1.CodeReadOnlySource, owned.Error(), ownedHint(owned))
	}
	if conflict, ok := errors.AsType[*registry.ConflictError](err); ok {
		return refuse(http.StatusConflict, v1.CodeConflict, conflict.Error(), conflictHint(conflict))
	}
	if refused, ok := errors.AsType[*registry.InvalidError](err); ok {
		return invalid(refused.Problems)
	}
	switch {
	case errors.Is(err, registry.ErrNoService):
		return noService(key.Service)
	case errors.Is(err, registry.ErrNoBackend):
		return noBackend(key)
	case errors.Is(err, registry.ErrNotRunning):
		return refuse(http.StatusServiceUnavailable, v1.CodeNotReady, "agent starting: it accepts no registrations yet", "try again in a moment").retryAfter(1)
	case errors.Is(err, fleet.ErrUnavailable):
		what := "try again when the store is reachable"
		if store, ok := errors.AsType[*registry.StoreError](err); !ok || store.Unknown {
			what = "the result is unknown until the store is reachable, and repeating the request is safe"
		}
		return storeAway(err.Error(), "traffic is not affected; "+what+". GET "+v1.PathStatus+" shows the cause and the fix")
	case errors.Is(err, registry.ErrStore):
		status, code, hint := http.StatusServiceUnavailable, v1.CodeStoreUnavailable, "check the agent's log and try again"
		if errors.Is(err, syscall.ENOSPC) || errors.Is(err, syscall.EDQUOT) {
			status, code, hint = http.StatusInsufficientStorage, v1.CodeStoreFull, "free disk space in state_dir and try again"
		}
		return refuse(status, code, err.Error(), hint)
	case errors.Is(err, context.Canceled), errors.Is(err, context.DeadlineExceeded):
		return refuse(http.StatusServiceUnavailable, v1.CodeUnavailable, "request canceled before the write; nothing changed", "try again")
	}
	return err // an own fault: 500, logged
}

// ownedHint returns the hint for a name that another source owns.
func ownedHint(o *rest.OwnedError) string {
	hint := "change it in source \"" + o.Source + "\""
	if o.Source == "" {
		hint = "see GET " + v1.PathSources
	}
	if o.Origin != "" {
		hint += " (" + o.Origin + ")"
	}
	return hint + ", or use another name"
}

// conflictHint returns the hint for a conflicting write of another host.
func conflictHint(c *registry.ConflictError) string {
	path := v1.ServicePath(c.Service.Namespace, c.Service.Name)
	switch {
	case c.Unreadable:
		return "GET " + v1.PathSources + " names the key in the fleet's store; remove it there if ironvip did not write it"
	case c.Removed:
		return "write it again if needed"
	}
	return "read the current version: GET " + path + "; write again to replace it (with If-Match), or use another name"
}

// transform converts huma's own errors to problems, and completes every problem.
func (s *Server) transform(ctx huma.Context, _ string, v any) (any, error) {
	p, ok := v.(*problem)
	if m, isHumas := v.(*huma.ErrorModel); isHumas {
		p = s.fromHuma(ctx, m)
	} else if !ok {
		return v, nil
	}
	u := ctx.URL()
	doc := p.ProblemDocument // a copy: the problem may be shared
	doc.RequestID, doc.Instance = requestID(ctx.Context()), u.Path
	return doc, nil
}

func (s *Server) fromHuma(ctx huma.Context, m *huma.ErrorModel) *problem {
	code, detail, hint := v1.CodeInvalidRequest, m.Detail, ""
	switch m.Status {
	case http.StatusRequestEntityTooLarge:
		code, detail = v1.CodeBodyTooLarge, fmt.Sprintf("the body is larger than %d MiB", ctx.Operation().MaxBodyBytes>>20)
		hint = "split it, or use " + v1.PathApply + ", which accepts 64 MiB"
	case http.StatusRequestTimeout:
		code = v1.CodeRequestTimeout
	case http.StatusInternalServerError:
		for _, d := range m.Errors {
			s.log.Error("request failed", "request_id", requestID(ctx.Context()), "path", ctx.Operation().Path, "err", d.Message)
		}
		return internalError("")
	}
	p := refuse(m.Status, code, detail, hint)
	for _, d := range m.Errors {
		if d != nil {
			p.Errors = append(p.Errors, v1.Problem{Code: vip.CodeInvalid, Field: d.Location, Message: d.Message})
		}
	}
	return p
}

// internalError returns the problem of a fault of the agent.
func internalError(hint string) *problem {
	return refuse(http.StatusInternalServerError, v1.CodeInternal, "internal error: see the agent's log for the request id", hint)
}
