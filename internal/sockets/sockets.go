// Package sockets opens the listening sockets of the agent, so that they can outlive its process.
//
// A Set begins with the sockets that the process has inherited: from systemd (environ.go), from the
// process that it replaces, or from an earlier run in the same process (Next). Its input is the
// address or the path (unix.go) at which someone wants to listen. It returns the inherited socket of
// that place, or opens one. Its outputs are messages with open descriptors, for the service manager
// or for the next process (transfer.go). It recognizes a socket by what the kernel says of it
// (identity.go). It doesn't read from sockets, and decides nothing about services.
package sockets

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"os"
	"slices"
	"sync"
	"syscall"

	"golang.org/x/sys/unix"
)

// Socket is an open socket of a Set: a *net.TCPListener, a *net.UnixListener or a *net.UDPConn.
type Socket interface {
	syscall.Conn
	io.Closer
}

// Set has the listening sockets of a process. The zero value has inherited none. Its methods may be
// called concurrently.
type Set struct {
	mu        sync.Mutex
	inherited map[place]handed // sockets that nobody has claimed
	open      map[Socket]bool  // whether the keeper has it, as far as it exists
	kept      int              // number of those
	fresh     []Socket         // to be kept; only during Keep
	opened    chan struct{}    // has room for one; nil before Keep
	copied    bool             // another set has copies of all
}

// place is where a socket listens.
type place struct {
	protocol string         // "tcp", "udp" or "unix"
	at       netip.AddrPort // of the first two
	path     string         // of unix
}

// handed is an inherited socket.
type handed struct {
	fd   int
	kept bool // the keeper has it, too
}

// network returns "tcp4", "udp6" and so on, so that no socket accepts both families.
func (p place) network() string {
	if p.at.Addr().Is4() {
		return p.protocol + "4"
	}
	return p.protocol + "6"
}

func (p place) String() string {
	if p.protocol == "unix" {
		return p.path
	}
	return p.at.String() + "/" + p.protocol
}

// config disables multipath TCP, because some kernels can't splice its sockets. The one who accepts
// sets keep-alives, because an inherited listener doesn't have those of its ListenConfig.
func config() *net.ListenConfig {
	c := &net.ListenConfig{KeepAlive: -1}
	c.SetMultipathTCP(false)
	return c
}

// ListenTCP returns the inherited listener of an address, or opens one.
func (s *Set) ListenTCP(ctx context.Context, at netip.AddrPort) (*net.TCPListener, error) {
	return listen[*net.TCPListener](s, place{protocol: "tcp", at: at},
		func(f *os.File) (any, error) { return net.FileListener(f) },
		func(p place) (any, error) { return config().Listen(ctx, p.network(), at.String()) })
}

// ListenUDP returns the inherited unconnected socket of an address, or opens one.
func (s *Set) ListenUDP(ctx context.Context, at netip.AddrPort) (*net.UDPConn, error) {
	return listen[*net.UDPConn](s, place{protocol: "udp", at: at},
		func(f *os.File) (any, error) { return net.FilePacketConn(f) },
		func(p place) (any, error) { return config().ListenPacket(ctx, p.network(), at.String()) })
}

// listen adopts the inherited socket of a place, or opens one. A socket that can't be adopted is
// removed first, because it holds the port.
func listen[S Socket](s *Set, p place, adopt func(*os.File) (any, error), open func(place) (any, error)) (S, error) {
	var none S
	if s.isCopied() {
		return none, errCopied
	}
	if h, ok := s.claim(p); ok {
		f := os.NewFile(uintptr(h.fd), p.String())
		defer f.Close() // adopt makes a copy
		if err := prepare(h.fd, p); err == nil {
			if l, err := adopt(f); err == nil {
				s.add(l.(S), h.kept)
				return l.(S), nil
			}
		}
		shutdown(h.fd)
	}
	l, err := open(p)
	if err != nil {
		return none, err
	}
	s.add(l.(S), false)
	return l.(S), nil
}

var errCopied = errors.New("another process is taking over the listening sockets")

func (s *Set) isCopied() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.copied
}

// claim takes the inherited socket of a place out of the set.
func (s *Set) claim(p place) (h handed, ok bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	h, ok = s.inherited[p]
	delete(s.inherited, p)
	return h, ok
}

// add records an open socket.
func (s *Set) add(l Socket, kept bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.open == nil {
		s.open = make(map[Socket]bool)
	}
	s.mark(l, kept)
	if !kept && s.opened != nil {
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
// becomes free. systemd drops a socket from its store when it was shut down. The file of a unix
// socket is deleted.
func (s *Set) Remove(l Socket) {
	s.forget(l)
	unlink(l)
	fd, err := duplicate(l)
	l.Close() // first, so that no reader sees the shutdown
	if err == nil {
		shutdown(fd)
		unix.Close(fd)
	}
}

// Release closes this process's copy of a socket. Clients of the address wait for a process that
// has another copy. If there is none, the file of a unix socket is deleted.
func (s *Set) Release(l Socket) {
	if shared := s.forget(l); !shared {
		unlink(l)
	}
	l.Close()
}

// unlink deletes the file of a unix socket.
func unlink(l Socket) {
	if u, ok := l.(*net.UnixListener); ok {
		_ = os.Remove(u.Addr().String())
	}
}

// forget removes a socket from the set. It returns whether the keeper or another set has a copy.
func (s *Set) forget(l Socket) (shared bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	shared = s.copied || s.open[l]
	s.mark(l, false)
	delete(s.open, l)
	return shared
}

// Inherit adds the sockets with these descriptors, which then belong to the set. Kept says that the
// keeper has them, too. The problems name those that nobody can claim. Sockets among them are shut
// down, because they hold ports; other descriptors stay as they are.
func (s *Set) Inherit(fds []int, kept bool) (problems []error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.inherited == nil {
		s.inherited = make(map[place]handed, len(fds))
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
				s.inherited[p] = handed{fd, kept}
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
	for p, h := range s.inherited {
		places = append(places, p.String())
		if p.protocol == "unix" && prepare(h.fd, p) == nil {
			_ = os.Remove(p.path)
		}
		shutdown(h.fd)
		unix.Close(h.fd)
	}
	clear(s.inherited)
	slices.Sort(places)
	return places
}

// Next returns a set that has inherited a copy of each socket of this one, for another process or
// for another run of the agent in this process. From then on, s opens and keeps nothing more.
func (s *Set) Next() (*Set, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	fds := make(map[bool][]int) // by whether they are kept
	var err error
	take := func(copied int, failed error, kept bool) {
		if failed == nil {
			fds[kept] = append(fds[kept], copied)
		} else if !errors.Is(failed, net.ErrClosed) {
			err = failed
		}
	}
	for l, kept := range s.open {
		fd, failed := duplicate(l)
		take(fd, failed, kept)
	}
	for _, h := range s.inherited {
		fd, failed := unix.FcntlInt(uintptr(h.fd), unix.F_DUPFD_CLOEXEC, 0)
		take(fd, failed, h.kept)
	}
	if err != nil {
		closeAll(fds[true])
		closeAll(fds[false])
		return nil, fmt.Errorf("copy the listening sockets: %w", os.NewSyscallError("fcntl", err))
	}
	s.copied = true
	next := &Set{}
	next.Inherit(fds[true], true)
	next.Inherit(fds[false], false)
	return next, nil
}

// Close closes the copies of inherited sockets that nobody has claimed. It ends none of them for
// other processes.
func (s *Set) Close() {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, h := range s.inherited {
		unix.Close(h.fd)
	}
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
