// Package backoff has the waits of those who try again: they end with a context,
// and they grow from one failure to the next.
package backoff

import (
	"context"
	"math/rand/v2"
	"time"
)

// Sleep waits for d, and reports whether it was let: false says that the context
// has ended. With a d of 0 or less it only looks at the context.
func Sleep(ctx context.Context, d time.Duration) bool { return Nap(ctx, d, nil) }

// Nap is Sleep that also ends when early delivers or is closed.
func Nap(ctx context.Context, d time.Duration, early <-chan struct{}) bool {
	if d <= 0 {
		return ctx.Err() == nil
	}
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-ctx.Done():
		return false
	case <-timer.C:
	case <-early:
	}
	return true
}

// Backoff gives the pauses after failures in a row. Each doubles, from Lo to Hi,
// and half of it is drawn, so that those who failed together don't come back
// together. It belongs to one goroutine.
type Backoff struct {
	Lo, Hi time.Duration
	now    time.Duration
}

// Next returns the next pause: at least half of Lo, at most Hi.
func (b *Backoff) Next() time.Duration {
	b.now = min(max(2*b.now, b.Lo), b.Hi)
	return b.now/2 + rand.N(b.now/2+1)
}

// Reset begins anew, after a success.
func (b *Backoff) Reset() { b.now = 0 }
