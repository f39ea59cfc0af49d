// Package sockets opens the listening sockets of the agent, so that they can outlive its process.
//
// A Set begins with the sockets that the process has inherited: from systemd (environ.go), from the
// process that it replaces, or from an earlier run in the same process (Next). Its input is the
// address at which someone wants to listen. It returns the inherited socket of that address, or
// opens one. Its outputs are messages with open descriptors, for the service manager or for the
// next process (transfer.go). It recognizes a socket by what the kernel says of it, never by its
// name (identity.go). It doesn't read from sockets, and decides nothing about services.
package sockets

import (
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"net"
	"net/netip"
	"os"
	"slices"
	"sync"
	"syscall"

	"golang.org/x/sys/unix"
)

// Socket is an open socket of a Set: a *net.TCPListener or a *net.UDPConn.
type Socket interface {
	syscall.Conn
	io.Closer
}

// Set has the listening sockets of a process. The zero value has inherited none. Its methods may be
// called concurrently.
type Set struct {
	mu        sync.Mutex
	inherited map[place]int   // descriptors of sockets that nobody has claimed
	open      map[Socket]bool // whether the keeper has it, as far as it exists
	kept      int             // number of those
	fresh     []Socket        // to be kept; only during Keep
	opened    chan struct{}   // has room for one; nil before Keep
}

// place is where a socket listens.
type place struct {
	protocol string // "tcp" or "udp"
	at       netip.AddrPort
}

// network returns "tcp4", "udp6" and so on, so that no socket accepts both families.
func (p place) network() string {
	if p.at.Addr().Is4() {
		return p.protocol + "4"
	}
	return p.protocol + "6"
}

func (p place) String() string { return p.at.String() + "/" + p.protocol }

// config disables multipath TCP, because some kernels can't splice its sockets. The one who accepts
// sets keep-alives, because an inherited listener doesn't have those of its ListenConfig.
func config() *net.ListenConfig {
	c := &net.ListenConfig{KeepAlive: -1}
	c.SetMultipathTCP(false)
	return c
}

// ListenTCP returns the inherited listener of an address, or opens one.
func (s *Set) ListenTCP(ctx context.Context, at netip.AddrPort) (*net.TCPListener, error) {
	return listen[*net.TCPListener](s, place{"tcp", at},
		func(f *os.File) (any, error) { return net.FileListener(f) },
		func(p place) (any, error) { return config().Listen(ctx, p.network(), at.String()) })
}

// ListenUDP returns the inherited unconnected socket of an address, or opens one.
func (s *Set) ListenUDP(ctx context.Context, at netip.AddrPort) (*net.UDPConn, error) {
	return listen[*net.UDPConn](s, place{"udp", at},
		func(f *os.File) (any, error) { return net.FilePacketConn(f) },
		func(p place) (any, error) { return config().ListenPacket(ctx, p.network(), at.String()) })
}

// listen adopts the inherited socket of a place, or opens one. A socket that can't be adopted is
// removed first, because it holds the port.
func listen[S Socket](s *Set, p place, adopt func(*os.File) (any, error), open func(place) (any, error)) (S, error) {
	var none S
	if fd, ok := s.claim(p); ok {
		f := os.NewFile(uintptr(fd), p.String())
		defer f.Close() // adopt makes a copy
		if err := prepare(fd, p); err == nil {
			if l, err := adopt(f); err == nil {
				s.add(l.(S), false)
				return l.(S), nil
			}
		}
		shutdown(fd)
	}
	l, err := open(p)
	if err != nil {
		return none, err
	}
	s.add(l.(S), true)
	return l.(S), nil
}

// claim takes the inherited socket of a place out of the set.
func (s *Set) claim(p place) (fd int, ok bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	fd, ok = s.inherited[p]
	delete(s.inherited, p)
	return fd, ok
}

// add records an open socket. The keeper has inherited ones already.
func (s *Set) add(l Socket, fresh bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.open == nil {
		s.open = make(map[Socket]bool)
	}
	s.mark(l, !fresh)
	if fresh && s.opened != nil {
		s.fresh = append(s.fresh, l)
		s.wake()
	}
}

