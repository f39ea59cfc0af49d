package configs

import (
	"reflect"
	"slices"

	"github.com/ironvip/ironvip/configs/reference"
	"github.com/ironvip/ironvip/vip/spec/strict"
)

// isLive reports whether a running agent applies a key on a reload. Pools are one key.
func isLive(key string) bool {
	k, _ := reference.Config.Find(key)
	return k.Live || key == "pool"
}

// Diff returns the keys in which two configurations differ: those that a running agent applies on a
// reload, and those that need a restart. Pools and sources are one key each.
func Diff(old, new *Config) (live, restart []string) {
	note := func(key string) {
		if isLive(key) {
			live = append(live, key)
		} else {
			restart = append(restart, key)
		}
	}
	a, b := reflect.ValueOf(*old), reflect.ValueOf(*new)
	for _, section := range fields(a.Type()) {
		x, y := a.FieldByIndex(section.Index), b.FieldByIndex(section.Index)
		if x.Kind() != reflect.Struct {
			if !alike(x, y) {
				note(section.Tag.Get("toml"))
			}
			continue
		}
		for _, f := range fields(x.Type()) {
			if !alike(x.FieldByIndex(f.Index), y.FieldByIndex(f.Index)) {
				note(strict.Join(section.Tag.Get("toml"), f.Tag.Get("toml")))
			}
		}
	}
	return live, restart
}

// fields returns the fields of the struct that the file sets, including those of embedded structs.
func fields(t reflect.Type) []reflect.StructField {
	return slices.DeleteFunc(reflect.VisibleFields(t), func(f reflect.StructField) bool {
		return f.Tag.Get("toml") == "-" || !f.IsExported() || f.Anonymous
	})
}

// alike is like DeepEqual, but an empty list equals nil.
func alike(x, y reflect.Value) bool {
	if x.Kind() == reflect.Slice && x.Len() == 0 && y.Len() == 0 {
		return true
	}
	return reflect.DeepEqual(x.Interface(), y.Interface())
}
