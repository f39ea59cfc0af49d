package fleet

import (
	"context"
	"fmt"

	"github.com/ironvip/ironvip/internal/fleet/consulkv"
	"github.com/ironvip/ironvip/internal/fleet/treelog"
)

// Look reads one key into the folder's table, with everything that was written before the call. It
// returns within 20 seconds, as Commit does. The error wraps ErrUnavailable.
func (t *Tree) Look(ctx context.Context, folder, key string) error {
	ctx, cancel := context.WithTimeout(ctx, commitTimeout)
	defer cancel()
	// Not during a full read that replaces the tables: this value may be older.
	if err := t.reading.take(ctx); err != nil {
		return fmt.Errorf("%w: %w", ErrUnavailable, err)
	}
	defer t.reading.give()
	defer t.lookUp()()
	c, err := t.get(ctx, folder+"/"+key)
	if err != nil {
		return fmt.Errorf("%w: %w", ErrUnavailable, err)
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	t.apply(c)
	return nil
}

// lookUp keeps tombstones until end is called, after a read of single keys was applied.
func (t *Tree) lookUp() (end func()) {
	count := func(n int) {
		t.mu.Lock()
		defer t.mu.Unlock()
		t.lookups += n
	}
	count(1)
	return func() { count(-1) }
}

// get reads one path of the tree.
func (t *Tree) get(ctx context.Context, path string) (treelog.Change, error) {
	ctx, cancel := context.WithTimeout(ctx, consulkv.CallTimeout)
	defer cancel()
	pair, index, err := t.o.KV.Get(ctx, t.paths.tree+path, consulkv.Query{Consistent: true})
	switch {
	case err != nil:
		return treelog.Change{}, err
	case pair == nil:
		return treelog.Change{Path: path, Index: index}, nil
	}
	return treelog.Change{Path: path, Index: pair.Index, Value: notNil(pair.Value)}, nil
}

// notNil distinguishes an empty value from a removal.
func notNil(b []byte) []byte {
	if b == nil {
		return []byte{}
	}
	return b
}
