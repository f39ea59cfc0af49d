package api

import (
	"encoding/json"
	"maps"
	"regexp"
	"slices"
	"strings"
	"testing"

	v1 "github.com/ironvip/ironvip/api/v1"
	"github.com/ironvip/ironvip/test/expect"
	"github.com/ironvip/ironvip/test/must"
)

type document struct {
	OpenAPI    string
	Paths      map[string]map[string]documented
	Components struct{ Schemas map[string]json.RawMessage }
}

type documented struct {
	OperationID string `json:"operationId"`
	Summary     string
	Parameters  []struct{ Name, In string }
	RequestBody *struct {
		Content map[string]struct {
			Schema struct {
				Ref string `json:"$ref"`
			}
		}
	} `json:"requestBody"`
	Responses map[string]struct{ Content map[string]json.RawMessage }
}

// The document contains every route and no others. References resolve, and path parameters are
// described.
func TestDocumentListsEveryRoute(t *testing.T) {
	r := newRig(t)
	a := r.ask("GET", v1.PathOpenAPI, "")
	expect.Equal(t, a.Header.Get("Content-Type"), "application/openapi+json", "content type")
	var doc document
	must.Succeed(t, json.Unmarshal(a.body, &doc))
	expect.True(t, strings.HasPrefix(doc.OpenAPI, "3.1"), "version %q", doc.OpenAPI)
	var routes, listed []string
	for _, route := range r.server.http.Engine.Routes() {
		path := regexp.MustCompile(`/:([a-z]+)`).ReplaceAllString(route.Path, "/{$1}")
		routes = append(routes, route.Method+" "+strings.ReplaceAll(path, `\:`, ":"))
	}
	ids := map[string]bool{}
	parameter := regexp.MustCompile(`\{([a-z]+)\}`)
	for path, methods := range doc.Paths {
		for method, op := range methods {
			listed = append(listed, strings.ToUpper(method)+" "+path)
			if op.OperationID == "" || ids[op.OperationID] || op.Summary == "" {
				t.Errorf("%s %s: id %q, summary %q", method, path, op.OperationID, op.Summary)
			}
			ids[op.OperationID] = true
			for _, p := range parameter.FindAllStringSubmatch(path, -1) {
				if !slices.ContainsFunc(op.Parameters, func(q struct{ Name, In string }) bool { return q.Name == p[1] && q.In == "path" }) {
					t.Errorf("%s %s: parameter %s is not described", method, path, p[1])
				}
			}
			for _, p := range op.Parameters {
				if p.Name == "Content-Type" || p.Name == "Accept" {
					t.Errorf("%s %s: header %s has no place among the parameters", method, path, p.Name)
				}
			}
			if _, ok := op.Responses["default"].Content[v1.ProblemType]; !ok {
				t.Errorf("%s %s: no problem document among the answers", method, path)
			}
			if method == "put" && op.RequestBody == nil && op.OperationID != "heartbeat" && op.OperationID != "drain-node" && op.OperationID != "move-vip" {
				t.Errorf("%s: no body", path)
			}
		}
	}
	slices.Sort(routes)
	slices.Sort(listed)
	if !slices.Equal(routes, listed) {
		t.Errorf("routes:\n%s\ndocument:\n%s", strings.Join(routes, "\n"), strings.Join(listed, "\n"))
	}
	for _, ref := range regexp.MustCompile(`"\$ref":"#/components/schemas/([^"]+)"`).FindAllSubmatch(a.body, -1) {
		if _, ok := doc.Components.Schemas[string(ref[1])]; !ok {
			t.Errorf("no schema %s", ref[1])
		}
	}
	if put := doc.Paths[v1.PathServices+"/{namespace}/{name}"]["put"]; put.RequestBody.Content["application/json"].Schema.Ref != "#/components/schemas/SpecService" {
		t.Errorf("the body of PUT is %+v", put.RequestBody)
	}
	for _, name := range []string{"SpecService", "SpecPort", "SpecBackend", "Service", "ProblemDocument", "ApplyResult"} {
		if doc.Components.Schemas[name] == nil {
			t.Errorf("no schema %s among %v", name, slices.Sorted(maps.Keys(doc.Components.Schemas)))
		}
	}
	// oapi-codegen names the type of an enum after its schema and property, and stops if a schema
	// has that name.
	for schema, text := range doc.Components.Schemas {
		var of struct {
			Properties map[string]struct {
				Enum        []any
				Description string
			}
		}
		must.Succeed(t, json.Unmarshal(text, &of))
		for property, p := range of.Properties {
			name := schema + strings.ToUpper(property[:1]) + property[1:]
			if len(p.Enum) > 0 && doc.Components.Schemas[name] != nil {
				t.Errorf("the enum %s.%s and the schema %s get the same name in generated code", schema, property, name)
			}
			if strings.HasPrefix(schema, "Spec") && schema != "SpecAffinity" && p.Description == "" {
				t.Errorf("no description of %s.%s", schema, property)
			}
		}
	}
	if strings.Contains(string(a.body), "127.0.0.1") || strings.Contains(string(a.body), "localhost") {
		t.Error("the document names the host that it was asked from")
	}
}
