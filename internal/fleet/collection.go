package fleet

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"slices"

	json2 "github.com/go-json-experiment/json"

	"github.com/ironvip/ironvip/internal/table"
	"github.com/ironvip/ironvip/vip"
)

// Item is one value of a Collection.
type Item[V any] struct {
	Key   string
	Value V
	Index uint64 // the Entry's
}

// Collection is a folder whose values are of one type, kept as JSON in an
// envelope with a version: {"v":1,"value":{...}}. Its methods may be called by
// any goroutine.
type Collection[V any] struct {
	tree    *Tree
	folder  string
	version int
	check   func(key string, value V) error
	rows    *table.Table[string, Item[V]]
	loaded  func()
	bad     map[string]vip.Problem // guarded by the tree's lock
}

// NewCollection returns the folder's values. Check, when not nil, says what is
// wrong with a value at its key, such as that the key is not the canonical one.
// What can't be decoded, has another version or fails the check is not among
// the rows, and is in the tree's Problems. The rows are up to date when the
// tree's Commit returns.
func NewCollection[V any](t *Tree, folder string, version int, check func(key string, value V) error) *Collection[V] {
	c := &Collection[V]{tree: t, folder: folder, version: version, check: check,
		rows: table.New(t.o.Clock, func(i *Item[V]) string { return i.Key }, nil), bad: map[string]vip.Problem{}}
	c.loaded = c.rows.Initializer()
	f := t.folders[folder]
	t.mu.Lock()
	defer t.mu.Unlock()
	for _, e := range f.rows.All() {
		c.put(e, c.read(e))
	}
	f.views = append(f.views, c)
	if t.loaded {
		c.loaded()
	}
	return c
}

// Rows returns the values that could be read. The table is ready when the
// folder's is.
func (c *Collection[V]) Rows() table.Reader[string, Item[V]] { return c.rows }

// Get returns the value at key, if it is there and could be read.
func (c *Collection[V]) Get(key string) (Item[V], bool) {
	item, _, ok := c.rows.Get(key)
	return item, ok
}

// Unreadable returns what is wrong with the value at key, if there is one that
// can't be read. It is never overwritten by a writer who takes it not to be
// there: that write conflicts.
func (c *Collection[V]) Unreadable(key string) (vip.Problem, bool) {
	c.tree.mu.Lock()
	defer c.tree.mu.Unlock()
	p, ok := c.bad[key]
	return p, ok
}

// Put returns the write that makes the value at key v, provided that it is the
// one of index now (0: that there is none). The error is that of v's encoding,
// or the check's.
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

// Remove returns the write that removes the value at key, provided that it is
// the one of index now.
func (c *Collection[V]) Remove(key string, index uint64) Write {
	return Write{Folder: c.folder, Key: key, Index: index}
}

// Problems returns what is wrong with each value that can't be read, in no order.
func (c *Collection[V]) Problems() []vip.Problem {
	c.tree.mu.Lock()
	defer c.tree.mu.Unlock()
	return c.problems()
}

// decoded is what an entry's value turned out to be.
type decoded[V any] struct {
	value *V // nil with err
	err   error
}

// read implements view: it decodes and checks.
func (c *Collection[V]) read(e Entry) any {
	v, err := decodeValue[V](e.Value, c.version)
	if err == nil && c.check != nil {
		err = c.check(e.Key, *v)
	}
	return &decoded[V]{v, err}
}

func (c *Collection[V]) put(e Entry, read any) {
	d := read.(*decoded[V])
	if d.err != nil {
		hint := "if another program wrote it, remove it" + removal(c.place(e.Key))
		if errors.Is(d.err, errVersion) {
			hint = "a newer ironvip wrote it: bring this host up to the same release"
		}
		c.rows.Delete(e.Key)
		c.bad[e.Key] = keyProblem(c.place(e.Key), d.err, hint)
		c.tree.status.touched()
		return
	}
	c.mend(e.Key)
	c.rows.Set(Item[V]{Key: e.Key, Value: *d.value, Index: e.Index})
}

func (c *Collection[V]) remove(key string) {
	c.mend(key)
	c.rows.Delete(key)
}

func (c *Collection[V]) mend(key string) {
	if _, was := c.bad[key]; was {
		delete(c.bad, key)
		c.tree.status.touched()
	}
}

func (c *Collection[V]) place(key string) string { return c.tree.paths.tree + c.folder + "/" + key }

func (c *Collection[V]) problems() []vip.Problem { return slices.Collect(maps.Values(c.bad)) }

func (c *Collection[V]) ready() { c.loaded() }

var errVersion = errors.New("its version is not known here")

// decodeValue reads a value in its envelope. A field that isn't known would be
// lost with the next writing, so it is an error.
func decodeValue[V any](text []byte, version int) (*V, error) {
	var whole struct {
		Version int `json:"v"`
		Value   *V  `json:"value"`
	}
	if json2.Unmarshal(text, &whole, known) == nil && whole.Version == version && whole.Value != nil {
		return whole.Value, nil
	}
	v, err := explainValue[V](text, version)
	if err != nil {
		return nil, err
	}
	return &v, nil
}

// known refuses what encoding/json would read otherwise: names in another case, or
// twice, and what is no UTF-8; and fields that aren't known. That takes a quarter less
// time than reading these as encoding/json does.
var known = json2.RejectUnknownMembers(true)

// explainValue reads a value that can't be read at one go, step by step, to tell
// why. The envelope may have more fields than are known here.
func explainValue[V any](text []byte, version int) (v V, err error) {
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
		return v, fmt.Errorf("%w: it is %d, not %d", errVersion, *envelope.Version, version)
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
