package api

import (
	"cmp"
	"context"
	"encoding/json"
	"net/http"
	"reflect"
	"strconv"
	"strings"

	"github.com/danielgtaylor/huma/v2"
	"github.com/danielgtaylor/huma/v2/adapters/humagin"
	"github.com/gin-gonic/gin"

	v1 "github.com/ironvip/ironvip/api/v1"
	"github.com/ironvip/ironvip/vip/spec"
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
		writeProblem(c.Writer, c.Request, refuse(http.StatusNotFound, v1.CodeNoRoute, "path "+c.Request.URL.Path+" does not exist",
			"GET "+v1.PathOpenAPI+" lists all paths"))
	})
	e.NoMethod(func(c *gin.Context) {
		writeProblem(c.Writer, c.Request, refuse(http.StatusMethodNotAllowed, v1.CodeMethodNotAllowed,
			"method "+c.Request.Method+" not allowed for "+c.Request.URL.Path, "use "+strings.Join(c.Writer.Header().Values("Allow"), ", ")))
	})
	return e
}

// adapter is huma's gin adapter with support for paths that contain a colon.
type adapter struct {
	http.Handler
	engine *gin.Engine
}

func (a adapter) Handle(op *huma.Operation, handler func(huma.Context)) {
	path := strings.NewReplacer(":", `\:`, "{", ":", "}", "").Replace(op.Path)
	a.engine.Handle(op.Method, path, func(c *gin.Context) { handler(humagin.NewContext(op, c)) })
}

func (s *Server) newAPI() huma.API {
	config := huma.DefaultConfig("ironvip", cmp.Or(s.Version, "dev"))
	config.Info.Description = "Virtual IPs for services on bare metal: services, backends, leases and the dataplane of one agent."
	config.CreateHooks = nil // its links copy the Host header into bodies
	config.DocsPath, config.OpenAPIPath, config.SchemasPath = "", "", ""
	config.RejectUnknownQueryParameters = true
	config.Transformers = []huma.Transformer{s.transform}
	registry := huma.NewMapRegistry("#/components/schemas/", schemaName)
	registry.RegisterTypeAlias(reflect.TypeFor[spec.NodePort](), reflect.TypeFor[nodePortSchema]())
	registry.RegisterTypeAlias(reflect.TypeFor[spec.PortRange](), reflect.TypeFor[portRangeSchema]())
	registry.RegisterTypeAlias(reflect.TypeFor[spec.PortNumber](), reflect.TypeFor[portSchema]())
	registry.RegisterTypeAlias(reflect.TypeFor[spec.Duration](), reflect.TypeFor[durationSchema]())
	config.Components.Schemas = registry
	return huma.NewAPI(config, adapter{s.engine, s.engine})
}

// schemaName separates the types of vip/spec from those of api/v1.
func schemaName(t reflect.Type, hint string) string {
	name := huma.DefaultSchemaNamer(t, hint)
	for t.Kind() == reflect.Pointer {
		t = t.Elem()
	}
	if t.PkgPath() == reflect.TypeFor[spec.Service]().PkgPath() {
		return "Spec" + name
	}
	return name
}

// The schemas of vip/spec's unions in the OpenAPI document.
type (
	nodePortSchema  struct{}
	portRangeSchema struct{}
	portSchema      struct{}
	durationSchema  struct{}
)

func port() *huma.Schema {
	one, last := 1.0, 65535.0
	return &huma.Schema{Type: huma.TypeInteger, Minimum: &one, Maximum: &last}
}

func (nodePortSchema) Schema(huma.Registry) *huma.Schema {
	return &huma.Schema{OneOf: []*huma.Schema{{Type: huma.TypeString, Enum: []any{"off", "auto"}}, port()},
		Description: `"off", "auto" or a number`}
}

func (portRangeSchema) Schema(huma.Registry) *huma.Schema {
	return &huma.Schema{OneOf: []*huma.Schema{port(), {Type: huma.TypeString, Pattern: `^([0-9]+-[0-9]+|all)$`}},
		Description: `a number, a range ("10000-10099"), or "all"`}
}

