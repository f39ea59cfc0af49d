package strict

import (
	"encoding"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"net/netip"
	"reflect"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/ironvip/ironvip/vip"
)

// Value is a type with its own decoding from a tree, for unions such as "auto" or a number. An
// error that is a vip.Problem keeps its code and hint, also that of an encoding.TextUnmarshaler.
type Value interface {
	FromTree(v any) error
}

// Defaulter is implemented by list items with defaults that aren't zero.
type Defaulter interface {
	Defaults()
}

// Extended is implemented by structs with keys that depend on the value of another key, as those of
// a source depend on its type.
type Extended interface {
	// Extension returns a pointer to the struct for the keys of tree that the struct itself does
	// not have, or nil. foreign maps the keys of other extensions to the reason why they are
	// refused here; "" ignores the key.
	Extension(tree map[string]any) (into any, foreign map[string]string)
}

// Decode fills the struct that into points to from tree, by the toml tags of the struct and of the
// structs embedded in it. It returns the errors, see vip.Problems, and still fills in the rest, unless
// there are too many errors. path is the prefix of
// every problem's field. A null counts as an omitted key.
//
// It handles strings, booleans, ints, structs, pointers and slices of these, map[string]string,
// Values and encoding.TextUnmarshalers. Any other type is a programming error and panics.
func Decode(tree map[string]any, into any, path string) []vip.Problem {
	undecoded, outside := DecodeValues(tree, into, path)
	return append(undecoded, outside...)
}

// DecodeValues is Decode that returns apart the problems of decoded values that their keys do not have.
func DecodeValues(tree map[string]any, into any, path string) (undecoded, outside []vip.Problem) {
	d := decoder{}
	d.table(tree, reflect.ValueOf(into).Elem(), path)
	return d.problems.List(), d.outside.List()
}

type decoder struct{ problems, outside vip.Problems }

func (d *decoder) bad(path, hint, format string, args ...any) {
	d.problems.Add(vip.Problem{Code: vip.CodeInvalid, Field: path, Message: fmt.Sprintf(format, args...), Hint: hint})
}

func (d *decoder) add(path string, err error) { add(&d.problems, path, err) }

// add reports an error that is a vip.Problem without a field, or any other error. It ignores nil.
func add(problems *vip.Problems, path string, err error) {
	if err == nil {
		return
	}
	p, isProblem := errors.AsType[vip.Problem](err)
	if !isProblem {
		p = vip.Problem{Code: vip.CodeInvalid, Message: err.Error()}
	}
	p.Field = path
	problems.Add(p)
}

func (d *decoder) table(tree map[string]any, v reflect.Value, path string) {
	fields := fieldsOf(v.Type())
	var foreign map[string]string
	var more fieldSet // of the extension
	var extension reflect.Value
	if e, ok := v.Addr().Interface().(Extended); ok {
		var into any
		if into, foreign = e.Extension(tree); into != nil {
			extension = reflect.ValueOf(into).Elem()
			more = fieldsOf(extension.Type())
		}
	}
	var known []string
	for _, key := range sortedKeys(tree) {
		if d.problems.Full() {
			return
		}
		if f, known := more[key]; known {
			d.field(tree[key], extension, f, Join(path, key))
			continue
		}
		if f, known := fields[key]; known {
			d.field(tree[key], v, f, Join(path, key))
			continue
		}
		if why, ok := foreign[key]; ok {
			if why != "" {
				d.bad(Join(path, key), "remove it", "%s", why)
			}
			continue
		}
		if known == nil {
			known = slices.Concat(sortedKeys(fields), sortedKeys(more))
			slices.Sort(known)
			known = slices.Compact(known)
		}
		hint := "remove it; known keys: " + strings.Join(known, ", ")
		if near := Nearest(key, known); near != "" {
			hint = fmt.Sprintf("did you mean %q?", near)
		}
		d.problems.Add(vip.Problem{Code: vip.CodeUnknownKey, Field: Join(path, key), Message: "unknown key", Hint: hint})
	}
}

// field reads a field of a table.
func (d *decoder) field(raw any, table reflect.Value, f field, path string) {
	v := table.FieldByIndex(f.index)
	d.value(raw, v, path)
	if raw != nil {
		add(&d.outside, path, f.values.check(v))
	}
}

// IsTable reports whether a type is a struct that is decoded key by key.
func IsTable(t reflect.Type) bool {
	p := reflect.PointerTo(t)
	return t.Kind() == reflect.Struct && !p.Implements(reflect.TypeFor[Value]()) && !p.Implements(reflect.TypeFor[encoding.TextUnmarshaler]())
}

