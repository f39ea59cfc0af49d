package client

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"mime"
	"net/http"
	"net/url"
	"os"
	"strings"
	"syscall"

	v1 "github.com/ironvip/ironvip/api/v1"
)

// The codes of an Error that does not come from an agent. Its Status is 0.
const (
	CodeUnreachable  = "unreachable"   // no response, or an incomplete one
	CodeNotPermitted = "not_permitted" // the socket exists, but its permissions deny access
	CodeTimeout      = "timeout"       // connected, but no response in time
)

// Error is the error of a call: the agent's problem document, or, with Status 0, why no agent
// answered.
type Error struct {
	Status    int    // the HTTP status; 0: no response
	Code      string // of the problem document, or one of the codes above
	Detail    string
	Hint      string
	RequestID string
	Problems  []v1.Problem // each problem with its place
	Err       error        // the cause, if Status is 0
}

// Error returns the detail. If there are several problems, each is on a separate line. It omits the
// hint, which printers add.
func (e *Error) Error() string {
	var b strings.Builder
	b.WriteString(e.Detail)
	for _, p := range e.Problems {
		b.WriteString("\n  " + p.Error())
	}
	return b.String()
}

// Unwrap returns the cause of an error that does not come from an agent.
func (e *Error) Unwrap() error { return e.Err }

// IsCode reports whether err is an *Error with this code.
func IsCode(err error, code string) bool {
	var e *Error
	return errors.As(err, &e) && e.Code == code
}

// IsNotFound reports whether err means that the object doesn't exist.
func IsNotFound(err error) bool { return IsCode(err, v1.CodeNotFound) }

// refusal converts a response with a status of 300 and above to an Error.
func refusal(resp *http.Response) *Error {
	body, _ := io.ReadAll(io.LimitReader(resp.Body, 16<<20))
	if kind, _, _ := mime.ParseMediaType(resp.Header.Get("Content-Type")); kind == v1.ProblemType {
		var doc v1.ProblemDocument
		if err := json.Unmarshal(body, &doc); err == nil {
			e := &Error{Status: resp.StatusCode, Code: doc.Code, Detail: doc.Detail, Hint: doc.Hint,
				RequestID: doc.RequestID, Problems: doc.Errors}
			if e.Detail == "" {
				e.Detail = doc.Title
			}
			return e
		}
	}
	// Not from an agent: from a proxy in between, or another program on the port.
	return &Error{Status: resp.StatusCode, Code: CodeUnreachable,
		Detail: fmt.Sprintf("%s %s answered %s, not as an ironvip agent would", resp.Request.Method, resp.Request.URL, resp.Status),
		Hint:   "check --addr: another program or a proxy answers there"}
}

// unreachable returns why there is no response.
func (c *Client) unreachable(ctx context.Context, err error) error {
	if errors.Is(err, context.Canceled) && context.Cause(ctx) == context.Canceled {
		return err // canceled by the caller
	}
	var ue *url.Error
	if errors.As(err, &ue) {
		err = ue.Err
	}
	e := &Error{Code: CodeUnreachable, Err: err, Detail: fmt.Sprintf("no agent answers at %s: %v", c.addr, err),
		Hint: "is it running? systemctl status ironvip; another address: --addr or IRONVIP_ADDR"}
	switch {
	case errors.Is(err, context.DeadlineExceeded) || errors.Is(err, errTimeout):
		e.Code, e.Detail = CodeTimeout, fmt.Sprintf("the agent at %s gave no answer in time", c.addr)
		e.Hint = "a longer --timeout, or look at the agent's log"
	case errors.Is(err, syscall.EACCES) || errors.Is(err, os.ErrPermission):
		e.Code, e.Detail = CodeNotPermitted, fmt.Sprintf("not allowed to use %s: %v", c.addr, err)
		e.Hint = "run as root, or join the group that owns the socket"
	}
	return e
}
