package table

import (
	"context"
	"sync"
)

// Reached is how far a reader of tables is: a growing revision that callers can wait for. The zero value
// is ready. Its methods may be called concurrently.
type Reached struct {
	mu      sync.Mutex
	rev     uint64
	changed chan struct{} // closed at the next change; nil without waiters
}

// Set raises the revision. An older one has no effect.
func (r *Reached) Set(rev uint64) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if rev <= r.rev {
		return
	}
	r.rev = rev
	if r.changed != nil {
		close(r.changed)
		r.changed = nil
	}
}

// Wait waits until rev is reached. It returns the context's error.
func (r *Reached) Wait(ctx context.Context, rev uint64) error {
	for {
		r.mu.Lock()
		if r.rev >= rev {
			r.mu.Unlock()
			return nil
		}
		if r.changed == nil {
			r.changed = make(chan struct{})
		}
		changed := r.changed
		r.mu.Unlock()
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-changed:
		}
	}
}