func (d *decoder) value(raw any, v reflect.Value, path string) {
	if raw == nil {
		return
	}
	if v.Kind() == reflect.Pointer {
		fresh := reflect.New(v.Type().Elem())
		before := len(d.problems.List())
		d.value(raw, fresh.Elem(), path)
		// Of a struct, the rest counts, as without a pointer: its values can have mistakes, too.
		if len(d.problems.List()) == before || IsTable(v.Type().Elem()) {
			v.Set(fresh)
		}
		return
	}
	if own, ok := v.Addr().Interface().(Value); ok {
		d.add(path, own.FromTree(raw))
		return
	}
	if text, ok := v.Addr().Interface().(encoding.TextUnmarshaler); ok {
		d.text(raw, text, path)
		return
	}
	switch v.Kind() {
	case reflect.String:
		if s, ok := raw.(string); ok {
			v.SetString(strings.Clone(s)) // a string of the TOML reader keeps the whole text in memory
			return
		}
		d.bad(path, "put it in quotes", "wants a string, has %s", Describe(raw))
	case reflect.Bool:
		if b, ok := raw.(bool); ok {
			v.SetBool(b)
			return
		}
		d.bad(path, "write true or false, without quotes", "wants true or false, has %s", Describe(raw))
	case reflect.Int:
		n, err := Int(raw)
		d.add(path, err)
		v.SetInt(int64(n))
	case reflect.Struct, reflect.Map:
		tree, ok := raw.(map[string]any)
		if !ok {
			d.bad(path, "write keys and their values in braces", "wants a table, has %s", Describe(raw))
			return
		}
		if v.Kind() == reflect.Struct {
			d.table(tree, v, path)
			return
		}
		out := reflect.MakeMapWithSize(v.Type(), len(tree))
		for _, key := range sortedKeys(tree) {
			if tree[key] == nil {
				continue
			}
			if d.problems.Full() {
				return
			}
			item := reflect.New(v.Type().Elem()).Elem()
			d.value(tree[key], item, Join(path, key))
			out.SetMapIndex(reflect.ValueOf(strings.Clone(key)), item)
		}
		v.Set(out)
	case reflect.Slice:
		list := reflect.ValueOf(raw)
		if list.Kind() != reflect.Slice {
			d.bad(path, "write it in brackets: [ ... ]", "wants a list, has %s", Describe(raw))
			return
		}
		if list.Len() == 0 { // the same as an omitted list
			v.SetZero()
			return
		}
		if prefixes, is := v.Addr().Interface().(*[]netip.Prefix); is {
			d.prefixes(list, prefixes, path)
			return
		}
		out := reflect.MakeSlice(v.Type(), list.Len(), list.Len())
		for i := range list.Len() {
			if d.problems.Full() {
				return
			}
			item := list.Index(i).Interface()
			if own, ok := out.Index(i).Addr().Interface().(Defaulter); ok {
				own.Defaults()
			}
			if item == nil {
				d.bad(Index(path, i), "remove it", "wants a value, has null")
				continue
			}
			d.value(item, out.Index(i), Index(path, i))
		}
		v.Set(out)
	default:
		panic(fmt.Sprintf("strict: no reading of %s at %s", v.Type(), path))
	}
}

// prefixes reads a list of prefixes and of ranges such as "192.0.2.10-192.0.2.20". A range becomes the fewest
// prefixes that have its addresses.
func (d *decoder) prefixes(list reflect.Value, into *[]netip.Prefix, path string) {
	var out []netip.Prefix
	for i := range list.Len() {
		item := list.Index(i).Interface()
		text, _ := item.(string)
		first, last, isRange := strings.Cut(text, "-")
		if !isRange {
			var p netip.Prefix
			d.text(item, &p, Index(path, i))
			out = append(out, p)
			continue
		}
		from, err1 := netip.ParseAddr(strings.TrimSpace(first))
		to, err2 := netip.ParseAddr(strings.TrimSpace(last))
		if err1 != nil || err2 != nil || from.BitLen() != to.BitLen() || to.Less(from) || from.Zone()+to.Zone() != "" {
			d.bad(Index(path, i), "write its first and its last address: 192.0.2.10-192.0.2.20", "%s is not a range of addresses", Quote(text))
			continue
		}
		out = appendPrefixes(out, from, to)
	}
	*into = out
}

// appendPrefixes appends the fewest prefixes that have the addresses of a range: up to 62 of IPv4, 254 of IPv6.
func appendPrefixes(out []netip.Prefix, from, to netip.Addr) []netip.Prefix {
	for {
		p := netip.PrefixFrom(from, from.BitLen())
		for p.Bits() > 0 {
			wider := netip.PrefixFrom(from, p.Bits()-1)
			if wider != wider.Masked() || to.Less(lastOf(wider)) {
				break
			}
			p = wider
		}
		out = append(out, p)
		if last := lastOf(p); last != to {
			from = last.Next()
		} else {
			return out
		}
	}
}

// lastOf returns the last address of a prefix.
func lastOf(p netip.Prefix) netip.Addr {
	b := p.Addr().AsSlice()
	for i := p.Bits(); i < p.Addr().BitLen(); i++ {
		b[i/8] |= 0x80 >> (i % 8)
	}
	a, _ := netip.AddrFromSlice(b)
	return a
}

