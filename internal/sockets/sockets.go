// Package sockets opens the listening sockets of the agent, so that they can outlive its process.
//
// A Set begins with the sockets that the process has inherited: from systemd (environ.go), from the
// process that it replaces, or from an earlier run in the same process (Next). Its input is the
// address or the path (unix.go) at which someone wants to listen. It returns the inherited socket of
// that place, or opens one. Its outputs are messages with open descriptors, for the service manager
// (shelf.go) or for the next process (transfer.go). It recognizes a socket by what the kernel says of it
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

// Socket is an open socket of a Set: a *net.TCPListener, a *net.UnixListener or a *net.UDPConn; or the
// *os.File of a BPF object that passes clients to one.
type Socket interface {
	syscall.Conn
	io.Closer
}

// Set has the listening sockets of a process. The zero value has inherited none. Its methods may be
// called concurrently.
type Set struct {
	mu        sync.Mutex
	inherited map[place]int     // descriptors of sockets that nobody has claimed
	open      map[Socket]*shelf // the shelf that has a copy; nil: none
	copied    bool              // another set has copies of all

	// Of the keeper.
	changed chan struct{} // has room for one; nil before Keep
	fresh   []Socket      // to be put on shelves
	shelves []*shelf      // those of this set; only the last one gets more sockets
	stale   []*shelf      // those to empty
	former  []int         // ends of inherited shelves, to empty when this set has its own
	settled bool          // nothing is unclaimed any more
}

// place is where a socket listens.
type place struct {
	protocol string         // "tcp", "udp", "unix" or "bpf"
	at       netip.AddrPort // of the first two
	path     string         // of unix; the kind and number of a BPF object
}

// network returns "tcp4", "udp6" and so on, so that no socket accepts both families.
func (p place) network() string {
	if p.at.Addr().Is4() {
		return p.protocol + "4"
	}
	return p.protocol + "6"
}

func (p place) String() string {
	if p.protocol == "unix" || p.protocol == "bpf" {
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
	if fd, ok := s.claim(p); ok {
		f := os.NewFile(uintptr(fd), p.String())
		defer f.Close() // adopt makes a copy
		if err := prepare(fd, p); err == nil {
			if l, err := adopt(f); err == nil {
				s.add(l.(S))
				return l.(S), nil
			}
		}
		shutdown(fd)
	}
	l, err := open(p)
	if err != nil {
		return none, err
	}
	s.add(l.(S))
	return l.(S), nil
}

var errCopied = errors.New("another process is taking over the listening sockets")

func (s *Set) isCopied() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.copied
}

// claim takes the inherited socket of a place out of the set.
func (s *Set) claim(p place) (fd int, ok bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	fd, ok = s.inherited[p]
	delete(s.inherited, p)
	return fd, ok
}

// add records an open socket.
func (s *Set) add(l Socket) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.open == nil {
		s.open = make(map[Socket]*shelf)
	}
	s.open[l] = nil
	if s.changed != nil {
		s.fresh = append(s.fresh, l)
		s.wake()
	}
}

