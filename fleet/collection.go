package fleet

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"slices"

	"github.com/ironvip/ironvip/fleet/treestatus"
	"github.com/ironvip/ironvip/internal/table"
	"github.com/ironvip/ironvip/vip"
)

// Item is one value of a Collection.
type Item[V any] struct {
	Key   string
	Value V
	Index uint64 // the Entry's
}

// Collection is a folder with values of one type, stored as JSON in an envelope with a version:
// {"v":1,"value":{...}}. It is safe for concurrent use.
type Collection[V any] struct {
	tree    *Tree
	folder  string
	version int
	check   func(key string, value V) error
	rows    *table.Table[string, Item[V]]
	loaded  func()
	bad     map[string]vip.Problem // guarded by the tree's lock
}

// NewCollection returns the folder's values. Check, if not nil, validates a value at its key, for
// example that the key is canonical. A value that can't be decoded, has another version or fails
// the check is not among the rows, but in the tree's Problems. The rows are current when the
// tree's Commit returns.
func NewCollection[V any](t *Tree, folder string, version int, check func(key string, value V) error) *Collection[V] {
	c := &Collection[V]{tree: t, folder: folder, version: version, check: check,
		rows: table.New(t.o.Clock, func(i *Item[V]) string { return i.Key }, nil), bad: map[string]vip.Problem{}}
	c.loaded = c.rows.Initializer()
	f := t.folders[folder]
	t.mu.Lock()
	defer t.mu.Unlock()
	for _, e := range f.rows.All() {
		c.put(e)
	}
	f.views = append(f.views, c)
	if t.loaded {
		c.loaded()
	}
	return c
}

// Rows returns the values that could be read. The table is ready when the folder is.
func (c *Collection[V]) Rows() table.Reader[string, Item[V]] { return c.rows }

// Get returns the value at key, if it exists and could be read.
func (c *Collection[V]) Get(key string) (Item[V], bool) {
	item, _, ok := c.rows.Get(key)
	return item, ok
}

// Unreadable returns the problem of the value at key, if it exists and can't be read. A write that
// expects no value there conflicts, so an unreadable value is never overwritten.
func (c *Collection[V]) Unreadable(key string) (vip.Problem, bool) {
	c.tree.mu.Lock()
	defer c.tree.mu.Unlock()
	p, ok := c.bad[key]
	return p, ok
}

// Put returns the write that sets the value at key to v, if its version is index (0: it doesn't
// exist). The error is that of v's encoding, or of the check.
func (c *Collection[V]) Put(key string, index uint64, v V) (Write, error) {
	if c.check != nil {
		if err := c.check(key, v); err != nil {
			return Write{}, fmt.Errorf("%s/%s: %w", c.folder, key, err)
		}
	}
	text, err := json.Marshal(struct {
		Version int `json:"v"`
		Value   V   `json:"value"`
	}{c.version, v})
	if err != nil {
		return Write{}, fmt.Errorf("%s/%s: %w", c.folder, key, err)
	}
	return Write{Folder: c.folder, Key: key, Index: index, Value: text}, nil
}

// Remove returns the write that removes the value at key, if its version is index.
func (c *Collection[V]) Remove(key string, index uint64) Write {
	return Write{Folder: c.folder, Key: key, Index: index}
}

// Problems returns the problems of the values that can't be read, unordered.
func (c *Collection[V]) Problems() []vip.Problem {
	c.tree.mu.Lock()
	defer c.tree.mu.Unlock()
	return c.problems()
}

func (c *Collection[V]) put(e Entry) {
	v, err := decodeValue[V](e.Value, c.version)
	if err == nil && c.check != nil {
		err = c.check(e.Key, v)
	}
	if err != nil {
		hint := "if another program wrote it, remove it" + treestatus.Removal(c.tree.o.KV.Engine(), c.place(e.Key))
		if errors.Is(err, errVersion) {
			hint = "a newer ironvip wrote it: bring this host up to the same release"
		}
		c.rows.Delete(e.Key)
		c.bad[e.Key] = treestatus.KeyProblem(c.tree.o.KV.Engine(), c.place(e.Key), err, hint)
		c.tree.status.Notify()
		return
	}
	c.clearProblem(e.Key)
	c.rows.Set(Item[V]{Key: e.Key, Value: v, Index: e.Index})
}

func (c *Collection[V]) remove(key string) {
	c.clearProblem(key)
	c.rows.Delete(key)
}

func (c *Collection[V]) clearProblem(key string) {
	if _, was := c.bad[key]; was {
		delete(c.bad, key)
		c.tree.status.Notify()
	}
}

func (c *Collection[V]) place(key string) string { return c.tree.keys.Tree + c.folder + "/" + key }

func (c *Collection[V]) problems() []vip.Problem { return slices.Collect(maps.Values(c.bad)) }

func (c *Collection[V]) ready() { c.loaded() }

var errVersion = errors.New("version not supported")

// decodeValue decodes a value in its envelope, which may have unknown fields. One of the value is an error,
// because the next write would lose it.
func decodeValue[V any](text []byte, version int) (v V, err error) {
	var envelope struct {
		Version *int            `json:"v"`
		Value   json.RawMessage `json:"value"`
	}
	switch err := json.Unmarshal(text, &envelope); {
	case err != nil:
		return v, fmt.Errorf("not a value of ironvip's: %w", err)
	case envelope.Version == nil:
		return v, errors.New(`not a value of ironvip's: it has no "v"`)
	case *envelope.Version != version:
		return v, fmt.Errorf("%w: it is %d, this release reads %d", errVersion, *envelope.Version, version)
	case len(envelope.Value) == 0 || string(envelope.Value) == "null":
		return v, errors.New(`not a value of ironvip's: it has no "value"`)
	}
	dec := json.NewDecoder(bytes.NewReader(envelope.Value))
	dec.DisallowUnknownFields()
	if err := dec.Decode(&v); err != nil {
		return v, fmt.Errorf("the value can't be read: %w", err)
	}
	if _, err := dec.Token(); err != io.EOF {
		return v, errors.New("the value has more than one part")
	}
	return v, nil
}
