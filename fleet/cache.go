package fleet

import (
	"bytes"
	"context"
	"errors"
	"strings"
	"time"

	"github.com/ironvip/ironvip/fleet/treekv"
	"github.com/ironvip/ironvip/internal/keep"
	"github.com/ironvip/ironvip/internal/store"
	"github.com/ironvip/ironvip/vip"
)

// cachePause is how long a change may wait to be written to the disk. A lost change is read from the store again.
const cachePause = time.Second

// cached is one value of the tree on this host's disk, under its path.
type cached struct {
	Value []byte `json:"value"`
	Index uint64 `json:"index,omitempty"`
}

// cachedMark is the name of the mark on the disk. No folder's name begins with a dot.
const cachedMark = ".mark"

// cache is the last known tree on this host's disk, for a start without the store. A keeper for each folder
// writes it.
type cache struct {
	bucket *store.Bucket[cached] // nil: there is none
	fleet  string                // the mark of the tree that it had at the start; "" for none
	kept   map[string]cached     // the content at the start, by path, until the tree is loaded
}

// openCache reads the cache. After an error, it has what could be read.
func openCache(db *store.DB) (c cache, err error) {
	if db == nil {
		return c, nil
	}
	c.bucket = store.NewBucket[cached](db, "fleet")
	c.kept, err = c.bucket.All()
	c.fleet = string(c.kept[cachedMark].Value)
	delete(c.kept, cachedMark)
	return c, err
}

// startFromCache loads the last known tree if the store hasn't been read yet.
func (t *Tree) startFromCache() {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.loaded || t.prevented || t.cache.fleet == "" {
		return
	}
	t.log.Warn(t.o.KV.Engine().Name+" not read yet: starting with the last known tree", "values", len(t.cache.kept))
	for path, c := range t.cache.kept {
		if f, key := t.locate(path); f != nil {
			t.put(f, path, Entry{Key: key, Value: treekv.NotNil(c.Value), Index: c.Index})
		}
	}
	t.ready()
}

// hold keeps the tree from starting from the cache, or allows it. It reports whether the tree has
// begun.
func (t *Tree) hold(hold bool) (begun bool) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.prevented && !hold {
		t.grace.Reset(GracePeriod)
	}
	t.prevented = hold && !t.loaded
	return t.loaded
}

// keepFolder returns the function that writes a folder to the cache until its context ends.
func (t *Tree) keepFolder(f *folder) func(context.Context) {
	names, stored := map[string]bool{}, map[string]cached{}
	for path, c := range t.cache.kept {
		if strings.HasPrefix(path, f.name+"/") {
			names[path], stored[path] = true, c
		}
	}
	k := keep.Keeper[string, Entry, cached]{
		Table: f.rows, Store: cacheWriter{t}, Log: t.log, What: "the last known tree", Pause: cachePause, Report: t.reportCache,
		Name: func(key string) string { return f.name + "/" + key }, Row: func(e *Entry) cached { return cached{e.Value, e.Index} },
		Names: names, Stored: func(path string, c cached) bool {
			was, is := stored[path]
			delete(stored, path) // what is written from now on is another value
			return is && was.Index == c.Index && bytes.Equal(was.Value, c.Value)
		}, Complete: []<-chan struct{}{f.rows.Ready()},
	}
	return func(ctx context.Context) {
		select {
		case <-ctx.Done():
		case <-f.rows.Ready(): // then the mark is known
			k.Run(ctx)
		}
	}
}

// cacheWriter writes the mark with the values of the tree that it names.
type cacheWriter struct{ tree *Tree }

// Write implements keep.Writer.
func (w cacheWriter) Write(put map[string]cached, remove []string) error {
	w.tree.mu.Lock()
	mark := w.tree.mark
	w.tree.mu.Unlock()
	if mark != "" { // else the tree is that of the cache
		put[cachedMark] = cached{Value: []byte(mark)}
	}
	return w.tree.cache.bucket.Write(put, remove)
}

// reportCache reports that the cache can't be written, or with nil that it can again.
func (t *Tree) reportCache(err error) {
	problem := vip.Problem{}
	if known, is := errors.AsType[*store.Error](err); is {
		problem = known.Problem
	} else if err != nil {
		problem = vip.Problem{Code: vip.CodeStore, Message: "cache not written: " + err.Error()}
	}
	t.status.SetProblem("cache", problem)
}
