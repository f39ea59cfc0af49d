// Package diskcache keeps the last known tree of a fleet on this host's disk, for a start without
// Consul. It knows nothing of what the values mean.
package diskcache

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

// flushEvery delays writes to the cache, and flushMany delays them further if a whole tree is new:
// a starting agent needs its processors for other work.
const (
	flushEvery = time.Second
	flushMany  = 5 * time.Second
)

// Value is one value of the tree, under its path.
type Value struct {
	Value []byte `json:"value"`
	Index uint64 `json:"index,omitempty"`
}

// markKey is the key of the mark. No folder's name begins with a dot.
const markKey = ".mark"

// Cache is the last known tree on this host's disk. Writes are asynchronous: nothing waits for them,
// and missing ones are read from Consul again. It is safe for concurrent use.
type Cache struct {
	bucket *store.Bucket[Value] // nil without a cache
	wake   chan struct{}

	mu    sync.Mutex
	dirty map[string]*Value // a nil value is a removal
	fleet string            // the mark of the tree it holds; "" for none
	kept  map[string]Value  // the content at the start, until the tree is loaded
}

// New returns the cache in a state file, or with nil one that keeps nothing.
func New(db *store.DB) *Cache {
	c := &Cache{dirty: map[string]*Value{}, wake: make(chan struct{}, 1)}
	if db != nil {
		c.bucket = store.NewBucket[Value](db, "fleet")
	}
	return c
}

// Open reads the cache. After an error, it has what could be read. It is called once.
func (c *Cache) Open() error {
	if c.bucket == nil {
		return nil
	}
	all, err := c.bucket.All()
	c.mu.Lock()
	defer c.mu.Unlock()
	c.fleet = string(all[markKey].Value)
	delete(all, markKey)
	c.kept = all
	return err
}

// Kept returns the content at the start, by path, until Settle. It must not be changed.
func (c *Cache) Kept() map[string]Value {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.kept
}

// Settle compares the content at the start with the tree, so that only differences are written. Now
// returns the tree's value of a path.
func (c *Cache) Settle(now func(path string) (v Value, ok bool)) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for path, was := range c.kept {
		v, ok := now(path)
		switch {
		case !ok:
			c.dirty[path] = nil
		case v.Index == was.Index && bytes.Equal(v.Value, was.Value):
			delete(c.dirty, path)
		}
	}
	c.kept = nil
}

// Put writes a value, soon.
func (c *Cache) Put(path string, v Value) { c.set(path, &v) }

// Remove removes a value, soon.
func (c *Cache) Remove(path string) { c.set(path, nil) }

func (c *Cache) set(path string, value *Value) {
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

// Mark returns the name of the fleet whose tree the cache has, or "" if it has none.
func (c *Cache) Mark() string {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.fleet
}

// SetMark sets it.
func (c *Cache) SetMark(fleet string) {
	c.mu.Lock()
	c.fleet = fleet
	c.mu.Unlock()
	c.set(markKey, &Value{Value: []byte(fleet)})
}

// Run writes changes until the context ends, and then those that are left. Report receives the
// problem of a write that has failed, and the zero Problem after one that has succeeded.
func (c *Cache) Run(ctx context.Context, report func(vip.Problem)) {
	if c.bucket == nil {
		return
	}
	wait := backoff.Backoff{Lo: 100 * time.Millisecond, Hi: 10 * time.Second}
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
			report(vip.Problem{})
			wait.Reset()
			continue
		}
		var known *store.Error
		problem := vip.Problem{Code: vip.CodeStore, Message: "cache not written: " + err.Error()}
		if errors.As(err, &known) {
			problem = known.Problem
		}
		report(problem)
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
func (c *Cache) many() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return len(c.dirty) > flushSize
}

func (c *Cache) flush() error {
	for {
		c.mu.Lock()
		batch := make(map[string]*Value, min(len(c.dirty), flushSize))
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
		err := c.bucket.Batch(func(tx *store.Tx[Value]) {
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
