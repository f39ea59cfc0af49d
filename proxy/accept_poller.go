package proxy

import (
	"errors"
	"os"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// acceptPoller waits for the first client of each listening socket, TCP or UDP, in one goroutine. Only
// when its first client arrives, a TCP listener gets a place in a loop, and a UDP listener its own
// goroutine, with a stack of 4 KB. Most of thousands of listeners never need that. The zero value is
// ready. Its methods may be called concurrently.
type acceptPoller struct {
	mu      sync.Mutex
	epoll   *os.File // nil before the first wait. It contains the listeners, and Go's own poller polls it
	fd      int      // of epoll
	waiting map[uint64]func()
	last    uint64 // last key of waiting; keys are not reused, unlike descriptors
	closed  bool
	held    chan struct{} // closed when clients may be accepted; nil: from the beginning
	turns   turns         // of run
	watch   sync.WaitGroup
}

// release ends the time in which no client is accepted.
func (d *acceptPoller) release() {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.held != nil {
		select {
		case <-d.held:
		default:
			close(d.held)
		}
	}
}

// wait calls ready once, when a client of l arrives or l fails. ready must not block. The ticket is
// for cancel.
func (d *acceptPoller) wait(l syscall.Conn, ready func()) (ticket uint64, err error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if err := d.open(); err != nil {
		return 0, err
	}
	socket, err := l.SyscallConn()
	if err != nil {
		return 0, err
	}
	d.last++
	// After the first event (one-shot), the listener's loop or goroutine accepts. The kernel removes a
	// socket from the set when it is closed.
	event := unix.EpollEvent{Events: unix.EPOLLIN | unix.EPOLLONESHOT, Fd: int32(d.last), Pad: int32(d.last >> 32)}
	var failed error
	if err := socket.Control(func(fd uintptr) { failed = unix.EpollCtl(d.fd, unix.EPOLL_CTL_ADD, int(fd), &event) }); err != nil {
		return 0, err
	}
	if failed != nil {
		return 0, os.NewSyscallError("epoll_ctl", failed)
	}
	d.waiting[d.last] = ready
	return d.last, nil
}

// cancel ends a wait. Its function is not called after cancel returns.
func (d *acceptPoller) cancel(ticket uint64) {
	d.mu.Lock()
	defer d.mu.Unlock()
	delete(d.waiting, ticket)
}

// open starts the poller at its first use. The caller holds mu.
func (d *acceptPoller) open() error {
	switch {
	case d.closed:
		return errClosed
	case d.epoll != nil:
		return nil
	}
	fd, err := unix.EpollCreate1(unix.EPOLL_CLOEXEC)
	if err != nil {
		return os.NewSyscallError("epoll_create1", err)
	}
	if err := unix.SetNonblock(fd, true); err != nil { // required by Go's poller
		unix.Close(fd)
		return os.NewSyscallError("fcntl", err)
	}
	epoll := os.NewFile(uintptr(fd), "listeners")
	raw, err := epoll.SyscallConn()
	if err != nil {
		epoll.Close()
		return err
	}
	d.epoll, d.fd, d.waiting = epoll, fd, make(map[uint64]func())
	d.turns.begin()
	d.watch.Go(func() { d.run(raw) })
	return nil
}

// run calls the functions of ready listeners until epoll is closed.
func (d *acceptPoller) run(epoll syscall.RawConn) {
	if d.held != nil {
		<-d.held
	}
	events := make([]unix.EpollEvent, 128)
	for {
		n := 0
		_ = d.epoll.SetReadDeadline(time.Now().Add(longestTurn)) // fails only once epoll is closed
		if err := epoll.Read(func(fd uintptr) bool {
			n, _ = unix.EpollWait(int(fd), events, 0)
			return n > 0
		}); err != nil && !errors.Is(err, os.ErrDeadlineExceeded) {
			return
		}
		d.mu.Lock()
		d.turns.note()
		for _, e := range events[:n] {
			ticket := uint64(uint32(e.Fd)) | uint64(uint32(e.Pad))<<32
			if ready := d.waiting[ticket]; ready != nil {
				delete(d.waiting, ticket)
				ready()
			}
		}
		d.mu.Unlock()
	}
}

// close ends the poller. No function is called after close returns.
func (d *acceptPoller) close() {
	d.release()
	d.mu.Lock()
	d.closed = true
	clear(d.waiting)
	if d.epoll != nil {
		d.epoll.Close()
	}
	d.mu.Unlock()
	d.watch.Wait()
}
