package server

import (
	"encoding/json"
	"fmt"
	"net/http"
	"strconv"
	"strings"

	"github.com/danielgtaylor/huma/v2"

	v1 "github.com/ironvip/ironvip/api/v1"
	"github.com/ironvip/ironvip/vip"
)

// Problem is a problem document for a response.
type Problem struct {
	v1.ProblemDocument
	header http.Header
}

// The methods that huma requires of an error response.

func (p *Problem) Error() string             { return p.Detail }
func (p *Problem) GetStatus() int            { return p.Status }
func (p *Problem) ContentType(string) string { return v1.ProblemType }
func (p *Problem) GetHeaders() http.Header   { return p.header }

// RetryAfter adds the header that makes clients try again after some seconds.
func (p *Problem) RetryAfter(seconds int) *Problem {
	p.header = http.Header{"Retry-After": {strconv.Itoa(seconds)}}
	return p
}

// AcceptPatch adds the header that names the content type of a patch.
func (p *Problem) AcceptPatch(contentType string) *Problem {
	p.header = http.Header{"Accept-Patch": {contentType}}
	return p
}

// Refuse returns a problem. The rest of its document is filled in when it is written.
func Refuse(status int, code, detail, hint string, errs ...vip.Problem) *Problem {
	return &Problem{ProblemDocument: v1.ProblemDocument{Type: "urn:ironvip:problem:" + code, Title: http.StatusText(status),
		Status: status, Code: code, Detail: detail, Hint: hint, Errors: Problems(errs)}}
}

// Problems returns problems as a list of the API, which is never null.
func Problems(in []vip.Problem) []v1.Problem { return append([]v1.Problem{}, in...) }

// BadRequest returns the problem of a malformed request.
func BadRequest(detail, hint string, errs ...vip.Problem) *Problem {
	return Refuse(http.StatusBadRequest, v1.CodeInvalidRequest, detail, hint, errs...)
}

// transform converts huma's own errors to problems, and completes every problem.
func (s *Server) transform(ctx huma.Context, _ string, v any) (any, error) {
	p, ok := v.(*Problem)
	if m, isHumas := v.(*huma.ErrorModel); isHumas {
		p = s.fromHuma(ctx, m)
	} else if !ok {
		return v, nil
	}
	u := ctx.URL()
	return complete(ctx.Context(), p, u.Path), nil
}

// sizeOf returns a number of bytes in KiB or MiB.
func sizeOf(bytes int64) string {
	if bytes >= 1<<20 {
		return fmt.Sprintf("%d MiB", bytes>>20)
	}
	return fmt.Sprintf("%d KiB", bytes>>10)
}

// accepted is the hint for a request that the API document rules out.
const accepted = "see " + v1.PathOpenAPI + " for what this call accepts"

func (s *Server) fromHuma(ctx huma.Context, m *huma.ErrorModel) *Problem {
	code, detail, hint := v1.CodeInvalidRequest, m.Detail, ""
	switch m.Status {
	case http.StatusRequestEntityTooLarge:
		code, detail = v1.CodeBodyTooLarge, "the body is larger than "+sizeOf(ctx.Operation().MaxBodyBytes-1)
		switch isService := strings.HasPrefix(ctx.Operation().Path, v1.PathServices); {
		case ctx.Operation().Path == v1.PathApply:
			hint = "split it into several requests"
		case isService && ctx.Method() == http.MethodPatch:
			hint = "split it into several patches, or replace whole services with " + v1.PathApply + ", which accepts 16 MiB"
		case isService:
			hint = "split it, or use " + v1.PathApply + ", which accepts 16 MiB"
		default:
			hint = accepted
		}
	case http.StatusRequestTimeout:
		code = v1.CodeRequestTimeout
	case http.StatusBadRequest, http.StatusUnprocessableEntity:
		hint = accepted
	case http.StatusInternalServerError:
		for _, d := range m.Errors {
			s.Log.Error("request failed", "request_id", requestOf(ctx.Context()).id, "path", ctx.Operation().Path, "err", d.Message)
		}
		return internalError("")
	}
	p := Refuse(m.Status, code, detail, hint)
	for _, d := range m.Errors {
		if d != nil {
			p.Errors = append(p.Errors, v1.Problem{Code: vip.CodeInvalid, Field: d.Location, Message: d.Message})
		}
	}
	if n := len(p.Errors); n > 0 {
		p.Detail = p.Errors[0].Error()
		if n > 1 {
			p.Detail += fmt.Sprintf(", and %d more", n-1)
		}
	}
	return p
}

// internalError returns the problem of a fault of the agent.
func internalError(hint string) *Problem {
	return Refuse(http.StatusInternalServerError, v1.CodeInternal, "internal error: see the agent's log for the request id", hint)
}

// write writes a problem without huma.
func write(w http.ResponseWriter, r *http.Request, p *Problem) {
	doc := complete(r.Context(), p, r.URL.Path)
	w.Header().Set("Content-Type", v1.ProblemType)
	for k, v := range p.header {
		w.Header()[k] = v
	}
	w.WriteHeader(p.Status)
	_ = json.NewEncoder(w).Encode(doc) // the caller may be gone
}