// text reads an encoding.TextUnmarshaler. It reads a prefix by ParsePrefix, which is stricter.
func (d *decoder) text(raw any, into encoding.TextUnmarshaler, path string) {
	s, ok := raw.(string)
	if !ok {
		hint := "put it in quotes"
		if p, has := errors.AsType[vip.Problem](into.UnmarshalText(nil)); has {
			hint = p.Hint
		}
		d.bad(path, hint, "wants a string, has %s", Describe(raw))
		return
	}
	if prefix, ok := into.(*netip.Prefix); ok {
		var err error
		*prefix, err = ParsePrefix(s)
		d.add(path, err)
	} else if err := into.UnmarshalText([]byte(s)); err != nil {
		if _, ok := errors.AsType[vip.Problem](err); ok {
			d.add(path, err)
			return
		}
		if _, ok := into.(*time.Time); ok {
			d.bad(path, `write it as "2099-12-31T18:00:00Z"`, "%s is not a time", Quote(s))
			return
		}
		d.bad(path, "", "%s: %s", Quote(s), err)
	}
}

// ParsePrefix reads a range of addresses. It refuses host bits, because the likely error is in the
// length. The error is a vip.Problem without a field.
func ParsePrefix(text string) (netip.Prefix, error) {
	p, err := netip.ParsePrefix(text)
	if err != nil {
		hint := "write it as 192.0.2.0/24 or 2001:db8::/64"
		if a, err := netip.ParseAddr(text); err == nil && a.Zone() == "" {
			hint = fmt.Sprintf("for this one address write %s", netip.PrefixFrom(a, a.BitLen()))
		}
		return p, vip.Problem{Code: vip.CodeInvalid, Message: Quote(text) + " is not a range of addresses", Hint: hint}
	}
	if p.Masked() != p {
		return p, vip.Problem{Code: vip.CodeInvalid, Message: p.String() + " is not the first address of its range",
			Hint: fmt.Sprintf("write %s, or %s for the one address", p.Masked(), netip.PrefixFrom(p.Addr(), p.Addr().BitLen()))}
	}
	return p, nil
}

// Int returns the integer in a tree's scalar. The error is a vip.Problem without a field.
func Int(raw any) (int, error) {
	p := vip.Problem{Code: vip.CodeInvalid, Message: "wants a whole number, has " + Describe(raw)}
	switch n := raw.(type) {
	case int64:
		if int64(int(n)) == n {
			return int(n), nil
		}
	case json.Number:
		if i, err := strconv.Atoi(n.String()); err == nil {
			return i, nil
		}
	case string:
		if i, err := strconv.Atoi(n); err == nil {
			p.Hint = fmt.Sprintf("write %d, without quotes", i)
		}
	}
	return 0, p
}

// Describe describes a tree's value for messages: `the string "80"`.
func Describe(raw any) string {
	switch v := raw.(type) {
	case nil:
		return "null"
	case string:
		return "the string " + Quote(v)
	case bool:
		return strconv.FormatBool(v)
	case int64, float64:
		return fmt.Sprintf("the number %v", v)
	case json.Number:
		return "the number " + shorten(v.String(), 64)
	case time.Time:
		return "a date or time"
	case map[string]any:
		return "a table"
	}
	if reflect.TypeOf(raw).Kind() == reflect.Slice {
		return "a list"
	}
	return fmt.Sprintf("a %T", raw)
}

// Quote quotes s for a message, shortened to a readable length.
func Quote(s string) string { return strconv.Quote(shorten(s, 64)) }

func shorten(s string, most int) string {
	if len(s) <= most {
		return s
	}
	return strings.ToValidUTF8(s[:most], "") + "..."
}

// fieldSet is the fields of a struct type by their toml names, with those of the structs embedded in
// it.
type fieldSet map[string]field

// field is a field of a struct, by its index as an argument of FieldByIndex.
type field struct {
	index  []int
	values Values
}

// fieldSets has the fieldSet of each reflect.Type that was decoded. Types don't change.
var fieldSets sync.Map

func fieldsOf(t reflect.Type) fieldSet {
	if known, ok := fieldSets.Load(t); ok {
		return known.(fieldSet)
	}
	out := fieldSet{}
	for _, f := range reflect.VisibleFields(t) {
		if name, _, _ := strings.Cut(f.Tag.Get("toml"), ","); !f.Anonymous && name != "" && name != "-" {
			out[name] = field{f.Index, ValuesOf(f)}
		}
	}
	fieldSets.Store(t, out)
	return out
}

// Keys returns the toml names of a struct's fields, sorted.
func Keys(of any) []string { return sortedKeys(fieldsOf(reflect.Indirect(reflect.ValueOf(of)).Type())) }

func sortedKeys[V any](m map[string]V) []string {
	keys := slices.AppendSeq(make([]string, 0, len(m)), maps.Keys(m))
	slices.Sort(keys)
	return keys
}
