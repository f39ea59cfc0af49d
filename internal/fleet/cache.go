package fleet

import (
	"bytes"
	"context"
	"errors"
	"sync"
	"time"

	"github.com/ironvip/ironvip/internal/backoff"
	"github.com/ironvip/ironvip/internal/fleet/consulkv"
	"github.com/ironvip/ironvip/internal/store"
	"github.com/ironvip/ironvip/vip"
)

// flushEvery delays writes to the cache, and flushMany delays them further if a whole tree is new:
// a starting agent needs its processors for other work.
const (
	flushEvery = time.Second
	flushMany  = 5 * time.Second
)

// cached is one value of the bucket: an entry under its path, or the mark.
type cached struct {
	Value []byte `json:"value"`
	Index uint64 `json:"index,omitempty"`
}

// markKey is the key of the mark. No folder's name begins with a dot.
const markKey = ".mark"

// cache is the last known tree on this host's disk, for a start without Consul. Writes are
// asynchronous: nothing waits for them, and missing ones are read from Consul again.
type cache struct {
	bucket *store.Bucket[cached] // nil without a cache
	status *status
	wake   chan struct{}

	mu    sync.Mutex
	dirty map[string]*cached // a nil value is a removal
	fleet string             // the mark of the tree it holds; "" for none
	kept  map[string]cached  // the content at the start, until the tree is loaded
}

func newCache(db *store.DB) *cache {
	c := &cache{dirty: map[string]*cached{}, wake: make(chan struct{}, 1)}
	if db != nil {
		c.bucket = store.NewBucket[cached](db, "fleet")
	}
	return c
}

// open reads the cache.
func (c *cache) open(t *Tree) {
	c.status = t.status
	if c.bucket == nil {
		return
	}
	all, err := c.bucket.All()
	if err != nil {
		t.log.Warn("cache incomplete: some of the last known tree can't be read", "err", err)
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.fleet = string(all[markKey].Value)
	delete(all, markKey)
	c.kept = all
}

// startFromCache loads the last known tree if Consul hasn't been read yet.
func (t *Tree) startFromCache() {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.cache.mu.Lock()
	kept, known := t.cache.kept, t.cache.fleet != ""
	t.cache.mu.Unlock()
	if t.loaded || t.prevented || !known {
		return
	}
	t.log.Warn("consul not read yet: starting with the last known tree", "values", len(kept))
	for path, c := range kept {
		if f, key := t.locate(path); f != nil {
			t.put(f, path, Entry{Key: key, Value: notNil(c.Value), Index: c.Index}, nil)
		}
	}
	t.cache.settle(t)
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

// settle compares the content at the start with the loaded tables, so that only differences are
// written. The caller holds the tree's lock.
func (c *cache) settle(t *Tree) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for path, was := range c.kept {
		f, key := t.locate(path)
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

// run writes changes until the context ends, and then those that are left.
func (c *cache) run(ctx context.Context) {
	if c.bucket == nil {
		return
	}
	wait := consulkv.NewBackoff()
	for {
		select {
		case <-ctx.Done():
			_ = c.flush() // what is lost is read from Consul again
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
		problem := vip.Problem{Code: vip.CodeStore, Message: "cache not written: " + err.Error()}
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

// many reports whether there is more than one write's worth of changes.
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