// Remove closes a socket for good: it also ends the copies of other processes, so that its port
// becomes free. Keep removes it from the keeper. The file of a unix socket is deleted.
func (s *Set) Remove(l Socket) {
	s.forget(l, true)
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
	if shared := s.forget(l, false); !shared {
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

// forget removes a socket from the set, and returns whether the keeper or another set has a copy. A
// socket that ends for good also leaves the keeper.
func (s *Set) forget(l Socket, ends bool) (shared bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	h := s.open[l]
	delete(s.open, l)
	if h != nil && ends {
		delete(h.members, l)
		s.vacate(h)
	}
	return s.copied || h != nil
}

// Inherit adds the sockets with these descriptors, which then belong to the set, and those on shelves
// among them. The problems name those that nobody can claim. Sockets among them are shut down,
// because they hold ports; other descriptors stay as they are.
func (s *Set) Inherit(fds []int) (problems []error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	here := newIdentifier()
	for _, fd := range fds {
		unix.CloseOnExec(fd)
		if !isShelf(fd) {
			if err := s.inherit(here, fd); err != nil {
				problems = append(problems, fmt.Errorf("inherited descriptor %d: %w", fd, err))
			}
			continue
		}
		s.former = append(s.former, fd)
		all, err := contents(fd)
		if err != nil {
			problems = append(problems, fmt.Errorf("inherited descriptor %d: %w", fd, err))
		}
		for _, inner := range all {
			err := s.inherit(here, inner)
			if removed := errors.Is(err, errShutDown) || errors.Is(err, errIdle); err != nil && !removed { // just before the end of the process
				problems = append(problems, fmt.Errorf("inherited with descriptor %d: %w", fd, err))
			}
		}
	}
	return problems
}

// inherit adds one socket. The caller holds mu.
func (s *Set) inherit(here identifier, fd int) error {
	if s.inherited == nil {
		s.inherited = make(map[place]int)
	}
	p, err := here.identify(fd)
	switch {
	case errors.Is(err, errNoSocket):
		return err
	case err != nil:
		shutdown(fd)
		unix.Close(fd)
		return err
	}
	other, twice := s.inherited[p]
	if !twice {
		s.inherited[p] = fd
		return nil
	}
	same := cookieOf(fd) == cookieOf(other)
	unix.Close(fd) // without a shutdown, which would end copies, too
	if same {
		return nil // the process ended while it moved a socket to another shelf
	}
	return fmt.Errorf("a second socket of %s", p)
}

// Has reports whether a socket of an address is inherited and not yet claimed. Protocol is "tcp" or
// "udp".
func (s *Set) Has(protocol string, at netip.AddrPort) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	_, ok := s.inherited[place{protocol: protocol, at: at}]
	return ok
}

// AddressOf returns the address of the inherited socket with a cookie (SO_COOKIE). It costs O(inherited
// sockets).
func (s *Set) AddressOf(cookie uint64) (at netip.AddrPort, ok bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for p, fd := range s.inherited {
		if p.at.IsValid() && cookie != 0 && cookieOf(fd) == cookie {
			return p.at, true
		}
	}
	return at, false
}

// cookieOf returns the kernel's number of a socket, which its copies have, too.
func cookieOf(fd int) uint64 {
	n, _ := unix.GetsockoptUint64(fd, unix.SOL_SOCKET, unix.SO_COOKIE)
	return n
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
		if p.protocol == "unix" && prepare(fd, p) == nil {
			_ = os.Remove(p.path)
		}
		shutdown(fd)
		unix.Close(fd)
	}
	clear(s.inherited)
	s.settled = true
	s.wake()
	slices.Sort(places)
	return places
}

// Next returns a set that has inherited a copy of each socket and each shelf of this one, for another
// process or for another run of the agent in this process. From then on, s opens and keeps nothing
// more.
func (s *Set) Next() (*Set, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	var listening, shelves []int
	var err error
	take := func(into *[]int, copied int, failed error) {
		if failed == nil {
			*into = append(*into, copied)
		} else if !errors.Is(failed, net.ErrClosed) {
			err = failed
		}
	}
	again := func(into *[]int, fds ...int) {
		for _, fd := range fds {
			copied, failed := unix.FcntlInt(uintptr(fd), unix.F_DUPFD_CLOEXEC, 0)
			take(into, copied, failed)
		}
	}
	for l := range s.open {
		copied, failed := duplicate(l)
		take(&listening, copied, failed)
	}
	for _, fd := range s.inherited {
		again(&listening, fd)
	}
	for _, h := range s.shelves {
		again(&shelves, h.ends[:]...)
	}
	again(&shelves, s.former...)
	if err != nil {
		closeAll(listening)
		closeAll(shelves)
		return nil, fmt.Errorf("copy the listening sockets: %w", os.NewSyscallError("fcntl", err))
	}
	s.copied = true
	next := &Set{former: shelves}
	next.Inherit(listening)
	return next, nil
}

// Close closes this process's copies of inherited sockets that nobody has claimed, and of shelves. It
// ends none of them for other processes.
func (s *Set) Close() {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, fd := range s.inherited {
		unix.Close(fd)
	}
	clear(s.inherited)
	for _, h := range s.shelves {
		closeAll(h.ends[:])
	}
	closeAll(s.former)
	s.shelves, s.former = nil, nil
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
