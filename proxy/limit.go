package proxy

import (
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"
)

// limit counts what is open against a bound.
type limit struct {
	most    int64
	open    atomic.Int64
	refused atomic.Uint64
}

// take opens one more, or counts a refusal and reports false.
func (l *limit) take() bool {
	if l.open.Add(1) > l.most {
		l.open.Add(-1)
		l.refused.Add(1)
		return false
	}
	return true
}

func (l *limit) give() { l.open.Add(-1) }

// throttle lets one message through a second, for what a flood of clients could
// repeat without end.
type throttle struct{ next atomic.Int64 }

func (t *throttle) pass(now int64) bool {
	next := t.next.Load()
	return now >= next && t.next.CompareAndSwap(next, now+int64(time.Second))
}

// budget is how the process' descriptors are divided: a TCP connection needs
// two, a UDP session one, a pipe two. Pipes are held only while bytes are on
// their way (see splice.go), and a copy without one goes through a buffer, so
// few will do. An eighth is left to listeners and the rest of the agent.
type budget struct{ connections, sessions, pipes int }

// share divides files descriptors: half to TCP, a quarter to UDP, an eighth to
// pipes.
func share(files uint64) budget {
	n := int(min(files, 1<<24))
	return budget{connections: max(n/4, 1), sessions: max(n/4, 1), pipes: max(n/16, 1)}
}

// openFiles returns RLIMIT_NOFILE, which the Go runtime has raised to its hard
// limit.
func openFiles() uint64 {
	var r unix.Rlimit
	if err := unix.Getrlimit(unix.RLIMIT_NOFILE, &r); err != nil {
		return 1024
	}
	return r.Cur
}
