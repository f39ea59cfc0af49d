package fleet

import (
	"iter"
	"slices"
	"sync"
)

// reading is the whole tree on its way from Consul. Its values are decoded while
// more come, with all processors and without the tree's lock: nobody is kept
// waiting by it, and nothing of it is in the tables before it is complete.
type reading struct {
	tree     *Tree
	views    map[*folder][]view
	parts    [][]placed
	decoding sync.WaitGroup
}

// placed is a pair of a reading, and where in the tree it belongs.
type placed struct {
	pair   *Pair
	path   string
	folder *folder // nil: no folder of ours
	key    string
	reads  []any // what the folder's views read; none where the tables have it as it is
}

func (p *placed) entry() Entry {
	return Entry{Key: p.key, Value: notNil(p.pair.Value), Index: p.pair.Index}
}

func (t *Tree) newReading() *reading {
	r := &reading{tree: t, views: make(map[*folder][]view, len(t.folders))}
	t.mu.Lock()
	defer t.mu.Unlock()
	for _, f := range t.folders {
		r.views[f] = slices.Clone(f.views)
	}
	return r
}

// take begins to decode what has come.
func (r *reading) take(pairs []Pair) {
	part := make([]placed, len(pairs))
	r.parts = append(r.parts, part)
	r.decoding.Go(func() {
		for i := range part {
			part[i].pair = &pairs[i]
			r.place(&part[i])
		}
	})
}

// wait waits until what was taken is decoded.
func (r *reading) wait() { r.decoding.Wait() }

func (r *reading) place(p *placed) {
	p.path = p.pair.Key[len(r.tree.paths.tree):]
	if p.folder, p.key = r.tree.at(p.path); p.folder == nil {
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

// all yields every pair, once they are decoded.
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

// mark returns the pair that says whose tree it is, or nil, once they are decoded.
func (r *reading) mark() *Pair {
	for p := range r.all() {
		if p.path == markName {
			return p.pair
		}
	}
	return nil
}

// merge brings a reading of the whole tree, good up to an index, into the
// tables. The caller holds mu.
func (t *Tree) merge(r *reading, upTo uint64, replace bool) {
	there := make(map[*folder]map[string]bool, len(t.folders)) // of folders of which something may be gone
	for _, f := range t.folders {
		if n := f.rows.Len(); n > 0 {
			there[f] = make(map[string]bool, n)
		}
	}
	junk := map[string]error{}
	for p := range r.all() {
		path, f, key := p.path, p.folder, p.key
		if f == nil {
			if path != markName {
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
		t.put(f, path, p.entry(), p.reads)
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
		}
	}
	t.status.setJunk(inTree, misplaced(junk))
}
