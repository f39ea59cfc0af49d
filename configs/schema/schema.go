// Package schema writes JSON Schemas (draft 2020-12) of ironvip.toml and of the files of services.d,
// for editors and CI, and of the document that hooks get.
//
// Its inputs are the structs that the files are decoded into, and the documentation of their keys in
// configs/reference. Its output accepts every valid file, and refuses unknown keys, wrong types and
// unknown words. `ironvip config validate` finds the problems of several keys, such as pools that
// overlap. It does no I/O.
package schema

import (
	"fmt"
	"maps"
	"net/netip"
	"reflect"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/ironvip/ironvip/configs"
	"github.com/ironvip/ironvip/configs/reference"
	"github.com/ironvip/ironvip/health/share"
	"github.com/ironvip/ironvip/hook"
	"github.com/ironvip/ironvip/internal/access"
	"github.com/ironvip/ironvip/sources/dns"
	"github.com/ironvip/ironvip/vip/spec"
	"github.com/ironvip/ironvip/vip/spec/strict"
)

// Node is a JSON Schema.
type Node map[string]any

const dialect = "https://json-schema.org/draft/2020-12/schema"

// Config returns the schema of ironvip.toml.
func Config() Node {
	out := table(reflect.TypeFor[configs.Config](), reference.Config, "")
	sources := []any{}
	shapes := configs.Shapes()
	for _, name := range slices.Sorted(maps.Keys(shapes)) {
		one := table(reflect.TypeFor[configs.Source](), reference.Source, "")
		more := table(reflect.TypeOf(shapes[name]).Elem(), reference.Source, "")
		properties := one["properties"].(Node)
		for key, node := range more["properties"].(Node) {
			properties[key] = node
		}
		properties["type"].(Node)["const"] = name
		sources = append(sources, one)
	}
	out["properties"].(Node)["source"] = Node{"type": "array", "items": Node{"oneOf": sources}}
	out["$schema"], out["title"] = dialect, "ironvip.toml"
	return out
}

// Services returns the schema of a file of services.d.
func Services() Node {
	return Node{"$schema": dialect, "title": "a file of services.d", "type": "object", "additionalProperties": false,
		"properties": Node{"service": Node{"type": "array", "items": table(reflect.TypeFor[spec.Service](), reference.Service, "")}}}
}

// nested are the tables of keys of structs within others.
var nested = map[reflect.Type]reference.Table{
	reflect.TypeFor[configs.Pool]():     reference.Pool,
	reflect.TypeFor[configs.Quota]():    reference.Quota,
	reflect.TypeFor[access.Rule]():      reference.Role,
	reflect.TypeFor[configs.BGPPeer]():  reference.Router,
	reflect.TypeFor[configs.PoolBGP]():  reference.Route,
	reflect.TypeFor[configs.BGPMatch](): reference.Route,
	reflect.TypeFor[configs.Hook]():     reference.Hook,
	reflect.TypeFor[dns.Service]():      slices.Concat(reference.Service, reference.DNSService),
	reflect.TypeFor[spec.Port]():        reference.Port,
	reflect.TypeFor[spec.Backend]():     reference.Backend,
	reflect.TypeFor[spec.Group]():       reference.Group,
	reflect.TypeFor[spec.HealthCheck](): reference.HealthCheck,
}

// Document returns the schema of the document that hooks get. Later versions can have more properties.
func Document() Node {
	properties, required := Node{}, []string{}
	for _, f := range reflect.VisibleFields(reflect.TypeFor[hook.Document]()) {
		name, option, _ := strings.Cut(f.Tag.Get("json"), ",")
		if f.Anonymous {
			continue
		}
		node := value(f.Type, nil, "")
		key, _ := reference.Document.Find(name)
		node["description"] = key.Describe()
		properties[name] = node
		if option == "" {
			required = append(required, name)
		}
	}
	return Node{"$schema": dialect, "title": "the document that a hook of ironvip gets", "type": "object", "properties": properties, "required": required}
}

// text returns the schema of a string.
func text(pattern string) Node {
	out := Node{"type": "string"}
	if pattern != "" {
		out["pattern"] = pattern
	}
	return out
}

var port = Node{"type": "integer", "minimum": 1, "maximum": 65535}

