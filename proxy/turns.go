package proxy

import (
	"sync/atomic"
	"time"
)

// turns shows whether a loop works: the loop notes each of its turns. begin must return before the loop starts.
type turns struct {
	began time.Time    // on the monotonic clock, so a step of the host's clock doesn't look like a loop that hangs
	last  atomic.Int64 // nanoseconds since began
}

// longestTurn is how long a loop without work waits until its next turn.
const longestTurn = time.Second

func (t *turns) begin() { t.began = time.Now() }

func (t *turns) note() { t.last.Store(int64(time.Since(t.began))) }

// at returns the time of the last turn. It does not wait for a turn that hangs.
func (t *turns) at() time.Time { return t.began.Add(time.Duration(t.last.Load())) }
