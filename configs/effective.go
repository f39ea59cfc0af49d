package configs

import (
	"fmt"
	"reflect"
	"slices"
	"strconv"
	"strings"

	"github.com/ironvip/ironvip/vip/spec/strict"
)

// Value is a key of the configuration in effect.
type Value struct {
	Key    string `json:"key"`    // "node.name", "pool[0].cidrs"
	Value  string `json:"value"`  // in TOML
	Origin string `json:"origin"` // the file and line that set it, or "default"
}

// Values returns every key in effect. Tokens, keys and passwords are in files, and only the paths are
// keys: no value is a secret.
func (c *Config) Values() []Value {
	var out []Value
	c.values(reflect.ValueOf(*c), "", &out)
	return out
}

func (c *Config) values(table reflect.Value, path string, out *[]Value) {
	for _, f := range fields(table.Type()) {
		name, option, _ := strings.Cut(f.Tag.Get("toml"), ",")
		v, key := table.FieldByIndex(f.Index), strict.Join(path, name)
		switch {
		case name == "" || v.Kind() == reflect.Pointer && v.IsNil(), option != "" && v.IsZero():
		case v.Kind() == reflect.Slice && strict.IsTable(v.Type().Elem()):
			for i := range v.Len() {
				at := strict.Index(key, i)
				c.values(v.Index(i), at, out)
				if s, ok := v.Index(i).Interface().(Source); ok && s.Config != nil {
					c.values(reflect.ValueOf(s.Config).Elem(), at, out)
				}
			}
		case strict.IsTable(v.Type()):
			c.values(v, key, out)
		case v.Kind() == reflect.Pointer && strict.IsTable(v.Type().Elem()):
			c.values(v.Elem(), key, out)
		default:
			value := Value{Key: key, Value: inTOML(v), Origin: "default"}
			if c.doc != nil && c.doc.Has(key) {
				value.Origin = c.Place(key)
			}
			*out = append(*out, value)
		}
	}
}

// fields returns the fields of the struct that the file sets, including those of embedded structs.
func fields(t reflect.Type) []reflect.StructField {
	return slices.DeleteFunc(reflect.VisibleFields(t), func(f reflect.StructField) bool {
		return f.Tag.Get("toml") == "-" || !f.IsExported() || f.Anonymous
	})
}

// inTOML writes a value as in ironvip.toml.
func inTOML(v reflect.Value) string {
	if v.Kind() == reflect.Pointer {
		v = v.Elem()
	}
	if own, ok := v.Interface().(interface{ MarshalTOML() ([]byte, error) }); ok {
		if text, err := own.MarshalTOML(); err == nil {
			return string(text)
		}
	}
	if s, ok := v.Interface().(fmt.Stringer); ok {
		return strconv.Quote(s.String())
	}
	switch v.Kind() {
	case reflect.String:
		return strconv.Quote(v.String())
	case reflect.Slice:
		items := make([]string, v.Len())
		for i := range items {
			items[i] = inTOML(v.Index(i))
		}
		return "[" + strings.Join(items, ", ") + "]"
	case reflect.Map:
		var items []string
		for _, key := range v.MapKeys() {
			items = append(items, inTOML(key)+" = "+inTOML(v.MapIndex(key)))
		}
		slices.Sort(items)
		return "{ " + strings.Join(items, ", ") + " }"
	}
	return fmt.Sprint(v.Interface())
}

// Shapes returns the struct of each type of source, for those who describe the keys. Types that this
// build lacks are missing.
func Shapes() map[string]any {
	out := map[string]any{}
	for _, t := range sourceTypes {
		if t.new != nil {
			out[t.name] = t.new()
		}
	}
	return out
}
