package pipeline

import "time"

// Bounds of the wait before a retry of what a store rejected.
const (
	minBackoff = 100 * time.Millisecond
	maxBackoff = 10 * time.Second
)

// backoff paces the retries of a loop with a wait that doubles. One goroutine owns it. The owner
// selects on C and calls ring when C delivers.
type backoff struct {
	timer *time.Timer
	armed bool
	rang  bool
	tries int
}

// newBackoff returns a backoff that delivers nothing before set is called.
func newBackoff() *backoff {
	b := &backoff{timer: time.NewTimer(maxBackoff)}
	b.timer.Stop()
	return b
}

// C delivers when the next retry is due.
func (b *backoff) C() <-chan time.Time { return b.timer.C }

// ring records that C has delivered.
func (b *backoff) ring() { b.armed, b.rang = false, true }

// due reports, once, that the next retry is due.
func (b *backoff) due() bool {
	select {
	case <-b.timer.C:
		b.ring()
	default:
	}
	was := b.rang
	b.rang = false
	return was
}

// set states whether anything remains to be retried. A repeated call doesn't postpone the next
// retry.
func (b *backoff) set(failing bool) {
	if !failing {
		b.timer.Stop()
		b.armed, b.tries = false, 0
		return
	}
	if b.armed {
		return
	}
	wait := maxBackoff
	if b.tries < 7 { // 100 ms times 2^7 is above the bound
		wait = min(wait, minBackoff<<b.tries)
	}
	b.tries++
	b.armed = true
	b.timer.Reset(wait)
}

// failing reports whether anything remained at the last set.
func (b *backoff) failing() bool { return b.tries > 0 }

func (b *backoff) stop() { b.timer.Stop() }
