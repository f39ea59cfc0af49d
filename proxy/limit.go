package proxy

import (
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"
)

// limit counts open items against a bound.
type limit struct {
	most    atomic.Int64
	open    atomic.Int64
	refused atomic.Uint64
}

// take counts one more item. Beyond the bound, it counts a refusal and returns false.
func (l *limit) take() bool {
	if l.open.Add(1) > l.most.Load() {
		l.open.Add(-1)
		l.refused.Add(1)
		return false
	}
	return true
}

func (l *limit) give() { l.open.Add(-1) }

// throttle allows one message per second, for errors that a flood of clients could repeat.
type throttle struct{ next atomic.Int64 }

func (t *throttle) pass(now int64) bool {
	next := t.next.Load()
	return now >= next && t.next.CompareAndSwap(next, now+int64(time.Second))
}

// budget divides the process's file descriptors: a TCP connection needs two, a UDP session one, a
// pipe two. Pipes are held only during a transfer (see splice.go), and a copy without one uses a
// buffer, so few pipes are enough.
type budget struct{ connections, sessions, pipes, listeners int }

// share divides the descriptors: an eighth for pipes, half for TCP connections and a quarter for
// UDP sessions. listeners is the number in use. Listeners beyond a sixteenth reduce the parts of
// TCP and UDP, up to three quarters of all. A sixteenth always remains for the rest of the agent,
// so that its API answers when the proxy is overloaded.
func share(files uint64, listeners int) budget {
	n := int(min(files, 1<<24))
	traffic := n/4*3 - max(0, listeners-n/16)
	each := max(traffic/3, 1) // two descriptors a connection, one a session
	return budget{connections: each, sessions: each, pipes: max(n/16, 1), listeners: max(n/4*3, 1)}
}

// reserveListener reserves the descriptor of a listening socket. It fails like an exhausted process
// if listeners have used their part.
func (t *Target) reserveListener() error {
	t.files.Lock()
	defer t.files.Unlock()
	if t.listening >= share(t.rlimit, 0).listeners {
		return unix.EMFILE
	}
	t.listening++
	t.divide()
	return nil
}

// releaseListener reverts reserveListener.
func (t *Target) releaseListener() {
	t.files.Lock()
	defer t.files.Unlock()
	t.listening--
	t.divide()
}

// divide sets the bounds of connections and sessions. The caller holds files.
func (t *Target) divide() {
	b := share(t.rlimit, t.listening)
	t.connections.most.Store(int64(min(t.opts.MaxConnections, b.connections)))
	t.sessions.most.Store(int64(min(t.opts.MaxSessions, b.sessions)))
}

// openFiles returns RLIMIT_NOFILE, which the Go runtime has raised to its hard limit.
func openFiles() uint64 {
	var r unix.Rlimit
	if err := unix.Getrlimit(unix.RLIMIT_NOFILE, &r); err != nil {
		return 1024
	}
	return r.Cur
}

// roomFor is the initial size of the descriptor table: 128 KiB of the kernel's memory.
const roomFor = 1 << 14

// makeRoom makes the kernel enlarge this process's descriptor table for some thousand listeners.
// Otherwise, the kernel doubles a full table, and the opener of a socket waits until every
// processor has noticed: 10 ms each time in a process with several threads.
func makeRoom() {
	fd, err := unix.Eventfd(0, unix.EFD_CLOEXEC)
	if err != nil {
		return
	}
	defer unix.Close(fd)
	if high, err := unix.FcntlInt(uintptr(fd), unix.F_DUPFD_CLOEXEC, int(min(roomFor, openFiles()))-1); err == nil {
		unix.Close(high)
	}
}
