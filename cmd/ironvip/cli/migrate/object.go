package migrate

import (
	"bytes"
	"errors"
	"io"
	"slices"
	"strings"

	"gopkg.in/yaml.v3"
)

// Objects returns the resources of YAML documents by kind, also those of lists as kubectl prints them. name is the text's name in
// notes. Resources of other kinds are notes.
func (r *Result) Objects(name, text string, kinds ...string) map[string][]*Object {
	of := map[string][]*Object{}
	var add func(o *Object)
	add = func(o *Object) {
		if items := o.at["items"]; items != nil && items.Kind == yaml.SequenceNode {
			for _, item := range items.Content {
				add(newObject(name, "", item))
			}
			return
		}
		kind := r.Text(o, "kind")
		if !slices.Contains(kinds, kind) {
			r.Note(o.Place, "a resource of kind %q is not converted", kind)
			return
		}
		o.Quiet("apiVersion", "metadata", "status")
		of[kind] = append(of[kind], o)
	}
	decoder := yaml.NewDecoder(bytes.NewReader([]byte(text)))
	for {
		var n yaml.Node
		switch err := decoder.Decode(&n); {
		case errors.Is(err, io.EOF):
			return of
		case err != nil: // the decoder can't go on
			r.Refused++
			r.Note(Place{File: name, Line: 1}, "not read from here on: %v", err)
			return of
		case len(n.Content) == 1:
			add(newObject(name, "", n.Content[0]))
		}
	}
}

// Has reports whether there is a key.
func (o *Object) Has(key string) bool { return o.at[key] != nil }

// At returns the place of the value at a key.
func (o *Object) At(key string) Place { return Place{o.File, o.at[key].Line} }

// Keys returns the keys in their order.
func (o *Object) Keys() (out []string) {
	for _, n := range o.keys {
		out = append(out, n.Value)
	}
	return out
}

// Items returns the objects of a list.
func (o *Object) Items(key string) (out []*Object) {
	n := o.at[key]
	o.read[key] = true
	for i := 0; n != nil && i < len(n.Content); i++ {
		out = append(out, newObject(o.File, o.path+"."+key, n.Content[i]))
	}
	return out
}

// Object is a mapping of YAML. It remembers which keys were read, so that none is lost in silence.
type Object struct {
	Place
	path string // "spec", "" for the resource itself
	keys []*yaml.Node
	at   map[string]*yaml.Node // the values
	read map[string]bool
	of   map[string]*Object // the values that are objects, as far as they were read
}

func newObject(file, path string, n *yaml.Node) *Object {
	o := &Object{Place: Place{File: file, Line: n.Line}, path: path, at: map[string]*yaml.Node{}, read: map[string]bool{}, of: map[string]*Object{}}
	for i := 0; n.Kind == yaml.MappingNode && i+1 < len(n.Content); i += 2 {
		o.keys = append(o.keys, n.Content[i])
		o.at[n.Content[i].Value] = n.Content[i+1]
	}
	return o
}

// Object returns the object at a key, an empty one if there is none.
func (o *Object) Object(key string) *Object {
	if o.of[key] == nil {
		n := o.at[key]
		if o.read[key] = true; n == nil {
			n = &yaml.Node{Line: o.Line}
		}
		o.of[key] = newObject(o.File, strings.TrimPrefix(o.path+"."+key, "."), n)
	}
	return o.of[key]
}

// Value decodes the value at a key, if there is one. A value of another type is a note.
func Value[T any](r *Result, o *Object, key string) (v T, at Place, has bool) {
	n := o.at[key]
	o.read[key] = true
	if n == nil {
		return v, o.Place, false
	}
	at = o.At(key)
	if err := n.Decode(&v); err != nil {
		r.Note(at, "%s.%s is not understood: ignored", o.path, key)
		return v, at, false
	}
	return v, at, true
}

// Text is Value for texts and numbers, "" for none.
func (r *Result) Text(o *Object, key string) string {
	v, _, _ := Value[string](r, o, key)
	return v
}

// NameOf returns the name of a resource, whose other metadata count as read.
func (r *Result) NameOf(o *Object) string {
	o.Quiet("metadata")
	n := o.at["metadata"]
	if n == nil {
		n = &yaml.Node{Line: o.Line}
	}
	return r.Text(newObject(o.File, "metadata", n), "name")
}

// Quiet makes keys read of which nothing is missing.
func (o *Object) Quiet(keys ...string) {
	for _, key := range keys {
		o.read[key] = true
	}
}

// NoteUnreadOf notes the keys that nobody has read.
func (r *Result) NoteUnreadOf(o *Object) {
	for _, key := range o.keys {
		switch inner := o.of[key.Value]; {
		case inner != nil:
			r.NoteUnreadOf(inner)
		case !o.read[key.Value]:
			r.Note(Place{File: o.File, Line: key.Line}, "%s is not converted", strings.TrimPrefix(o.path+"."+key.Value, "."))
		}
	}
}
