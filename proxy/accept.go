package proxy

import (
	"net"
	"net/netip"
	"os"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/ironvip/ironvip/internal/backoff"
)

// acceptor accepts the clients of a listening socket, in a loop. Its methods may be called
// concurrently.
type acceptor struct {
	loops   *eventLoops
	raw     syscall.RawConn
	stats   *counters
	welcome func(client *socket, peer netip.AddrPort) // must not block
	failed  func(error)                               // called with an error that passes
	died    func(error)                               // called with the last error

	mu       sync.Mutex // held while clients are accepted
	socket   *socket    // the listening socket, which the acceptor doesn't close
	inherits bool       // see accept
	pause    backoff.Backoff
	paused   bool        // until retry; events don't end the pause
	retry    *time.Timer // ends the pause
	ended    bool
}

// acceptsPerTurn bounds the clients that are accepted before the loop's connections have their turn.
const acceptsPerTurn = 64

// start begins to accept the clients of l. Those that have arrived before are accepted, too. It returns
// an error that doesn't pass.
func (a *acceptor) start(loops *eventLoops, l *net.TCPListener) (err error) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.raw, err = l.SyscallConn(); err != nil {
		return err
	}
	if err := a.raw.Control(func(fd uintptr) {
		prepare(int(fd)) // clients that arrive from now on inherit the options
		a.socket = newSocket(int(fd))
	}); err != nil {
		return err
	}
	a.loops, a.pause = loops, newBackoff()
	return a.try(a.register)
}

// ready implements watcher.
func (a *acceptor) ready(*socket, uint32) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if !a.paused {
		a.run(a.accept)
	}
}

// resume ends a pause.
func (a *acceptor) resume(step func() error) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.paused = false
	a.run(step)
}

// run takes a step, and reports an error that doesn't pass. The caller holds mu.
func (a *acceptor) run(step func() error) {
	if a.ended {
		return
	}
	if err := a.try(step); err != nil {
		a.died(err)
	}
}

// try takes a step, and takes it again after a pause if it fails with an error that passes. It returns
// any other error, and then nothing more is accepted. The caller holds mu.
func (a *acceptor) try(step func() error) error {
	err := step()
	switch {
	case err == nil:
	case passes(err):
		a.failed(err)
		a.paused = true
		a.retry = time.AfterFunc(a.pause.Next(), func() { a.resume(step) })
	default:
		a.end()
		return err
	}
	return nil
}

// register adds the listening socket to a loop, for which clients that have arrived are an event.
func (a *acceptor) register() error {
	loop, err := a.loops.pick()
	if err != nil {
		return err
	}
	if closed := a.raw.Control(func(uintptr) { err = loop.add(a.socket, a) }); closed != nil {
		return closed
	}
	return err
}

// accept accepts all clients that have arrived.
func (a *acceptor) accept() error {
	for range acceptsPerTurn {
		client, peer, err := a.next()
		switch {
		case err == unix.EAGAIN: //nolint:errorlint // an errno
			a.inherits = true
			return nil
		case err != nil:
			return os.NewSyscallError("accept", err)
		}
		a.pause.Reset()
		if !a.inherits { // it may have arrived before start
			prepare(client)
		}
		a.stats.accepted.Add(1)
		a.welcome(newSocket(client), addrPortOf(peer))
	}
	a.socket.loop.again(a.socket)
	return nil
}

// next returns the next client, or EAGAIN without one.
func (a *acceptor) next() (client int, peer unix.Sockaddr, err error) {
	if closed := a.raw.Control(func(fd uintptr) {
		client, peer, err = unix.Accept4(int(fd), unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK)
	}); closed != nil {
		return 0, nil, closed
	}
	return client, peer, err
}

// stop ends accepting. No client is welcomed afterwards.
func (a *acceptor) stop() {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.end()
}

// end removes the listening socket from the loop. Closing it would not: another process may have it.
func (a *acceptor) end() {
	if a.ended {
		return
	}
	a.ended = true
	if a.retry != nil {
		a.retry.Stop()
	}
	if l := a.socket.loop; l != nil {
		_ = a.raw.Control(func(fd uintptr) { _ = unix.EpollCtl(l.fd, unix.EPOLL_CTL_DEL, int(fd), nil) })
		l.forget(a.socket)
	}
}
