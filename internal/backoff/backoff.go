// Package backoff has the waits between retries: they end with a context and grow with each
// failure.
package backoff

import (
	"context"
	"math/rand/v2"
	"time"
)

// Sleep waits for d and returns true, or returns false when ctx ends. With a d of 0 or less, it
// only checks ctx.
func Sleep(ctx context.Context, d time.Duration) bool { return Nap(ctx, d, nil) }

// Nap is Sleep that also ends when early receives or is closed.
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

// Backoff returns the pauses after failures in a row. They double from Lo to Hi, with half of each
// as jitter, so that simultaneous failures don't retry at the same time. It is not safe for
// concurrent use.
type Backoff struct {
	Lo, Hi time.Duration
	now    time.Duration
}

// Next returns the next pause: at least half of Lo, at most Hi.
func (b *Backoff) Next() time.Duration {
	b.now = min(max(2*b.now, b.Lo), b.Hi)
	return b.now/2 + rand.N(b.now/2+1)
}

// Reset restarts at Lo, after a success.
func (b *Backoff) Reset() { b.now = 0 }
