package fleet

import (
	"context"
	"iter"
	"slices"
	"strings"

	"github.com/ironvip/ironvip/fleet/consulkv"
	"github.com/ironvip/ironvip/fleet/treekv"
	"github.com/ironvip/ironvip/fleet/treelog"
	"github.com/ironvip/ironvip/fleet/treestatus"
	"github.com/ironvip/ironvip/internal/parallel"
)

// reading is the whole tree while it is read from Consul. Values are decoded while more arrive, on
// all processors and without the tree's lock. Nothing is in the tables before it is complete.
type reading struct {
	tree     *Tree
	views    map[*folder][]view
	parts    [][]placed
	decoding parallel.Group
}

// placed is a pair of a reading with its place in the tree.
type placed struct {
	pair   *consulkv.Pair
	path   string
	folder *folder // nil for a foreign key
	key    string
	reads  []any // decoded for each of the folder's views; empty if the tables have this version
}

func (p *placed) entry() Entry {
	return Entry{Key: p.key, Value: treekv.NotNil(p.pair.Value), Index: p.pair.Index}
}

func (t *Tree) newReading() *reading {
	r := &reading{tree: t, views: make(map[*folder][]view, len(t.folders))}
	r.decoding, _ = parallel.NewGroup(context.Background())
	t.mu.Lock()
	defer t.mu.Unlock()
	for _, f := range t.folders {
		r.views[f] = slices.Clone(f.views)
	}
	return r
}

// take starts to decode a chunk.
func (r *reading) take(pairs []consulkv.Pair) {
	part := make([]placed, len(pairs))
	r.parts = append(r.parts, part)
	r.decoding.Go(func() error {
		for i := range part {
			part[i].pair = &pairs[i]
			r.place(&part[i])
		}
		return nil
	})
}

// wait waits until all chunks are decoded.
func (r *reading) wait() error { return r.decoding.Wait() }

func (r *reading) place(p *placed) {
	p.path = p.pair.Key[len(r.tree.keys.Tree):]
	if p.folder, p.key = r.tree.locate(p.path); p.folder == nil {
		return
	}
	if e, _, ok := p.folder.rows.Get(p.key); ok && e.Index == p.pair.Index {
		return
	}
	e := p.entry()
	for _, v := range r.views[p.folder] {
		p.reads = append(p.reads, v.read(e))
	}
}

// foldLog brings the reading to the end of the log's entries after it. The digests in these entries
// are not compared.
func (w *wholeTree) foldLog() {
	if len(w.entries) == 0 {
		return
	}
	w.fold(treelog.Latest(w.entries))
	w.at = w.entries[len(w.entries)-1].Position
	w.index, w.entries = max(w.index, w.at.Index), nil
}

// fold changes the reading by later changes, at most one of each path. Call wait first.
func (r *reading) fold(changes []treelog.Change) {
	later := make(map[string]treelog.Change, len(changes))
	for _, c := range changes {
		later[c.Path] = c
	}
	for i, part := range r.parts {
		r.parts[i] = slices.DeleteFunc(part, func(p placed) bool { _, is := later[p.path]; return is })
	}
	var part []placed
	for path, c := range later {
		if c.Value != nil {
			part = append(part, placed{pair: &consulkv.Pair{Key: r.tree.keys.Tree + path, Value: c.Value, Index: c.Index}})
		}
	}
	for i := range part {
		r.place(&part[i])
	}
	r.parts = append(r.parts, part)
}

// all yields every pair. Call wait first.
func (r *reading) all() iter.Seq[*placed] {
	return func(yield func(*placed) bool) {
		for _, part := range r.parts {
			for i := range part {
				if !yield(&part[i]) {
					return
				}
			}
		}
	}
}

// mark returns the pair that names the fleet, or nil. Call wait first.
func (r *reading) mark() *consulkv.Pair {
	for p := range r.all() {
		if p.path == treekv.MarkName {
			return p.pair
		}
	}
	return nil
}

// merge merges a reading of the whole tree, current up to an index, into the tables. With replace,
// newer values in the tables are overwritten too. It returns the paths that it has changed. The
// caller holds mu.
func (t *Tree) merge(r *reading, upTo uint64, replace bool) (changed []string) {
	there := make(map[*folder]map[string]bool, len(t.folders)) // keys of the folders that had any
	for _, f := range t.folders {
		if n := f.rows.Len(); n > 0 {
			there[f] = make(map[string]bool, n)
		}
	}
	junk := map[string]error{}
	if replace {
		t.compared.newest = 0
	}
	for p := range r.all() {
		path, f, key := p.path, p.folder, p.key
		if f == nil {
			if path != treekv.MarkName {
				junk[p.pair.Key] = t.notOurs(path)
			}
			continue
		}
		if there[f] != nil {
			there[f][key] = true
		}
		if !replace && t.knownIndex(f, key, path) > upTo {
			continue
		}
		t.compared.newest = max(t.compared.newest, p.pair.Index)
		if t.put(f, path, p.entry(), p.reads) {
			changed = append(changed, path)
		}
	}
	for f, there := range there {
		var gone []string
		for key, e := range f.rows.All() {
			if !there[key] && (replace || e.Index <= upTo) {
				gone = append(gone, key)
			}
		}
		for _, key := range gone {
			t.remove(f, key, f.name+"/"+key, upTo)
			changed = append(changed, f.name+"/"+key)
		}
	}
	for path, index := range t.known.index { // foreign keys that have changed since
		if f, _ := t.locate(path); f != nil || index <= upTo {
			continue
		}
		key := t.keys.Tree + path
		if why, is := t.junk[key]; is {
			junk[key] = why
		} else {
			delete(junk, key)
		}
	}
	return append(changed, t.setJunk(junk)...)
}

// setJunk replaces the keys of the tree that belong to no folder. It returns the paths of those
// that were added or removed.
func (t *Tree) setJunk(junk map[string]error) (changed []string) {
	path := func(key string) string { return strings.TrimPrefix(key, t.keys.Tree) }
	for key := range junk {
		if _, was := t.junk[key]; !was {
			changed = append(changed, path(key))
		}
	}
	for key := range t.junk {
		if _, is := junk[key]; !is {
			changed = append(changed, path(key))
		}
	}
	t.junk = junk
	t.status.SetJunk(treestatus.InTree, treestatus.Misplaced(junk))
	return changed
}
