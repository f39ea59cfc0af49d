// Package reference documents the keys of ironvip.toml and the fields of services: their meaning,
// values and defaults, once. The tables of docs/config.md, docs/services.md and docs/health.md, the
// manual page ironvip.toml(5), the JSON Schemas and the list of keys that a reload applies are made
// from it. It has data only, and takes the fields of services and of health checks from vip/spec. A
// test compares the keys with those that are read.
package reference

import (
	"regexp"
	"slices"
	"strings"

	"github.com/ironvip/ironvip/vip/spec"
)

// Key documents one key. The texts are Markdown, as in the cells of a table.
type Key struct {
	Key     string // "node.name" in Config, else the name in its table
	Meaning string
	Values  string // may be empty
	Default string // may be empty, or Required
	Live    bool   // of Config: a reload applies a change
}

// Required is the default of a key that every table of its kind has.
const Required = spec.Required

// Table has the keys of a table in the order of their documentation.
type Table []Key

// Find returns the documentation of a key.
func (t Table) Find(key string) (Key, bool) {
	i := slices.IndexFunc(t, func(k Key) bool { return k.Key == key })
	if i < 0 {
		return Key{}, false
	}
	return t[i], true
}

// Tables are all tables by the names that the pages use.
var Tables = map[string]Table{"Config": Config, "Pool": Pool, "Quota": Quota, "Role": Role, "Router": Router, "Route": Route, "Source": Source, "DNSService": DNSService, "Hook": Hook, "Document": Document,
	"Service": Service, "Port": Port, "Backend": Backend, "Group": Group, "HealthCheck": HealthCheck}

var link = regexp.MustCompile(`\s*\(\[more\]\([^)]*\)\)|,? ?\[see (?:below|there)\]\([^)]*\)|\[([^\]]*)\]\([^)]*\)`)

// Plain returns a text without Markdown.
func Plain(text string) string {
	text = link.ReplaceAllString(text, "$1")
	return strings.NewReplacer("`", "", `\|`, "|").Replace(text)
}

// Describe returns the meaning, values and default of a key as plain text.
func (k Key) Describe() string {
	out := Plain(k.Meaning)
	if k.Values != "" {
		out += ". Values: " + Plain(k.Values)
	}
	if k.Default != "" {
		out += ". Default: " + Plain(k.Default)
	}
	return out
}
