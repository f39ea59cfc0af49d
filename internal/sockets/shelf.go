package sockets

import (
	"context"
	"errors"
	"fmt"
	"os"
	"slices"

	"golang.org/x/sys/unix"
)

// perMessage is the number of descriptors that the kernel accepts in one message (SCM_MAX_FD).
const perMessage = 253

// perShelf bounds the sockets of a shelf, and with it the cost of a removal.
const perShelf = perMessage

// shelf is a connected pair of unix sockets with listening sockets in the queue between them. The
// service manager stores the two ends instead of each listening socket: systemd compares each new
// descriptor with all that it has. A removed socket makes its shelf stale. Another shelf gets the
// others then, and the stale one is emptied.
type shelf struct {
	ends    [2]int // read and write
	members map[Socket]struct{}
	stale   bool
	full    bool // the queue is, by bytes
}

func newShelf() (*shelf, error) {
	ends, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK, 0)
	if err != nil {
		return nil, os.NewSyscallError("socketpair", err)
	}
	return &shelf{ends: ends, members: make(map[Socket]struct{})}, nil
}

func (h *shelf) room() int {
	if h.full || h.stale {
		return 0
	}
	return perShelf - len(h.members)
}

// put adds copies of sockets to the queue. Those that were closed are left out.
func (h *shelf) put(sockets []Socket) error {
	fds := make([]int, 0, len(sockets))
	for _, l := range sockets {
		if fd, err := duplicate(l); err == nil {
			fds = append(fds, fd)
		}
	}
	defer closeAll(fds)
	if len(fds) == 0 {
		return nil
	}
	return os.NewSyscallError("sendmsg", unix.Sendmsg(h.ends[1], []byte{'s'}, unix.UnixRights(fds...), nil, unix.MSG_NOSIGNAL))
}

// retire empties the shelf with these ends, so that no process has the sockets in it. The service
// manager drops ends that were shut down.
func retire(ends []int) {
	for _, fd := range ends {
		_, _ = readShelf(fd, 0, func(fds []int) { closeAll(fds) })
		shutdown(fd)
		unix.Close(fd)
	}
}

// readShelf calls found with the descriptors of each message that has arrived at an end.
func readShelf(fd, flags int, found func([]int)) (messages int, err error) {
	space := make([]byte, unix.CmsgSpace(4*perMessage))
	for {
		var b [1]byte
		n, room, _, _, err := unix.Recvmsg(fd, b[:], space, flags|unix.MSG_DONTWAIT|unix.MSG_CMSG_CLOEXEC)
		if n <= 0 || err != nil {
			return messages, err
		}
		messages++
		fds, err := rights(space[:room])
		if err != nil {
			return messages, err
		}
		found(fds)
	}
}

// contents returns copies of the sockets in a shelf, which stay in it.
func contents(fd int) (fds []int, err error) {
	if err := unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_PEEK_OFF, 0); err != nil {
		return nil, os.NewSyscallError("setsockopt", err)
	}
	_, err = readShelf(fd, unix.MSG_PEEK, func(found []int) { fds = append(fds, found...) })
	if errors.Is(err, unix.EAGAIN) {
		err = nil
	}
	return fds, errors.Join(err, unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_PEEK_OFF, -1))
}

// isShelf reports whether a descriptor is an end of a shelf.
func isShelf(fd int) bool {
	for name, want := range map[int]int{unix.SO_DOMAIN: unix.AF_UNIX, unix.SO_TYPE: unix.SOCK_STREAM, unix.SO_ACCEPTCONN: 0} {
		if v, err := unix.GetsockoptInt(fd, unix.SOL_SOCKET, name); err != nil || v != want {
			return false
		}
	}
	_, err := unix.Getpeername(fd)
	return err == nil
}

