package server

import (
	"cmp"
	"context"
	"fmt"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/danielgtaylor/huma/v2"
	"github.com/danielgtaylor/huma/v2/adapters/humagin"
	"github.com/gin-gonic/gin"

	v1 "github.com/ironvip/ironvip/api/v1"
	"github.com/ironvip/ironvip/internal/access"
	"github.com/ironvip/ironvip/vip"
)

func newEngine() *gin.Engine {
	gin.SetMode(gin.ReleaseMode) // else gin prints its routes on stdout
	e := gin.New()
	e.HandleMethodNotAllowed = true
	e.RedirectTrailingSlash = false
	// An id with an escaped slash remains one segment of the path.
	e.UseEscapedPath = true
	e.UnescapePathValues = true
	e.NoRoute(func(c *gin.Context) {
		write(c.Writer, c.Request, Refuse(http.StatusNotFound, v1.CodeNoRoute, "path "+c.Request.URL.Path+" does not exist",
			"GET "+v1.PathOpenAPI+" lists all paths"))
	})
	e.NoMethod(func(c *gin.Context) {
		write(c.Writer, c.Request, methodNotAllowed(c.Request, strings.Join(c.Writer.Header().Values("Allow"), ", ")))
	})
	return e
}

func methodNotAllowed(r *http.Request, allowed string) *Problem {
	return Refuse(http.StatusMethodNotAllowed, v1.CodeMethodNotAllowed, "method "+r.Method+" not allowed for "+r.URL.Path, "use "+allowed)
}

// adapter is huma's gin adapter with support for paths that contain a colon.
type adapter struct {
	http.Handler
	server *Server
}

// An operation has at needKey what its route needs, and at largeKey whether its bodies may have many MiB.
const needKey, largeKey = "need", "large"

func (a adapter) Handle(op *huma.Operation, handler func(huma.Context)) {
	path := strings.NewReplacer(":", `\:`, "{", ":", "}", "").Replace(op.Path)
	need, _ := op.Metadata[needKey].(access.Need)
	large, _ := op.Metadata[largeKey].(bool)
	single, conditional := singleParameters(op), conditions(op)
	a.server.Engine.Handle(op.Method, path, func(c *gin.Context) {
		if p := a.server.authorize(c.Request, op.OperationID, need, c.Param("namespace")); p != nil {
			write(c.Writer, c.Request, p)
			return
		}
		if p := cmp.Or(ambiguous(c.Request, single), unmet(c.Request, conditional)); p != nil {
			write(c.Writer, c.Request, p)
			return
		}
		if large {
			if p := a.server.openLarge(c.Request.Context()); p != nil {
				write(c.Writer, c.Request, p)
				return
			}
		}
		handler(humagin.NewContext(op, c))
	})
}

// singleParameters returns the parameters of a query that may occur once.
func singleParameters(op *huma.Operation) (names []string) {
	for _, p := range op.Parameters {
		if p.In == "query" && p.Schema.Type != huma.TypeArray {
			names = append(names, p.Name)
		}
	}
	return names
}

// ambiguous returns the problem of a query with several values of one of these parameters, or with a parameter without a
// value, or nil. Huma would take the first, and other programs take the last; it would take ?dry_run for dry_run=false.
func ambiguous(r *http.Request, single []string) *Problem {
	if r.URL.RawQuery == "" {
		return nil
	}
	for name, values := range r.URL.Query() {
		switch {
		case len(values) > 1 && slices.Contains(single, name):
			return BadRequest(fmt.Sprintf("query parameter %q occurs %d times", name, len(values)), "send it once",
				vip.Problem{Code: vip.CodeInvalid, Field: "query." + name, Message: "occurs more than once"})
		case name != "cursor" && slices.Contains(values, ""): // an empty cursor is that of the first page
			return BadRequest(fmt.Sprintf("query parameter %q has no value", name), fmt.Sprintf("send %s=VALUE, or leave it out", name),
				vip.Problem{Code: vip.CodeInvalid, Field: "query." + name, Message: "has no value"})
		}
	}
	return nil
}

// conditionHeaders make a request conditional.
var conditionHeaders = []string{"If-Match", "If-None-Match", "If-Modified-Since", "If-Unmodified-Since"}

// conditions returns the conditional headers that an operation takes.
func conditions(op *huma.Operation) (names []string) {
	for _, p := range op.Parameters {
		if p.In == "header" && slices.Contains(conditionHeaders, p.Name) {
			names = append(names, p.Name)
		}
	}
	return names
}

