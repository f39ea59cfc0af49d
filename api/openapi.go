package api

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"reflect"
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
	version := s.Version
	if version == "" {
		version = "dev"
	}
	config := huma.DefaultConfig("ironvip", version)
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
	method, path string
	id           string
	summary      string
	description  string
	tag          string
	status       int          // of success; 0: 200
	also         map[int]any  // other success statuses and their bodies; nil: none
	body         reflect.Type // of the request, if the handler reads it itself
	bodyOptional bool
	maxBody      int64
	content      string // type of a response that is not JSON
	early        bool   // can be answered before the agent has begun
}

// register adds a route to the API and to its document.
func register[I, O any](s *Server, o operation, handler func(context.Context, *I) (*O, error)) {
	op := huma.Operation{Method: o.method, Path: o.path, OperationID: o.id, Summary: o.summary, Description: o.description,
		Tags: []string{o.tag}, DefaultStatus: o.status, MaxBodyBytes: o.maxBody}
	if op.MaxBodyBytes == 0 {
		op.MaxBodyBytes = maxBody + 1 // huma refuses a body of exactly the limit
	}
	registry := s.api.OpenAPI().Components.Schemas
	failure := &huma.Response{Description: "a problem document", Content: map[string]*huma.MediaType{
		v1.ProblemType: {Schema: registry.Schema(reflect.TypeFor[v1.ProblemDocument](), true, "")},
	}}
	op.Responses = map[string]*huma.Response{"default": failure}
	for status, body := range o.also {
		r := &huma.Response{Description: http.StatusText(status)}
		if body != nil {
			r.Content = map[string]*huma.MediaType{"application/json": {Schema: registry.Schema(reflect.TypeOf(body), true, "")}}
		}
		op.Responses[fmt.Sprint(status)] = r
	}
	if !o.early {
		handler = onceBegun(s, handler)
	}
	huma.Register(s.api, op, handler)

	doc := s.operation(o.method, o.path)
	if o.body != nil {
		doc.RequestBody = orNew(doc.RequestBody)
		doc.RequestBody.Required = !o.bodyOptional
		doc.RequestBody.Content = map[string]*huma.MediaType{"application/json": {Schema: registry.Schema(o.body, true, "")}}
	}
	if o.content != "" {
		doc.Responses["200"] = &huma.Response{Description: "OK", Content: map[string]*huma.MediaType{
			o.content: {Schema: &huma.Schema{Type: huma.TypeString}}}}
	}
}

func orNew[T any](p *T) *T {
	if p == nil {
		return new(T)
	}
	return p
}

// operation returns a route's entry in the document.
func (s *Server) operation(method, path string) *huma.Operation {
	item := s.api.OpenAPI().Paths[path]
	switch method {
	case http.MethodGet:
		return item.Get
	case http.MethodPut:
		return item.Put
	case http.MethodPost:
		return item.Post
	}
	return item.Delete
}

// writeDocument renders the OpenAPI document after all routes are registered.
func (s *Server) writeDocument() []byte {
	b, err := json.Marshal(s.api.OpenAPI())
	if err != nil {
		panic("the OpenAPI document can't be written: " + err.Error())
	}
	return b
}
