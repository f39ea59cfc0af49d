package sockets

import (
	"fmt"
	"maps"
	"net"
	"os"
	"slices"

	"golang.org/x/sys/unix"
)

// The first bytes of the messages of Send.
const (
	listening    = '+'
	ofShelves    = '#' // the ends of shelves
	endOfSockets = '.'
)

// Send writes the inherited sockets of s to another process, in messages of one byte. They stay in
// s.
func (s *Set) Send(to *net.UnixConn) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	for kind, fds := range map[byte][]int{listening: slices.Collect(maps.Values(s.inherited)), ofShelves: s.former} {
		for part := range slices.Chunk(fds, perMessage) {
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
		if b[0] == ofShelves { // what is in them arrives, too
			s.mu.Lock()
			s.former = append(s.former, fds...)
			s.mu.Unlock()
		} else {
			problems = append(problems, s.Inherit(fds)...)
		}
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
