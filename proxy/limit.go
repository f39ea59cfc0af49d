package proxy

import (
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"
)

// limit counts what is open against a bound.
type limit struct {
	most    atomic.Int64
	open    atomic.Int64
	refused atomic.Uint64
}

// take opens one more, or counts a refusal and reports false.
func (l *limit) take() bool {
	if l.open.Add(1) > l.most.Load() {
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
// few will do.
type budget struct{ connections, sessions, pipes, listeners int }

// share divides files descriptors of which listeners are listening: an eighth
// to pipes, and of the rest half of all to TCP and a quarter to UDP. Listeners
// beyond a sixteenth come out of what TCP and UDP have, up to three quarters of
// all. So a sixteenth is always left to the rest of the agent: its API has to
// answer when the proxy has too much to do.
func share(files uint64, listeners int) budget {
	n := int(min(files, 1<<24))
	traffic := n/4*3 - max(0, listeners-n/16)
	each := max(traffic/3, 1) // two descriptors a connection, one a session
	return budget{connections: each, sessions: each, pipes: max(n/16, 1), listeners: max(n/4*3, 1)}
}

// listens books a socket that is to listen, or refuses it when listeners have
// all descriptors that they may have; then it is as if there were none left.
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

// silenced takes back a listens.
func (t *Target) releaseListener() {
	t.files.Lock()
	defer t.files.Unlock()
	t.listening--
	t.divide()
}

// divide sets what connections and sessions may have. The caller holds files.
func (t *Target) divide() {
	b := share(t.rlimit, t.listening)
	t.connections.most.Store(int64(min(t.opts.MaxConnections, b.connections)))
	t.sessions.most.Store(int64(min(t.opts.MaxSessions, b.sessions)))
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

// roomFor is for how many descriptors there is room from the start, in 128 KiB of the
// kernel's memory.
const roomFor = 1 << 14

// makeRoom has the kernel make this process's table of descriptors as large as some
// thousand listeners need. Otherwise it doubles the table each time that it is
// full, and whoever opens a socket then waits until every processor has taken notice
// of the new one: 10 ms each time, as the process has several threads.
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
