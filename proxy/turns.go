package proxy

import (
	"sync/atomic"
	"time"
)

// turns shows whether a loop works: the loop notes each of its turns. begin must return before the loop
// starts. A goroutine that only begins with a piece of work, and ends after it, is not expected to make turns
// while it waits. One goroutine at a time may call begin and end. The zero value is that of a loop that has not begun.
type turns struct {
	began time.Time    // on the monotonic clock, so a step of the host's clock doesn't look like a loop that hangs
	last  atomic.Int64 // nanoseconds since began, at least 1; 0: not begun
}

// longestTurn is how long a loop without work waits until its next turn.
const longestTurn = time.Second

func (t *turns) begin() {
	if t.began.IsZero() { // at may read it otherwise
		t.began = time.Now()
	}
	t.note()
}

// end means that the loop has ended. It may begin again.
func (t *turns) end() { t.last.Store(0) }

func (t *turns) note() { t.last.Store(max(int64(time.Since(t.began)), 1)) }

// at returns the time of the last turn, and zero if the loop has not begun. It does not wait for a turn
// that hangs.
func (t *turns) at() time.Time {
	last := t.last.Load()
	if last == 0 {
		return time.Time{}
	}
	return t.began.Add(time.Duration(last))
}
