package metallb

import (
	"strings"

	"gopkg.in/yaml.v3"

	"github.com/ironvip/ironvip/cmd/ironvip/cli/migrate"
)

// object is a mapping of YAML. It remembers which keys were read, so that none is lost in silence.
type object struct {
	migrate.Place
	path string // "spec", "" for the resource itself
	keys []*yaml.Node
	at   map[string]*yaml.Node // the values
	read map[string]bool
	of   map[string]*object // the values that are objects, as far as they were read
}

func newObject(file, path string, n *yaml.Node) *object {
	o := &object{Place: migrate.Place{File: file, Line: n.Line}, path: path, at: map[string]*yaml.Node{}, read: map[string]bool{}, of: map[string]*object{}}
	for i := 0; n.Kind == yaml.MappingNode && i+1 < len(n.Content); i += 2 {
		o.keys = append(o.keys, n.Content[i])
		o.at[n.Content[i].Value] = n.Content[i+1]
	}
	return o
}

// object returns the object at a key, an empty one if there is none.
func (o *object) object(key string) *object {
	if o.of[key] == nil {
		n := o.at[key]
		if o.read[key] = true; n == nil {
			n = &yaml.Node{Line: o.Line}
		}
		o.of[key] = newObject(o.File, strings.TrimPrefix(o.path+"."+key, "."), n)
	}
	return o.of[key]
}

// value decodes the value at a key, if there is one. A value of another type is a note.
func value[T any](r *migrate.Result, o *object, key string) (v T, at migrate.Place, has bool) {
	n := o.at[key]
	o.read[key] = true
	if n == nil {
		return v, o.Place, false
	}
	at = migrate.Place{File: o.File, Line: n.Line}
	if err := n.Decode(&v); err != nil {
		r.Note(at, "%s.%s is not understood: ignored", o.path, key)
		return v, at, false
	}
	return v, at, true
}

// text is value for texts and numbers, "" for none.
func text(r *migrate.Result, o *object, key string) string {
	v, _, _ := value[string](r, o, key)
	return v
}

// quiet makes keys read of which nothing is missing.
func (o *object) quiet(keys ...string) {
	for _, key := range keys {
		o.read[key] = true
	}
}

// noteUnread notes the keys that nobody has read.
func (o *object) noteUnread(r *migrate.Result) {
	for _, key := range o.keys {
		switch inner := o.of[key.Value]; {
		case inner != nil:
			inner.noteUnread(r)
		case !o.read[key.Value]:
			r.Note(migrate.Place{File: o.File, Line: key.Line}, "%s is not converted", strings.TrimPrefix(o.path+"."+key.Value, "."))
		}
	}
}