func (portSchema) Schema(huma.Registry) *huma.Schema { return port() }

func (durationSchema) Schema(huma.Registry) *huma.Schema {
	return &huma.Schema{Type: huma.TypeString, Description: `with a unit: "90s", "5m", "1h30m"`, Examples: []any{"60s"}}
}

// operation describes one route.
type operation struct {
	method, path string // no method: GET
	id           string
	summary      string
	description  string
	tag          string
	status       int         // of success; 0: 200
	also         map[int]any // other success statuses and their bodies; nil: none
	body         any         // of the request, a value of its type, if the handler reads it itself
	bodyOptional bool
	content      map[string]*huma.MediaType // of a response that is not JSON
	early        bool                       // can be answered before the agent has begun
	lacks        string                     // what this agent doesn't have for the route: the response is 503; "" if it has everything
}

// needs returns the value of operation.lacks.
func needs(has bool, what string) (lacks string) {
	if has {
		return ""
	}
	return what
}

// reply is a response that consists of its JSON body.
type reply[T any] struct{ Body T }

// stream is a response that its handler writes itself.
type stream = reply[func(huma.Context)]

// raw returns a response with a body that is ready.
func raw(contentType string, body []byte) *stream {
	return &stream{func(ctx huma.Context) {
		ctx.SetHeader("Content-Type", contentType)
		_, _ = ctx.BodyWriter().Write(body) // the caller may be gone
	}}
}

// serve adds a route with a handler that returns the JSON body.
func serve[I, T any](s *Server, o operation, handler func(context.Context, *I) (T, error)) {
	register(s, o, func(ctx context.Context, in *I) (*reply[T], error) {
		body, err := handler(ctx, in)
		if err != nil {
			return nil, err
		}
		return &reply[T]{body}, nil
	})
}

// register adds a route to the API and to its document.
func register[I, O any](s *Server, o operation, handler func(context.Context, *I) (*O, error)) {
	op := huma.Operation{Method: cmp.Or(o.method, http.MethodGet), Path: o.path, OperationID: o.id, Summary: o.summary, Description: o.description,
		Tags: []string{o.tag}, DefaultStatus: o.status, MaxBodyBytes: maxBody + 1} // huma refuses a body of exactly the limit
	op.Responses = map[string]*huma.Response{"default": {Description: "a problem document", Content: s.content(v1.ProblemType, v1.ProblemDocument{})}}
	for status, body := range o.also {
		r := &huma.Response{Description: http.StatusText(status)}
		if body != nil {
			r.Content = s.content("application/json", body)
		}
		op.Responses[strconv.Itoa(status)] = r
	}
	if o.content != nil {
		op.Responses["200"] = &huma.Response{Description: "OK", Content: o.content}
	}
	if o.body != nil {
		op.RequestBody = &huma.RequestBody{}
	}
	if o.lacks != "" {
		handler = func(context.Context, *I) (*O, error) { return nil, unavailable(o.lacks) }
	}
	if !o.early {
		handler = onceBegun(s, handler)
	}
	huma.Register(s.api, op, handler)
	if o.body != nil { // with a schema before, huma would validate the body, and less strictly
		op.RequestBody.Required, op.RequestBody.Content = !o.bodyOptional, s.content("application/json", o.body)
	}
}

// content describes a body in the document. Of is a value of its type.
func (s *Server) content(kind string, of any) map[string]*huma.MediaType {
	return map[string]*huma.MediaType{kind: {Schema: s.api.OpenAPI().Components.Schemas.Schema(reflect.TypeOf(of), true, "")}}
}

// plain describes the body of a response that is no JSON of this API.
func plain(kind, description string) map[string]*huma.MediaType {
	return map[string]*huma.MediaType{kind: {Schema: &huma.Schema{Type: huma.TypeString, Description: description}}}
}

// writeDocument renders the OpenAPI document after all routes are registered.
func (s *Server) writeDocument() []byte {
	b, err := json.Marshal(s.api.OpenAPI())
	if err != nil {
		panic("the OpenAPI document can't be written: " + err.Error())
	}
	return b
}
