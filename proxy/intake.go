package proxy

import (
	"errors"
	"net/netip"
	"os"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/ironvip/ironvip/internal/backoff"
)

// intake takes what arrives at a listening socket, clients of TCP or datagrams, in a loop. Its methods may be
// called concurrently.
type intake struct {
	raw    syscall.RawConn
	socket *socket    // the listening socket, which the intake doesn't close
	loop   *eventLoop // nil before start
	ended  atomic.Bool

	take   func() error // takes one client or datagram, or returns EAGAIN without one. It must not block
	failed func(error)  // called with an error that passes
	died   func(error)  // called with the last error

	taking sync.Mutex // held while something is taken
	pause  backoff.Backoff
	resume time.Time // nothing is taken before
}

// takenPerTurn bounds what is taken before the loop's connections have their turn.
const takenPerTurn = 64

func newIntake(of syscall.Conn, failed, died func(error)) (*intake, error) {
	raw, err := of.SyscallConn()
	if err != nil {
		return nil, err
	}
	return &intake{raw: raw, failed: failed, died: died, pause: newBackoff()}, nil
}

// newAcceptor returns the intake of a TCP listener. It calls welcome with each client, which must not block.
func newAcceptor(of syscall.Conn, welcome func(client *socket, peer netip.AddrPort), failed, died func(error)) (*intake, error) {
	in, err := newIntake(of, failed, died)
	if err != nil {
		return nil, err
	}
	if err := in.raw.Control(func(fd uintptr) { prepare(int(fd)) }); err != nil {
		return nil, err
	}
	inherits := false // clients have the options of the listener: those before may have arrived before these were set
	in.take = func() (err error) {
		var client int
		var peer unix.Sockaddr
		if closed := in.raw.Control(func(fd uintptr) {
			client, peer, err = unix.Accept4(int(fd), unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK)
		}); closed != nil {
			return closed
		}
		switch {
		case errors.Is(err, unix.EAGAIN):
			inherits = true
			return err
		case err != nil:
			return os.NewSyscallError("accept", err)
		case !inherits:
			prepare(client)
		}
		welcome(newSocket(client), addrPortOf(peer))
		return nil
	}
	return in, nil
}

// newReceiver returns the intake of an unconnected UDP socket. It calls deliver with each datagram and its control
// messages. Deliver must not block, and must not keep them.
func newReceiver(of syscall.Conn, deliver func(client netip.AddrPort, data, control []byte), failed, died func(error)) (*intake, error) {
	in, err := newIntake(of, failed, died)
	if err != nil {
		return nil, err
	}
	in.take = func() (err error) {
		buf := datagrams.Get().(*[maxDatagram]byte)
		defer datagrams.Put(buf)
		var control [128]byte
		var n, room int
		var client unix.Sockaddr
		if closed := in.raw.Control(func(fd uintptr) {
			n, room, _, client, err = unix.Recvmsg(int(fd), buf[:], control[:], 0)
		}); closed != nil {
			return closed
		}
		if err != nil {
			return os.NewSyscallError("recvmsg", err)
		}
		deliver(addrPortOf(client), buf[:n], control[:room])
		return nil
	}
	return in, nil
}

// start begins to take what arrives, and what has arrived before.
func (in *intake) start(loops *eventLoops) error {
	loop, err := loops.pick()
	if err != nil {
		return err
	}
	if closed := in.raw.Control(func(fd uintptr) {
		in.loop, in.socket = loop, newSocket(int(fd))
		if err = loop.add(in.socket, in); err != nil {
			in.loop = nil
		}
	}); closed != nil {
		return closed
	}
	return err
}

// ready implements watcher.
func (in *intake) ready(*socket, uint32) {
	in.taking.Lock()
	defer in.taking.Unlock()
	if time.Now().Before(in.resume) {
		return
	}
	switch err := in.takeAll(); {
	case err == nil, in.ended.Load():
	case passes(err):
		in.failed(err)
		wait := in.pause.Next()
		in.resume = time.Now().Add(wait)
		time.AfterFunc(wait, in.again)
	default:
		in.stop()
		in.died(err)
	}
}

// takeAll takes all that has arrived. Clients left at its bound are an event after those of other sockets.
func (in *intake) takeAll() error {
	for range takenPerTurn {
		if in.ended.Load() {
			return nil
		}
		switch err := in.take(); {
		case errors.Is(err, unix.EAGAIN):
			return nil
		case err != nil:
			return err
		}
		in.pause.Reset()
	}
	in.again()
	return nil
}

// again reports what has arrived as an event.
func (in *intake) again() {
	_ = in.raw.Control(func(uintptr) { in.loop.again(in.socket) })
}

// stop removes the listening socket from the loop. Closing it would not: another process may have it. It may be
// called before start.
func (in *intake) stop() {
	if in.ended.Swap(true) || in.loop == nil {
		return
	}
	_ = in.raw.Control(func(fd uintptr) { _ = unix.EpollCtl(in.loop.fd, unix.EPOLL_CTL_DEL, int(fd), nil) })
	in.loop.forget(in.socket)
}

// halt is stop, and returns when nothing is taken any more.
func (in *intake) halt() {
	in.stop()
	in.taking.Lock()
	defer in.taking.Unlock()
}
