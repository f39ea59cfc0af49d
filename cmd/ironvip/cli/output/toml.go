package output

import (
	"bytes"
	"encoding/json"
	"fmt"
	"strings"
)

// TOMLBlocks writes values as [[name]] blocks with the keys of their JSON, in the same order. Lists
// of tables have one table per line.
func TOMLBlocks[T any](name string, values []T) (string, error) {
	var out strings.Builder
	for i, v := range values {
		b, err := json.Marshal(v)
		if err != nil {
			return "", err
		}
		d := json.NewDecoder(bytes.NewReader(b))
		d.UseNumber()
		if i > 0 {
			out.WriteByte('\n')
		}
		fmt.Fprintf(&out, "[[%s]]\n", name)
		if _, err := d.Token(); err != nil { // the opening brace
			return "", err
		}
		for d.More() {
			key, value, err := tomlPair(d, "\n  ")
			if err != nil {
				return "", err
			}
			if value != "" {
				out.WriteString(key + " = " + value + "\n")
			}
		}
	}
	return out.String(), nil
}

// tomlPair reads a key and its value.
func tomlPair(d *json.Decoder, separator string) (key, value string, err error) {
	t, err := d.Token()
	if err != nil {
		return "", "", err
	}
	value, err = tomlValue(d, separator)
	return tomlKey(t.(string)), value, err
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

// tomlValue converts the decoder's next JSON value to an inline TOML value, or "" for null. The
// elements of a list of tables begin with separator.
func tomlValue(d *json.Decoder, separator string) (string, error) {
	t, err := d.Token()
	if err != nil {
		return "", err
	}
	switch t := t.(type) {
	case json.Delim:
		var parts []string
		tables := false
		for d.More() {
			if t == '{' {
				key, value, err := tomlPair(d, "")
				if err != nil {
					return "", err
				}
				if value != "" {
					parts = append(parts, key+" = "+value)
				}
				continue
			}
			value, err := tomlValue(d, "")
			if err != nil {
				return "", err
			}
			tables = tables || strings.HasPrefix(value, "{")
			parts = append(parts, value)
		}
		_, err := d.Token() // the closing delimiter
		switch {
		case t == '{' && len(parts) == 0:
			return "{}", err
		case t == '{':
			return "{ " + strings.Join(parts, ", ") + " }", err
		case tables && separator != "":
			return "[" + separator + strings.Join(parts, ","+separator) + ",\n]", err
		}
		return "[" + strings.Join(parts, ", ") + "]", err
	case string:
		return tomlString(t), nil
	case json.Number:
		return t.String(), nil
	case bool:
		return fmt.Sprint(t), nil
	}
	return "", nil
}
