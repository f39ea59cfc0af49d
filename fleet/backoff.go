package fleet

import (
	"context"
	"math/rand/v2"
	"time"
)

// backoff is the wait after failures: 100 ms, doubled each time up to 10 s, of
// which the second half is drawn, so that the hosts of a fleet don't come back
// in step.
type backoff struct{ next time.Duration }

const (
	firstWait = 100 * time.Millisecond
	maxWait   = 10 * time.Second
)

func (b *backoff) reset() { b.next = 0 }

func (b *backoff) draw() time.Duration {
	b.next = min(max(2*b.next, firstWait), maxWait)
	return b.next/2 + rand.N(b.next/2)
}

// wait waits, no longer than until early has something, and reports whether the
// context is still on.
func (b *backoff) wait(ctx context.Context, early <-chan struct{}) bool {
	return sleep(ctx, b.draw(), early)
}

func sleep(ctx context.Context, d time.Duration, early <-chan struct{}) bool {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
	case <-early:
	case <-ctx.Done():
	}
	return ctx.Err() == nil
}
