package fleet

import (
	"context"
	"fmt"
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
	c, err := t.store.Value(ctx, folder+"/"+key)
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