// unmet returns the problem of a condition that an operation doesn't check, or nil: to do it nevertheless could undo
// what somebody else has done. A GET without the condition does no harm.
func unmet(r *http.Request, taken []string) *Problem {
	if r.Method == http.MethodGet || r.Method == http.MethodHead {
		return nil
	}
	for _, name := range conditionHeaders {
		switch values := r.Header.Values(name); {
		case len(values) == 0:
		case !slices.Contains(taken, name):
			return BadRequest(name+" is not supported for "+r.Method+" "+r.URL.Path, "remove the header")
		case len(values) > 1:
			return BadRequest(fmt.Sprintf("%s occurs %d times", name, len(values)), "send it once, with a list")
		case strings.TrimSpace(values[0]) == "":
			return BadRequest(name+" has no value", "send the ETag from a GET, or leave it out")
		}
	}
	return nil
}

// Route describes one route.
type Route struct {
	Method, Path string // no method: GET
	// Need is what a caller needs. A route with a {namespace} in its path needs it there.
	Need         access.Need
	ID           string
	Summary      string
	Description  string
	Tag          string
	Status       int         // of success; 0: 200
	Also         map[int]any // other success statuses and their bodies; nil: none
	Body         any         // of the request, a value of its type, if the handler reads it itself
	BodyOptional bool
	BodyType     string                     // the content type of Body; "": application/json
	MaxBody      int64                      // bytes of the request's body; 0: 64 KiB
	ReadTime     time.Duration              // for a body of many MiB, of which few are read at one time; 0: the body is small
	Content      map[string]*huma.MediaType // of a response that is not JSON
	Early        bool                       // passes the Gate
}

// reply is a response that consists of its JSON body.
type reply[T any] struct{ Body T }

// Stream is a response that its handler writes itself.
type Stream = reply[func(huma.Context)]

// NewStream returns a response that write writes.
func NewStream(write func(huma.Context)) *Stream { return &Stream{write} }

// Raw returns a response with a body that is ready.
func Raw(contentType string, body []byte) *Stream {
	return NewStream(func(ctx huma.Context) {
		ctx.SetHeader("Content-Type", contentType)
		_, _ = ctx.BodyWriter().Write(body) // the caller may be gone
	})
}

// HandleJSON adds a route with a handler that returns the JSON body of its response.
func HandleJSON[I, T any](s *Server, r Route, handler func(context.Context, *I) (T, error)) {
	Handle(s, r, func(ctx context.Context, in *I) (*reply[T], error) {
		body, err := handler(ctx, in)
		if err != nil {
			return nil, err
		}
		return &reply[T]{body}, nil
	})
}

// Handle adds a route. Huma fills in the handler's input, and writes its output.
func Handle[I, O any](s *Server, r Route, handler func(context.Context, *I) (*O, error)) {
	if !r.Need.Stated() {
		panic("route " + r.ID + " does not state what it needs")
	}
	op := huma.Operation{Method: cmp.Or(r.Method, http.MethodGet), Path: r.Path, OperationID: r.ID, Summary: r.Summary, Description: r.Description,
		Tags: []string{r.Tag}, Metadata: map[string]any{needKey: r.Need, largeKey: r.ReadTime > 0}, DefaultStatus: r.Status, BodyReadTimeout: r.ReadTime, MaxBodyBytes: cmp.Or(r.MaxBody, maxBody) + 1} // huma refuses a body of exactly the limit
	op.Responses = map[string]*huma.Response{"default": {Description: "a problem document", Content: s.JSON(v1.ProblemType, v1.ProblemDocument{})}}
	for status, body := range r.Also {
		also := &huma.Response{Description: http.StatusText(status)}
		if body != nil {
			also.Content = s.JSON("application/json", body)
		}
		op.Responses[strconv.Itoa(status)] = also
	}
	op.Extensions = map[string]any{"x-ironvip-role": r.Need.Role().String()}
	if r.Need != access.Public {
		op.Security = []map[string][]string{{bearerScheme: {}}}
	}
	if r.Content != nil {
		op.Responses["200"] = &huma.Response{Description: "OK", Content: r.Content}
	}
	if r.Body != nil {
		op.RequestBody = &huma.RequestBody{}
	}
	huma.Register(s.api, op, func(ctx context.Context, in *I) (*O, error) {
		if p := stillPermitted(ctx); p != nil {
			return nil, p
		}
		if !r.Early {
			if err := s.Gate(ctx); err != nil {
				return nil, err
			}
		}
		return handler(ctx, in)
	})
	if r.Body != nil { // with a schema before, huma would validate the body, and less strictly
		op.RequestBody.Required, op.RequestBody.Content = !r.BodyOptional, s.JSON(cmp.Or(r.BodyType, "application/json"), r.Body)
	}
}
