package api

import (
	"context"
	"errors"
	"fmt"
	"net/http"
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

// refuse returns a problem. The rest of its document is filled in when it is written.
func refuse(status int, code, detail, hint string, errs ...vip.Problem) *problem {
	return &problem{ProblemDocument: v1.ProblemDocument{Type: "urn:ironvip:problem:" + code, Title: http.StatusText(status),
		Status: status, Code: code, Detail: detail, Hint: hint, Errors: optionalProblems(errs)}}
}

func optionalProblems(in []vip.Problem) []v1.Problem {
	if len(in) == 0 {
		return nil
	}
	return problems(in)
}

// problems converts to the API's type. It never returns nil.
func problems(in []vip.Problem) []v1.Problem {
	out := make([]v1.Problem, 0, len(in))
	for _, p := range in {
		out = append(out, v1.Problem(p))
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
	var (
		own      *problem
		owned    *rest.OwnedError
		conflict *registry.ConflictError
		refused  *registry.InvalidError
	)
	switch {
	case errors.As(err, &own):
		return own
	case errors.As(err, &owned):
		return refuse(http.StatusConflict, v1.CodeReadOnlySource, owned.Error(), ownedHint(owned))
	case errors.As(err, &conflict):
		return refuse(http.StatusConflict, v1.CodeConflict, conflict.Error(), conflictHint(conflict))
	case errors.As(err, &refused):
		return invalid(refused.Problems)
	case errors.Is(err, registry.ErrNoService):
		return noService(key.Service)
	case errors.Is(err, registry.ErrNoBackend):
		return noBackend(key)
	case errors.Is(err, registry.ErrNotRunning):
		p := refuse(http.StatusServiceUnavailable, v1.CodeNotReady, "agent starting: it accepts no registrations yet", "try again in a moment")
		p.header = http.Header{"Retry-After": {"1"}}
		return p
	case errors.Is(err, fleet.ErrUnavailable):
		hint := "traffic is not affected; try again when the store is reachable. GET " + v1.PathStatus + " shows the cause and the fix"
		var store *registry.StoreError
		if !errors.As(err, &store) || store.Unknown {
			hint = "traffic is not affected; the result is unknown until the store is reachable, and repeating the request is safe. GET " + v1.PathStatus + " shows the cause and the fix"
		}
		return storeAway(err.Error(), hint)
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
	var p *problem
	switch v := v.(type) {
	case *problem:
		p = v
	case *huma.ErrorModel:
		p = fromHuma(v)
		if v.Status == http.StatusInternalServerError {
			for _, d := range v.Errors {
				s.log.Error("request failed", "request_id", requestID(ctx.Context()), "path", ctx.Operation().Path, "err", d.Message)
			}
			p.Errors, p.Detail = nil, "internal error: see the agent's log for the request id"
		}
		if v.Status == http.StatusRequestEntityTooLarge {
			p.Detail = fmt.Sprintf("the body is larger than %d MiB", ctx.Operation().MaxBodyBytes>>20)
		}
	default:
		return v, nil
	}
	u := ctx.URL()
	doc := p.ProblemDocument // a copy: the problem may be shared
	doc.RequestID, doc.Instance = requestID(ctx.Context()), u.Path
	return doc, nil
}

func fromHuma(m *huma.ErrorModel) *problem {
	code, hint := v1.CodeInvalidRequest, ""
	switch m.Status {
	case http.StatusRequestEntityTooLarge:
		code, hint = v1.CodeBodyTooLarge, "split it, or use "+v1.PathApply+", which accepts 64 MiB"
	case http.StatusRequestTimeout:
		code = v1.CodeRequestTimeout
	case http.StatusInternalServerError:
		code = v1.CodeInternal
	}
	p := refuse(m.Status, code, m.Detail, hint)
	for _, d := range m.Errors {
		if d != nil {
			p.Errors = append(p.Errors, v1.Problem{Code: vip.CodeInvalid, Field: d.Location, Message: d.Message})
		}
	}
	return p
}
