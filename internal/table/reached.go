package table

import (
	"context"
	"sync"

	"github.com/ironvip/ironvip/internal/wake"
)

// Reached is how far a reader of tables is: a growing revision that callers can wait for. The zero value
// is ready. Its methods may be called concurrently.
type Reached struct {
	mu      sync.Mutex
	rev     uint64
	changed wake.Broadcast
}

// Set raises the revision. An older one has no effect.
func (r *Reached) Set(rev uint64) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if rev <= r.rev {
		return
	}
	r.rev = rev
	r.changed.Send()
}

// Wait waits until rev is reached. It returns the context's error.
func (r *Reached) Wait(ctx context.Context, rev uint64) error {
	for {
		r.mu.Lock()
		if r.rev >= rev {
			r.mu.Unlock()
			return nil
		}
		changed := r.changed.Next()
		r.mu.Unlock()
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-changed:
		}
	}
}
