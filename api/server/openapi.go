package server

import (
	"cmp"
	"encoding/json"
	"reflect"

	"github.com/danielgtaylor/huma/v2"

	"github.com/ironvip/ironvip/configs/reference"
	"github.com/ironvip/ironvip/vip/spec"
)

// bearerScheme is the name of the security scheme of tokens.
const bearerScheme = "token"

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
	config.Components.SecuritySchemes = map[string]*huma.SecurityScheme{bearerScheme: {Type: "http", Scheme: "bearer",
		Description: "A token of `ironvip token create`. Callers on the unix socket and with a client certificate need none."}}
	return huma.NewAPI(config, adapter{s.Engine, s})
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

// JSON describes a JSON body in the document. Of is a value of its type.
func (s *Server) JSON(kind string, of any) map[string]*huma.MediaType {
	return map[string]*huma.MediaType{kind: {Schema: s.api.OpenAPI().Components.Schemas.Schema(reflect.TypeOf(of), true, "")}}
}

// Text describes the body of a response without a schema.
func Text(kind, description string) map[string]*huma.MediaType {
	return map[string]*huma.MediaType{kind: {Schema: &huma.Schema{Type: huma.TypeString, Description: description}}}
}

// Object describes the body of a response that is a JSON object with any keys.
func Object(kind string) map[string]*huma.MediaType {
	return map[string]*huma.MediaType{kind: {Schema: &huma.Schema{Type: huma.TypeObject, AdditionalProperties: true}}}
}

// writeDocument renders the OpenAPI document after all routes are registered.
func (s *Server) writeDocument() []byte {
	schemas := s.api.OpenAPI().Components.Schemas.Map()
	for _, name := range []string{"Service", "Port", "Backend", "Group", "HealthCheck"} {
		schema := schemas["Spec"+name]
		for _, k := range reference.Tables[name] {
			if schema != nil && schema.Properties[k.Key] != nil {
				schema.Properties[k.Key].Description = k.Describe()
			}
		}
	}
	b, err := json.Marshal(s.api.OpenAPI())
	if err != nil {
		panic("the OpenAPI document can't be written: " + err.Error())
	}
	return b
}