// mark records whether the keeper has an open socket. The caller holds mu.
func (s *Set) mark(l Socket, kept bool) {
	if s.open[l] {
		s.kept--
	}
	if s.open[l] = kept; kept {
		s.kept++
	}
}

// Remove closes a socket for good: it also ends the copies of other processes, so that its port
// becomes free. systemd drops a socket from its store when it was shut down.
func (s *Set) Remove(l Socket) {
	s.forget(l)
	fd, err := duplicate(l)
	l.Close() // first, so that no reader sees the shutdown
	if err == nil {
		shutdown(fd)
		unix.Close(fd)
	}
}

// Release closes this process's copy of a socket. Clients of the address wait for a process that
// has another copy.
func (s *Set) Release(l Socket) {
	s.forget(l)
	l.Close()
}

func (s *Set) forget(l Socket) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.mark(l, false)
	delete(s.open, l)
}

// Inherit adds the sockets with these descriptors, which then belong to the set. The problems name
// those that nobody can claim. Sockets among them are shut down, because they hold ports; other
// descriptors stay as they are.
func (s *Set) Inherit(fds []int) (problems []error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.inherited == nil {
		s.inherited = make(map[place]int, len(fds))
	}
	here := newIdentifier()
	for _, fd := range fds {
		unix.CloseOnExec(fd)
		p, err := here.identify(fd)
		switch {
		case errors.Is(err, errNoSocket):
		case err != nil:
			shutdown(fd)
			unix.Close(fd)
		default:
			if _, twice := s.inherited[p]; !twice {
				s.inherited[p] = fd
				continue
			}
			err = fmt.Errorf("a second socket of %s", p)
			unix.Close(fd) // maybe a copy of the first one: a shutdown would end both
		}
		problems = append(problems, fmt.Errorf("inherited descriptor %d: %w", fd, err))
	}
	return problems
}

// Unclaimed returns the number of inherited sockets that nobody has claimed.
func (s *Set) Unclaimed() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return len(s.inherited)
}

// RemoveUnclaimed removes the inherited sockets that nobody has claimed, and returns their places.
func (s *Set) RemoveUnclaimed() (places []string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for p, fd := range s.inherited {
		places = append(places, p.String())
		shutdown(fd)
		unix.Close(fd)
	}
	clear(s.inherited)
	slices.Sort(places)
	return places
}

// Next returns a set that has inherited a copy of each socket of this one, for another process or
// for another run of the agent in this process.
func (s *Set) Next() (*Set, error) {
	s.mu.Lock()
	var fds []int
	var err error
	take := func(copied int, failed error) {
		if failed == nil {
			fds = append(fds, copied)
		} else if !errors.Is(failed, net.ErrClosed) {
			err = failed
		}
	}
	for l := range s.open {
		take(duplicate(l))
	}
	for _, fd := range s.inherited {
		take(unix.FcntlInt(uintptr(fd), unix.F_DUPFD_CLOEXEC, 0))
	}
	s.mu.Unlock()
	next := &Set{}
	if err != nil {
		closeAll(fds)
		return nil, fmt.Errorf("copy the listening sockets: %w", os.NewSyscallError("fcntl", err))
	}
	next.Inherit(fds)
	return next, nil
}

// Close closes the copies of inherited sockets that nobody has claimed. It ends none of them for
// other processes.
func (s *Set) Close() {
	s.mu.Lock()
	defer s.mu.Unlock()
	closeAll(slices.Collect(maps.Values(s.inherited)))
	clear(s.inherited)
}

// duplicate returns a new descriptor of a socket.
func duplicate(l syscall.Conn) (fd int, err error) {
	raw, err := l.SyscallConn()
	if err != nil {
		return -1, err
	}
	var failed error
	if err := raw.Control(func(of uintptr) { fd, failed = unix.FcntlInt(of, unix.F_DUPFD_CLOEXEC, 0) }); err != nil {
		return -1, err
	}
	return fd, failed
}

// shutdown ends a socket in all processes that have a copy. It also wakes those that poll an
// unconnected socket, for which the call itself fails.
func shutdown(fd int) { _ = unix.Shutdown(fd, unix.SHUT_RDWR) }

func closeAll(fds []int) {
	for _, fd := range fds {
		unix.Close(fd)
	}
}
