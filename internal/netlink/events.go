package netlink

import (
	"encoding/binary"
	"errors"
	"fmt"
	"os"

	"golang.org/x/sys/unix"
)

// ErrLost means that the kernel dropped events because the socket's buffer was full. The reader
// must read the state of the kernel again.
var ErrLost = errors.New("netlink events were lost")

// eventBuffer is the receive buffer of a subscription. A transaction that adds 10,000 elements to an
// nftables set causes 2 MiB of events.
const eventBuffer = 8 << 20

// Events is a subscription to multicast groups of a netlink protocol. One goroutine may call Next,
// and any may call Close.
type Events struct {
	file   *os.File
	in     []byte
	unread []byte
}

// Event is a message of a subscription. Port is the netlink port of the socket that caused it, or 0.
// Data is valid until the next call of Next.
type Event struct {
	Type uint16
	Port uint32
	Data []byte
}

// Subscribe joins groups in the network namespace of the calling thread. Groups are numbers, such as
// RTNLGRP_LINK, and not bits.
func Subscribe(protocol int, groups ...int) (*Events, error) {
	fd, err := unix.Socket(unix.AF_NETLINK, unix.SOCK_RAW|unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK, protocol)
	if err != nil {
		return nil, fmt.Errorf("open a netlink socket for events: %w", err)
	}
	if err := subscribe(fd, groups); err != nil {
		unix.Close(fd)
		return nil, fmt.Errorf("subscribe to netlink events: %w", err)
	}
	return &Events{file: os.NewFile(uintptr(fd), "netlink events"), in: make([]byte, recvBytes)}, nil
}

func subscribe(fd int, groups []int) error {
	if err := unix.Bind(fd, &unix.SockaddrNetlink{Family: unix.AF_NETLINK}); err != nil {
		return os.NewSyscallError("bind", err)
	}
	for _, g := range groups {
		if err := unix.SetsockoptInt(fd, unix.SOL_NETLINK, unix.NETLINK_ADD_MEMBERSHIP, g); err != nil {
			return os.NewSyscallError(fmt.Sprintf("join group %d", g), err)
		}
	}
	if unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_RCVBUFFORCE, eventBuffer) != nil {
		_ = unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_RCVBUF, eventBuffer)
	}
	return nil
}

// Next waits for the next event. ErrLost doesn't end the subscription; any other error does, also
// the one after Close.
func (e *Events) Next() (Event, error) {
	for len(e.unread) == 0 {
		n, err := e.file.Read(e.in)
		switch {
		case errors.Is(err, unix.ENOBUFS):
			return Event{}, ErrLost
		case err != nil:
			return Event{}, err
		case n == len(e.in): // it may have been truncated
			return Event{}, ErrLost
		}
		e.unread = e.in[:n]
	}
	b := e.unread
	h, data, rest, err := NextMessage(b)
	if e.unread = rest; err != nil {
		e.unread = nil
		return Event{}, ErrLost
	}
	return Event{Type: h.Type, Port: binary.NativeEndian.Uint32(b[12:]), Data: data}, nil
}

// Close ends the subscription.
func (e *Events) Close() error { return e.file.Close() }