// values are the schemas of types with their own form in a file.
var values = map[reflect.Type]func() Node{
	reflect.TypeFor[time.Time]():             func() Node { return Node{"type": "string", "format": "date-time"} },
	reflect.TypeFor[spec.Duration]():         func() Node { return text(`^(0|([0-9.]+(ns|us|µs|ms|s|m|h))+)$`) },
	reflect.TypeFor[netip.Prefix]():          func() Node { return text(`^[0-9A-Fa-f.:]+(/[0-9]+| *- *[0-9A-Fa-f.:]+)$`) },
	reflect.TypeFor[netip.Addr]():            func() Node { return text(`^[0-9A-Fa-f.:]+(%.+)?$`) },
	reflect.TypeFor[configs.AddressRange]():  func() Node { return text(`^[0-9A-Fa-f.:]+(/[0-9]+)?$`) },
	reflect.TypeFor[configs.ListenAddress](): func() Node { return text(`:[0-9]+$`) },
	reflect.TypeFor[configs.PeerAddress]():   func() Node { return text("") },
	reflect.TypeFor[configs.FileMode]():      func() Node { return text(`^0?[0-7]{1,3}$`) },
	reflect.TypeFor[configs.PortRange]():     func() Node { return text(`^ *[0-9]+ *- *[0-9]+ *$`) },
	reflect.TypeFor[access.Role]():           func() Node { return Node{"type": "string", "enum": access.Roles()} },
	reflect.TypeFor[share.Probers](): func() Node {
		return either(Node{"enum": []any{"auto", "all"}}, Node{"type": "integer", "minimum": 1, "maximum": 100})
	},
	reflect.TypeFor[configs.Least](): func() Node {
		return either(text(`^([1-9][0-9]?|100)%$`), Node{"type": "integer", "minimum": 1, "maximum": 10000})
	},
	reflect.TypeFor[spec.PortNumber](): func() Node { return either(port) },
	reflect.TypeFor[spec.PortRange]():  func() Node { return either(port, text(`^(all|[0-9]+-[0-9]+)$`)) },
	reflect.TypeFor[spec.NodePort]():   func() Node { return either(Node{"enum": []any{"off", "auto"}}, port) },
}

func either(of ...Node) Node { return Node{"anyOf": of} }

// words are the values of fields of a service that take one of a few words. A key of a list is that of its items.
var words = map[reflect.Type]map[string][]string{
	reflect.TypeFor[spec.Service]():     choices(spec.Fields),
	reflect.TypeFor[dns.Service]():      choices(spec.Fields),
	reflect.TypeFor[spec.HealthCheck](): choices(spec.CheckFields),
	reflect.TypeFor[spec.Port]():        {"protocol": {"tcp", "udp", "sctp"}},
	reflect.TypeFor[spec.Backend]():     {"state": {"ready", "drain", "maint", "terminating"}},
}

// choices returns the words of the fields that have some.
func choices(fields []spec.Field) map[string][]string {
	out := map[string][]string{}
	for _, f := range fields {
		if _, _, words := f.Document(); words != nil {
			out[f.Key] = words
		}
	}
	return out
}

// table returns the schema of a struct. Prefix is that of its keys in the documentation.
func table(t reflect.Type, docs reference.Table, prefix string) Node {
	properties := Node{}
	var required []string
	for _, f := range reflect.VisibleFields(t) {
		name, _, _ := strings.Cut(f.Tag.Get("toml"), ",")
		if f.Anonymous || !f.IsExported() || name == "" || name == "-" {
			continue
		}
		node := value(f.Type, docs, prefix+name+".")
		limit(node, strict.ValuesOf(f))
		if of := words[t][name]; of != nil {
			if items, list := node["items"]; list {
				items.(Node)["enum"] = of
			} else {
				node["enum"] = of
			}
		}
		if doc, found := docs.Find(prefix + name); found {
			node["description"] = doc.Describe()
			if doc.Default == reference.Required {
				required = append(required, name)
			}
		}
		properties[name] = node
	}
	out := Node{"type": "object", "additionalProperties": false, "properties": properties}
	if required != nil {
		out["required"] = required
	}
	return out
}

// limit adds the values that a key has. A schema has no bounds for times.
func limit(node Node, v strict.Values) {
	low, err1 := strconv.Atoi(v.Low)
	high, err2 := strconv.Atoi(v.High)
	switch {
	case v.Words != nil:
		node["enum"] = v.Words
	case v.IsName():
		node["pattern"] = `^\S{0,` + v.High + `}$`
	case err1 == nil && err2 == nil:
		node["minimum"], node["maximum"] = low, high
	}
}

// value returns the schema of a field. A type that it doesn't know is a programming error.
func value(t reflect.Type, docs reference.Table, prefix string) Node {
	if own, ok := values[t]; ok {
		return own()
	}
	if of, ok := nested[t]; ok {
		return table(t, of, "")
	}
	switch t.Kind() {
	case reflect.Pointer:
		return value(t.Elem(), docs, prefix)
	case reflect.String:
		return text("")
	case reflect.Bool:
		return Node{"type": "boolean"}
	case reflect.Int:
		return Node{"type": "integer"}
	case reflect.Uint64:
		return Node{"type": "integer", "minimum": 0}
	case reflect.Slice:
		return Node{"type": "array", "items": value(t.Elem(), docs, prefix)}
	case reflect.Map:
		return Node{"type": "object", "additionalProperties": value(t.Elem(), docs, prefix)}
	case reflect.Struct:
		return table(t, docs, prefix)
	}
	panic(fmt.Sprintf("schema: no form of %s", t))
}
