package sockets

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"slices"

	"golang.org/x/sys/unix"
)

// perMessage is the number of descriptors that the kernel accepts in one message (SCM_MAX_FD).
const perMessage = 253

// ErrFull means that more sockets are open than the keeper may have.
var ErrFull = errors.New("too many listening sockets")

// Keep passes the open sockets to send in messages of up to 253, and then each socket that is
// opened, until ctx ends. The keeper has at most most of them at once. A socket that was removed
// meanwhile is left out, and inherited ones are expected to be kept already. The descriptors are
// valid during the call of send. A failed message is reported and not repeated; the first socket
// beyond the limit is reported as ErrFull. Only one call of Keep may be active.
func (s *Set) Keep(ctx context.Context, most int, send func(fds []int) error, report func(error)) {
	s.mu.Lock()
	opened := make(chan struct{}, 1)
	s.opened = opened
	for l, kept := range s.open {
		if !kept {
			s.fresh = append(s.fresh, l)
		}
	}
	s.wake()
	s.mu.Unlock()
	wasFull := false
	for ended := false; !ended; {
		select {
		case <-ctx.Done():
			ended = true // after the last ones
		case <-opened:
		}
		for {
			batch, full := s.takeFresh(most)
			if full && !wasFull {
				wasFull = true
				report(fmt.Errorf("%w: only %d are kept", ErrFull, most))
			}
			if len(batch) == 0 {
				break
			}
			if err := sendCopies(batch, send); err != nil {
				s.unmark(batch)
				report(err)
			}
		}
	}
}

// unmark records that the keeper doesn't have these sockets.
func (s *Set) unmark(batch []Socket) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, l := range batch {
		if _, open := s.open[l]; open {
			s.mark(l, false)
		}
	}
}

// wake reports to Keep that there are new sockets. The caller holds mu.
func (s *Set) wake() {
	select {
	case s.opened <- struct{}{}: // a nil channel is never ready
	default:
	}
}

// takeFresh returns up to perMessage open sockets that are to be kept. If there are more than the
// keeper may have, it drops the others and reports that.
func (s *Set) takeFresh(most int) (batch []Socket, full bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.copied {
		return nil, false // the next set passes them on
	}
	for i, l := range s.fresh {
		if _, open := s.open[l]; !open {
			continue
		}
		if s.kept >= most {
			s.fresh = nil
			return batch, true
		}
		s.mark(l, true)
		if batch = append(batch, l); len(batch) == perMessage {
			s.fresh = s.fresh[i+1:]
			return batch, false
		}
	}
	s.fresh = nil
	return batch, false
}

func sendCopies(batch []Socket, send func([]int) error) error {
	fds := make([]int, 0, len(batch))
	for _, l := range batch {
		if fd, err := duplicate(l); err == nil { // else it was closed
			fds = append(fds, fd)
		}
	}
	defer closeAll(fds)
	if len(fds) == 0 {
		return nil
	}
	return send(fds)
}

// The first bytes of the messages of Send.
const (
	keptSockets  = '+' // the keeper has them, too
	otherSockets = '-'
	endOfSockets = '.'
)

// Send writes the inherited sockets of s to another process, in messages of one byte. They stay in
// s.
func (s *Set) Send(to *net.UnixConn) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	fds := make(map[byte][]int)
	for _, h := range s.inherited {
		kind := byte(otherSockets)
		if h.kept {
			kind = keptSockets
		}
		fds[kind] = append(fds[kind], h.fd)
	}
	for kind, all := range fds {
		for part := range slices.Chunk(all, perMessage) {
			if _, _, err := to.WriteMsgUnix([]byte{kind}, unix.UnixRights(part...), nil); err != nil {
				return fmt.Errorf("send listening sockets: %w", err)
			}
		}
	}
	_, err := to.Write([]byte{endOfSockets})
	return err
}

// Receive adds the sockets that Send writes at the other end. The problems name those that nobody
// can claim; the error says that the transfer is incomplete.
func (s *Set) Receive(from *net.UnixConn) (problems []error, err error) {
	space := make([]byte, unix.CmsgSpace(4*perMessage))
	for {
		var b [1]byte // one, so that a message isn't read with the next one
		n, room, flags, _, err := from.ReadMsgUnix(b[:], space)
		if err != nil {
			return problems, fmt.Errorf("receive listening sockets: %w", err)
		}
		if n == 0 {
			return problems, fmt.Errorf("receive listening sockets: the other process has ended")
		}
		fds, err := rights(space[:room])
		problems = append(problems, s.Inherit(fds, b[0] == keptSockets)...)
		switch {
		case err != nil:
			return problems, fmt.Errorf("receive listening sockets: %w", err)
		case flags&unix.MSG_CTRUNC != 0:
			return problems, fmt.Errorf("receive listening sockets: no file descriptor left")
		case b[0] == endOfSockets:
			return problems, nil
		}
	}
}

// rights returns the descriptors in a control message.
func rights(control []byte) (fds []int, err error) {
	messages, err := unix.ParseSocketControlMessage(control)
	if err != nil {
		return nil, os.NewSyscallError("recvmsg", err)
	}
	for i := range messages {
		more, err := unix.ParseUnixRights(&messages[i])
		if err != nil {
			return fds, os.NewSyscallError("recvmsg", err)
		}
		fds = append(fds, more...)
	}
	return fds, nil
}
