// Package sockets opens the listening sockets of a process, so that they can outlive it.
//
// A Set begins with the sockets that the process has inherited: from systemd (environ.go), from the
// process that started it, or from an earlier run in the same process (Next). Its input is the
// address or the path (unix.go) at which someone wants to listen. It returns the inherited socket of
// that place, or opens one. Its outputs are open descriptors, for the service manager (Keep) or for the
// next process (Files). It recognizes a socket by what the kernel says of it
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

	"github.com/ironvip/ironvip/internal/wake"
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
	// Control is that of net.ListenConfig, for the sockets of TCP and UDP that are opened. It is constant.
	Control func(network, address string, raw syscall.RawConn) error

	mu        sync.Mutex
	inherited map[place]int   // descriptors of sockets that nobody has claimed
	open      map[Socket]bool // whether the service manager has a copy
	opened    wake.Signal     // of Keep; has room for one
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
func (s *Set) config() *net.ListenConfig {
	c := &net.ListenConfig{KeepAlive: -1, Control: s.Control}
	c.SetMultipathTCP(false)
	return c
}

// ListenTCP returns the inherited listener of an address, or opens one.
func (s *Set) ListenTCP(ctx context.Context, at netip.AddrPort) (*net.TCPListener, error) {
	return listen[*net.TCPListener](s, place{protocol: "tcp", at: at},
		func(f *os.File) (any, error) { return net.FileListener(f) },
		func(p place) (any, error) { return s.config().Listen(ctx, p.network(), at.String()) })
}

// ListenUDP returns the inherited unconnected socket of an address, or opens one.
func (s *Set) ListenUDP(ctx context.Context, at netip.AddrPort) (*net.UDPConn, error) {
	return listen[*net.UDPConn](s, place{protocol: "udp", at: at},
		func(f *os.File) (any, error) { return net.FilePacketConn(f) },
		func(p place) (any, error) { return s.config().ListenPacket(ctx, p.network(), at.String()) })
}

// ListenUnpolled is like ListenTCP and ListenUDP, for who waits for the socket in a way of his own. Go's poller would wake
// a thread for each event of the socket as well. Protocol is "tcp" or "udp".
func (s *Set) ListenUnpolled(ctx context.Context, protocol string, at netip.AddrPort) (*Unpolled, error) {
	return listen[*Unpolled](s, place{protocol: protocol, at: at},
		func(f *os.File) (any, error) { return unpolled(f) },
		func(p place) (any, error) {
			if protocol == "udp" {
				return unpoll(s.config().ListenPacket(ctx, p.network(), at.String()))
			}
			return unpoll(s.config().Listen(ctx, p.network(), at.String()))
		})
}

// unpoll takes a socket that was opened by package net out of the poller.
func unpoll[S io.Closer](l S, err error) (any, error) {
	if err != nil {
		return nil, err
	}
	defer l.Close()
	return unpolled(any(l).(syscall.Conn))
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
		s.open = make(map[Socket]bool)
	}
	s.open[l] = false
	s.wake()
}

// wake reports a change to Keep. The caller holds mu.
func (s *Set) wake() {
	s.opened.Set()
}

// Keep calls send with each open socket, and then with each one that is opened, until ctx ends. Send stores a copy, which must
// end when the socket is shut down, as systemd's does. A failure is reported, and tried again with the next socket. Only one
// call of Keep may be active.
func (s *Set) Keep(ctx context.Context, send func(Socket) error, report func(error)) {
	s.mu.Lock()
	opened := make(chan struct{}, 1)
	s.opened = opened
	s.wake()
	s.mu.Unlock()
	for ended := false; !ended; {
		select {
		case <-ctx.Done():
			ended = true // after the last ones
		case <-opened:
		}
		for _, l := range s.unkept() {
			if err := send(l); err != nil {
				report(fmt.Errorf("store a listening socket: %w", err))
				break
			}
			s.mu.Lock()
			if _, open := s.open[l]; open {
				s.open[l] = true
			}
			s.mu.Unlock()
		}
	}
}

// unkept returns the open sockets that the service manager hasn't got.
func (s *Set) unkept() (out []Socket) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for l, kept := range s.open {
		if !kept {
			out = append(out, l)
		}
	}
	return out
}

// Remove closes a socket for good: it also ends the copies of other processes, so that its port
// becomes free. The file of a unix socket is deleted.
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
// has another copy. The file of a unix socket is deleted, unless the service manager has a copy.
func (s *Set) Release(l Socket) {
	if kept := s.forget(l); !kept {
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

// forget removes a socket from the set, and returns whether the service manager has a copy.
func (s *Set) forget(l Socket) (kept bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	kept = s.open[l]
	delete(s.open, l)
	return kept
}

// Inherit adds the sockets with these descriptors, which then belong to the set. The problems name those
// that nobody can claim. Sockets among them are shut down, because they hold ports; other descriptors stay as they are.
func (s *Set) Inherit(fds []int) (problems []error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	here := newIdentifier()
	for _, fd := range fds {
		unix.CloseOnExec(fd)
		if err := s.inherit(here, fd); err != nil {
			problems = append(problems, fmt.Errorf("inherited descriptor %d: %w", fd, err))
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
		return nil // it was stored twice
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
	slices.Sort(places)
	return places
}

// File returns a copy of a socket. Unlike the method of listeners, it leaves the socket as it is, which doesn't block.
func File(l syscall.Conn) (*os.File, error) {
	fd, err := duplicate(l)
	if err != nil {
		return nil, os.NewSyscallError("fcntl", err)
	}
	return os.NewFile(uintptr(fd), "listening socket"), nil
}

// Files returns a copy of each socket, for a process that inherits them. The caller closes them.
func (s *Set) Files() ([]*os.File, error) {
	fds, err := s.copies()
	files := make([]*os.File, len(fds))
	for i, fd := range fds {
		files[i] = os.NewFile(uintptr(fd), "listening socket")
	}
	return files, err
}

// copies returns copies of all sockets that are open or inherited.
func (s *Set) copies() (fds []int, err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
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
	if err != nil {
		for _, fd := range fds {
			unix.Close(fd)
		}
		return nil, fmt.Errorf("copy the listening sockets: %w", os.NewSyscallError("fcntl", err))
	}
	return fds, nil
}

// Close closes this process's copies of inherited sockets that nobody has claimed. It ends none of them for other processes.
func (s *Set) Close() {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, fd := range s.inherited {
		unix.Close(fd)
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
