package output

import (
	"bytes"
	"fmt"
	"strings"

	"gopkg.in/yaml.v3"
)

// TOMLBlocks writes values as [[name]] blocks with the keys of their JSON, in the same order. Lists
// of tables have one table per line.
func TOMLBlocks[T any](name string, values []T) (string, error) {
	var out strings.Builder
	for i, v := range values {
		tree, err := treeOf(v)
		if err != nil {
			return "", err
		}
		if i > 0 {
			out.WriteByte('\n')
		}
		fmt.Fprintf(&out, "[[%s]]\n", name)
		for _, pair := range tomlPairs(tree, "\n  ") {
			out.WriteString(pair + "\n")
		}
	}
	return out.String(), nil
}

// tomlPairs returns the keys and values of an object, without those that are null.
func tomlPairs(object *yaml.Node, separator string) []string {
	var pairs []string
	for i := 0; i < len(object.Content); i += 2 {
		if value := tomlValue(object.Content[i+1], separator); value != "" {
			pairs = append(pairs, tomlKey(object.Content[i].Value)+" = "+value)
		}
	}
	return pairs
}

// tomlValue returns an inline TOML value, or "" for null. The elements of a list of tables begin
// with separator.
func tomlValue(n *yaml.Node, separator string) string {
	switch {
	case n.Kind == yaml.MappingNode && len(n.Content) == 0:
		return "{}"
	case n.Kind == yaml.MappingNode:
		return "{ " + strings.Join(tomlPairs(n, ""), ", ") + " }"
	case n.Kind == yaml.SequenceNode:
		var items []string
		tables := false
		for _, item := range n.Content {
			items = append(items, tomlValue(item, ""))
			tables = tables || item.Kind == yaml.MappingNode
		}
		if tables && separator != "" {
			return "[" + separator + strings.Join(items, ","+separator) + ",\n]"
		}
		return "[" + strings.Join(items, ", ") + "]"
	case n.Tag == "!!str":
		return tomlString(n.Value)
	case n.Tag == "!!null":
		return ""
	}
	return n.Value
}

// tomlKey quotes a key that isn't a bare key.
func tomlKey(key string) string {
	bare := func(r rune) bool {
		return r == '_' || r == '-' || r >= '0' && r <= '9' || r >= 'a' && r <= 'z' || r >= 'A' && r <= 'Z'
	}
	if key == "" || strings.ContainsFunc(key, func(r rune) bool { return !bare(r) }) {
		return tomlString(key)
	}
	return key
}

// tomlString quotes a string. JSON's escapes are TOML's, except that DEL needs one.
func tomlString(s string) string {
	var b bytes.Buffer
	_ = writeJSONLine(&b, s) // can't fail
	return strings.ReplaceAll(strings.TrimSuffix(b.String(), "\n"), "\x7f", `\u007f`)
}
