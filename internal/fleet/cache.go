package fleet

import (
	"bytes"
	"context"
	"errors"
	"sync"
	"time"

	"github.com/ironvip/ironvip/internal/backoff"
	"github.com/ironvip/ironvip/internal/store"
	"github.com/ironvip/ironvip/vip"
)

// flushEvery is how long what is new waits to be written to the cache, and
// flushMany how much longer when a whole tree is new: whoever begins has more use
// for its processors then.
const (
	flushEvery = time.Second
	flushMany  = 5 * time.Second
)

// cached is one value of the state bucket: an entry by its path, or the mark.
type cached struct {
	Value []byte `json:"value"`
	Index uint64 `json:"index,omitempty"`
}

// markKey is where the mark is, beside the entries; no folder has a name that begins so.
const markKey = ".mark"

// cache is the last known tree on this host's disk, for a start without Consul.
// It is written behind: nothing waits for it, and what it lacks is read again.
type cache struct {
	bucket *store.Bucket[cached] // nil: there is none
	status *status
	wake   chan struct{}

	mu    sync.Mutex
	dirty map[string]*cached // nil values: removed
	fleet string             // the mark of the tree it holds; "" for none
	kept  map[string]cached  // what was there at the start, until the tree is loaded
}

func newCache(db *store.DB) *cache {
	c := &cache{dirty: map[string]*cached{}, wake: make(chan struct{}, 1)}
	if db != nil {
		c.bucket = store.NewBucket[cached](db, "fleet")
	}
	return c
}

// open reads what there is.
func (c *cache) open(t *Tree) {
	c.status = t.status
	if c.bucket == nil {
		return
	}
	all, err := c.bucket.All()
	if err != nil {
		t.log.Warn("some of the last known tree can't be read", "err", err)
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.fleet = string(all[markKey].Value)
	delete(all, markKey)
	c.kept = all
}

// startFromCache begins with the last known tree when Consul hasn't been read yet.
func (t *Tree) startFromCache() {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.cache.mu.Lock()
	kept, known := t.cache.kept, t.cache.fleet != ""
	t.cache.mu.Unlock()
	if t.loaded || t.prevented || !known {
		return
	}
	t.log.Warn("consul has not been read yet: beginning with what was known last", "values", len(kept))
	for path, c := range kept {
		if f, key := t.at(path); f != nil {
			t.put(f, path, Entry{Key: key, Value: notNil(c.Value), Index: c.Index}, nil)
		}
	}
	t.cache.settle(t)
	t.ready()
}

// settle compares what there was at the start with the tables, now that they
// are loaded, so that only what differs is written. The caller holds the tree's
// lock.
func (c *cache) settle(t *Tree) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for path, was := range c.kept {
		f, key := t.at(path)
		if f != nil {
			if e, _, ok := f.rows.Get(key); ok {
				if e.Index == was.Index && bytes.Equal(e.Value, was.Value) {
					delete(c.dirty, path)
				}
				continue
			}
		}
		c.dirty[path] = nil
	}
	c.kept = nil
}

func (c *cache) put(path string, e Entry) { c.set(path, &cached{Value: e.Value, Index: e.Index}) }

func (c *cache) remove(path string) { c.set(path, nil) }

func (c *cache) set(path string, value *cached) {
	if c.bucket == nil {
		return
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.dirty[path] = value
	select {
	case c.wake <- struct{}{}:
	default:
	}
}

func (c *cache) mark() string {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.fleet
}

func (c *cache) setMark(fleet string) {
	c.mu.Lock()
	c.fleet = fleet
	c.mu.Unlock()
	c.set(markKey, &cached{Value: []byte(fleet)})
}

// run writes what is new, until the context ends and all is written.
func (c *cache) run(ctx context.Context) {
	if c.bucket == nil {
		return
	}
	wait := newBackoff()
	for {
		select {
		case <-ctx.Done():
			_ = c.flush() // the problem has been told; the rest is read again
			return
		case <-c.wake:
		}
		backoff.Sleep(ctx, flushEvery)
		if c.many() {
			backoff.Sleep(ctx, flushMany)
		}
		err := c.flush()
		if err == nil {
			c.status.setProblem("cache", vip.Problem{})
			wait.Reset()
			continue
		}
		var known *store.Error
		problem := vip.Problem{Code: vip.CodeStore, Message: "the last known tree can't be kept: " + err.Error()}
		if errors.As(err, &known) {
			problem = known.Problem
		}
		c.status.setProblem("cache", problem)
		backoff.Sleep(ctx, wait.Next())
		select {
		case c.wake <- struct{}{}:
		default:
		}
	}
}

// flushSize bounds one write to the disk.
const flushSize = 2000

// many reports whether there is more to write than goes into one write.
func (c *cache) many() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return len(c.dirty) > flushSize
}

func (c *cache) flush() error {
	for {
		c.mu.Lock()
		batch := make(map[string]*cached, min(len(c.dirty), flushSize))
		for path, value := range c.dirty {
			if len(batch) == flushSize {
				break
			}
			batch[path] = value
			delete(c.dirty, path)
		}
		c.mu.Unlock()
		if len(batch) == 0 {
			return nil
		}
		err := c.bucket.Batch(func(tx *store.Tx[cached]) {
			for path, value := range batch {
				if value == nil {
					tx.Delete(path)
				} else {
					tx.Put(path, *value)
				}
			}
		})
		if err != nil {
			c.mu.Lock()
			defer c.mu.Unlock()
			for path, value := range batch {
				if _, newer := c.dirty[path]; !newer {
					c.dirty[path] = value
				}
			}
			return err
		}
	}
}
