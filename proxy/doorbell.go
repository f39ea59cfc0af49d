package proxy

import (
	"os"
	"sync"
	"syscall"

	"golang.org/x/sys/unix"
)

// doorbell waits for the first client of each listening socket, TCP or UDP, with one
// goroutine for all of them. So one gets a goroutine of its own once somebody has come, and
// most of thousands never do: their stacks are 4 KB each. The zero value is
// ready; its methods may be called by any goroutine.
type doorbell struct {
	mu      sync.Mutex
	epoll   *os.File // nil: nobody has waited yet. In it are the listeners; Go's own poller watches over it
	fd      int      // of epoll
	waiting map[uint64]func()
	last    uint64 // key of waiting, never used again: descriptors are
	closed  bool
	watch   sync.WaitGroup
}

// wait calls answer once, when a client of l has come, or l has broken. Answer
// mustn't block. The ticket is for leave.
func (d *doorbell) wait(l syscall.Conn, answer func()) (ticket uint64, err error) {
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
	// One shot: from then on it is the listener's own goroutine that is told. The
	// kernel takes a socket out when it is closed.
	event := unix.EpollEvent{Events: unix.EPOLLIN | unix.EPOLLONESHOT, Fd: int32(d.last), Pad: int32(d.last >> 32)}
	var failed error
	if err := socket.Control(func(fd uintptr) { failed = unix.EpollCtl(d.fd, unix.EPOLL_CTL_ADD, int(fd), &event) }); err != nil {
		return 0, err
	}
	if failed != nil {
		return 0, os.NewSyscallError("epoll_ctl", failed)
	}
	d.waiting[d.last] = answer
	return d.last, nil
}

// leave makes sure that the answer is not called from here on.
func (d *doorbell) leave(ticket uint64) {
	d.mu.Lock()
	defer d.mu.Unlock()
	delete(d.waiting, ticket)
}

// open begins to watch, if need be. The caller holds mu.
func (d *doorbell) open() error {
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
	if err := unix.SetNonblock(fd, true); err != nil { // else Go's poller wouldn't take it
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
	d.watch.Go(func() { d.run(raw) })
	return nil
}

// run calls the answers until epoll is closed.
func (d *doorbell) run(epoll syscall.RawConn) {
	events := make([]unix.EpollEvent, 128)
	for {
		n := 0
		if err := epoll.Read(func(fd uintptr) bool {
			n, _ = unix.EpollWait(int(fd), events, 0)
			return n > 0
		}); err != nil {
			return
		}
		d.mu.Lock()
		for _, e := range events[:n] {
			ticket := uint64(uint32(e.Fd)) | uint64(uint32(e.Pad))<<32
			if answer := d.waiting[ticket]; answer != nil {
				delete(d.waiting, ticket)
				answer()
			}
		}
		d.mu.Unlock()
	}
}

// close ends the watch. No answer is called from here on.
func (d *doorbell) close() {
	d.mu.Lock()
	d.closed = true
	clear(d.waiting)
	if d.epoll != nil {
		d.epoll.Close()
	}
	d.mu.Unlock()
	d.watch.Wait()
}
