package fleet

import (
	"context"

	"github.com/ironvip/ironvip/fleet/diskcache"
	"github.com/ironvip/ironvip/fleet/treekv"
	"github.com/ironvip/ironvip/vip"
)

// startFromCache loads the last known tree if Consul hasn't been read yet.
func (t *Tree) startFromCache() {
	t.mu.Lock()
	defer t.mu.Unlock()
	kept := t.cache.Kept()
	if t.loaded || t.prevented || t.cache.Mark() == "" {
		return
	}
	t.log.Warn("consul not read yet: starting with the last known tree", "values", len(kept))
	for path, c := range kept {
		if f, key := t.locate(path); f != nil {
			t.put(f, path, Entry{Key: key, Value: treekv.NotNil(c.Value), Index: c.Index}, nil)
		}
	}
	t.settleCache()
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

// settleCache has only differences between the cache and the loaded tables written. The caller holds
// mu.
func (t *Tree) settleCache() {
	t.cache.Settle(func(path string) (v diskcache.Value, ok bool) {
		f, key := t.locate(path)
		if f == nil {
			return v, false
		}
		e, _, ok := f.rows.Get(key)
		return diskcache.Value{Value: e.Value, Index: e.Index}, ok
	})
}

func (t *Tree) runCache(ctx context.Context) {
	t.cache.Run(ctx, func(p vip.Problem) { t.status.SetProblem("cache", p) })
}
