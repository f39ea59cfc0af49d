package pipeline

import "time"

// Waits between two tries of what a store refused.
const (
	minBackoff = 100 * time.Millisecond
	maxBackoff = 10 * time.Second
)

// backoff paces the tries of a loop with a wait that doubles. It belongs to one
// goroutine. Select on C and call ring when it delivers.
type backoff struct {
	timer *time.Timer
	armed bool
	rang  bool
	tries int
}

// newBackoff returns a backoff that doesn't ring before it is set.
func newBackoff() *backoff {
	b := &backoff{timer: time.NewTimer(maxBackoff)}
	b.timer.Stop()
	return b
}

// C delivers when it is time for another try.
func (b *backoff) C() <-chan time.Time { return b.timer.C }

// ring notes that C has delivered.
func (b *backoff) ring() { b.armed, b.rang = false, true }

// due reports, once, that it is time for another try.
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

// set says whether anything is left to be tried again. Saying so twice doesn't
// put off the next try.
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

// failing reports whether anything was left at the last set.
func (b *backoff) failing() bool { return b.tries > 0 }

func (b *backoff) stop() { b.timer.Stop() }
