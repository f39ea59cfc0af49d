//go:build system

package balancers

import (
	"errors"
	"net/netip"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// loop is the clients and the backends: one epoll loop with bare sockets. Only its own goroutine uses
// it.
type loop struct {
	t      testing.TB
	fd     int
	on     map[int]func()
	events []unix.EpollEvent
}

func newLoop(t testing.TB) *loop {
	fd, err := unix.EpollCreate1(unix.EPOLL_CLOEXEC)
	must(t, err)
	return &loop{t: t, fd: fd, on: make(map[int]func()), events: make([]unix.EpollEvent, 256)}
}

// end closes all sockets.
func (l *loop) end() {
	for fd := range l.on {
		unix.Close(fd)
	}
	unix.Close(l.fd)
}

func must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// add calls ready whenever fd has the event.
func (l *loop) add(fd int, event uint32, ready func()) {
	must(l.t, unix.EpollCtl(l.fd, unix.EPOLL_CTL_ADD, fd, &unix.EpollEvent{Events: event, Fd: int32(fd)}))
	l.on[fd] = ready
}

func (l *loop) close(fd int) {
	delete(l.on, fd)
	unix.Close(fd)
}

// run handles events until done returns true.
func (l *loop) run(done func() bool) {
	l.t.Helper()
	for quiet := 0; !done(); {
		n, err := unix.EpollWait(l.fd, l.events, 100)
		if err != nil && !errors.Is(err, unix.EINTR) {
			l.t.Fatal(err)
		}
		if n > 0 {
			quiet = 0
		} else if quiet++; quiet > 100 {
			l.t.Fatal("nothing happens for ten seconds")
		}
		for _, e := range l.events[:max(n, 0)] {
			if ready := l.on[int(e.Fd)]; ready != nil { // not closed by an earlier one
				ready()
			}
		}
	}
}

// lasts returns a condition for run that is true after d.
func lasts(d time.Duration) func() bool {
	end := time.Now().Add(d)
	return func() bool { return time.Now().After(end) }
}

func sockaddr(a netip.AddrPort) unix.Sockaddr {
	return &unix.SockaddrInet4{Addr: a.Addr().As4(), Port: int(a.Port())}
}

// listen calls serve with each connection to an address.
func (l *loop) listen(at netip.AddrPort, serve func(fd int)) {
	fd, err := unix.Socket(unix.AF_INET, unix.SOCK_STREAM|unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK, 0)
	must(l.t, err)
	must(l.t, unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_REUSEADDR, 1))
	must(l.t, unix.Bind(fd, sockaddr(at)))
	must(l.t, unix.Listen(fd, 4096))
	l.add(fd, unix.EPOLLIN, func() {
		for {
			c, _, err := unix.Accept4(fd, unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK)
			if err != nil {
				return
			}
			must(l.t, unix.SetsockoptInt(c, unix.IPPROTO_TCP, unix.TCP_NODELAY, 1))
			serve(c)
		}
	})
}

// dial connects to the balancer, which runs on this host. It waits for the connection, which the
// balancer's kernel makes at once, but not for the balancer.
func (l *loop) dial(to netip.AddrPort) int {
	fd, err := unix.Socket(unix.AF_INET, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	must(l.t, err)
	must(l.t, unix.Connect(fd, sockaddr(to)))
	must(l.t, unix.SetNonblock(fd, true))
	must(l.t, unix.SetsockoptInt(fd, unix.IPPROTO_TCP, unix.TCP_NODELAY, 1))
	return fd
}