// Keep makes a keeper store all open sockets, and then each socket that is opened, until ctx ends: it
// calls send with the two ends of each new shelf. A new socket needs no call while the last shelf
// has room. Inherited shelves are emptied when nothing is unclaimed and their sockets have other
// ones. The cost of an opened or removed socket is O(perShelf). A failure is reported, and tried
// again with the next change. Only one call of Keep may be active.
func (s *Set) Keep(ctx context.Context, send func(fds []int) error, report func(error)) {
	s.mu.Lock()
	opened := make(chan struct{}, 1)
	s.changed = opened
	for l, h := range s.open {
		if h == nil {
			s.fresh = append(s.fresh, l)
		}
	}
	s.wake()
	s.mu.Unlock()
	for ended := false; !ended; {
		select {
		case <-ctx.Done():
			ended = true // after the last ones
		case <-opened:
		}
		if err := s.keepAll(send); err != nil {
			report(err)
		}
	}
}

// wake reports a change to Keep. The caller holds mu.
func (s *Set) wake() {
	select {
	case s.changed <- struct{}{}: // a nil channel is never ready
	default:
	}
}

// keepAll stores what isn't stored, and empties what is stale.
func (s *Set) keepAll(send func([]int) error) error {
	s.mu.Lock()
	if s.copied { // the next set does it
		s.mu.Unlock()
		return nil
	}
	todo, stale, former := s.fresh, s.stale, s.former
	s.fresh, s.stale = nil, nil
	if !s.settled {
		former = nil
	}
	for _, h := range stale {
		todo = slices.AppendSeq(todo, func(yield func(Socket) bool) {
			for l := range h.members {
				if !yield(l) {
					return
				}
			}
		})
	}
	s.mu.Unlock()
	for len(todo) > 0 {
		n, err := s.keepSome(todo, send)
		if err != nil {
			s.mu.Lock()
			defer s.mu.Unlock()
			s.fresh, s.stale = append(s.fresh, todo...), append(s.stale, stale...)
			return fmt.Errorf("store listening sockets: %w", err)
		}
		todo = todo[n:]
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, h := range stale {
		retire(h.ends[:])
		s.shelves = slices.DeleteFunc(s.shelves, func(other *shelf) bool { return other == h })
	}
	if len(former) > 0 {
		retire(former)
		s.former = nil
	}
	return nil
}

// keepSome puts the first of the sockets on the last shelf, or on a new one, and returns how many.
func (s *Set) keepSome(todo []Socket, send func([]int) error) (n int, err error) {
	var h *shelf
	s.mu.Lock()
	if last := len(s.shelves) - 1; last >= 0 && s.shelves[last].room() > 0 {
		h = s.shelves[last]
	}
	s.mu.Unlock()
	isNew := h == nil
	if isNew {
		if h, err = newShelf(); err != nil {
			return 0, err
		}
	}
	n = min(h.room(), len(todo))
	if err = h.put(todo[:n]); err == nil && isNew {
		err = send(h.ends[:])
	}
	if isNew && err != nil {
		closeAll(h.ends[:])
		return 0, err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if errors.Is(err, unix.EAGAIN) {
		h.full = true
		return 0, nil
	}
	if err != nil {
		return 0, err
	}
	if isNew {
		s.shelves = append(s.shelves, h)
	}
	for _, l := range todo[:n] {
		if _, open := s.open[l]; open {
			s.open[l] = h
			h.members[l] = struct{}{}
		} else if !h.stale { // removed meanwhile
			s.vacate(h)
		}
	}
	return n, nil
}

// vacate records that a shelf has a socket that was removed. The caller holds mu.
func (s *Set) vacate(h *shelf) {
	if !h.stale {
		h.stale = true
		s.stale = append(s.stale, h)
	}
	s.wake()
}

// DropFormer empties inherited shelves. It is for a process without a keeper.
func (s *Set) DropFormer() {
	s.mu.Lock()
	defer s.mu.Unlock()
	retire(s.former)
	s.former = nil
}
