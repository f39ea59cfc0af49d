package pipeline

import "time"

// Bounds of the wait before a retry of what a store rejected.
const (
	minBackoff = 100 * time.Millisecond
	maxBackoff = 10 * time.Second
)

// backoff paces the retries of a loop with a wait that doubles. One goroutine owns it. It selects on
// C and then checks due.
type backoff struct {
	timer *time.Timer
	next  time.Time     // of the next retry; zero: none is scheduled
	wait  time.Duration // before the next retry or, without one, before the last; 0: nothing fails
}

// newBackoff returns a backoff that delivers nothing before set is called.
func newBackoff() *backoff {
	b := &backoff{timer: time.NewTimer(maxBackoff)}
	b.timer.Stop()
	return b
}

// C delivers when the next retry is due.
func (b *backoff) C() <-chan time.Time { return b.timer.C }

// due reports, once, that the next retry is due.
func (b *backoff) due() bool {
	if b.next.IsZero() || time.Now().Before(b.next) {
		return false
	}
	b.next = time.Time{}
	return true
}

// set states whether anything remains to be retried. A repeated call doesn't postpone the next
// retry.
func (b *backoff) set(failing bool) {
	switch {
	case !failing:
		b.timer.Stop()
		b.next, b.wait = time.Time{}, 0
	case b.next.IsZero():
		b.wait = min(max(2*b.wait, minBackoff), maxBackoff)
		b.next = time.Now().Add(b.wait)
		b.timer.Reset(b.wait)
	}
}

// failing reports whether anything remained at the last set.
func (b *backoff) failing() bool { return b.wait > 0 }
