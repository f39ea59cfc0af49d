package netlink

import (
	"cmp"
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
	e := &Events{file: os.NewFile(uintptr(fd), "netlink events"), in: make([]byte, recvBytes)}
	e.SetBuffer(eventBuffer)
	return e, nil
}

func subscribe(fd int, groups []int) error {
	if err := unix.Bind(fd, &unix.SockaddrNetlink{Family: unix.AF_NETLINK}); err != nil {
		return os.NewSyscallError("bind", err)
	}
	for _, g := range groups {
		if err := membership(fd, unix.NETLINK_ADD_MEMBERSHIP, g); err != nil {
			return err
		}
	}
	return nil
}

func membership(fd, option, group int) error {
	if err := unix.SetsockoptInt(fd, unix.SOL_NETLINK, option, group); err != nil {
		return os.NewSyscallError(fmt.Sprintf("join or leave group %d", group), err)
	}
	return nil
}

// Leave leaves a group until Join. The kernel makes no events that nobody receives.
func (e *Events) Leave(group int) error { return e.control(unix.NETLINK_DROP_MEMBERSHIP, group) }

// Join joins a group.
func (e *Events) Join(group int) error { return e.control(unix.NETLINK_ADD_MEMBERSHIP, group) }

func (e *Events) control(option, group int) error {
	raw, err := e.file.SyscallConn()
	if err != nil {
		return err
	}
	var failed error
	err = raw.Control(func(fd uintptr) { failed = membership(int(fd), option, group) })
	return cmp.Or(err, failed)
}

// SetBuffer sets the size of the receive buffer, in bytes. Without CAP_NET_ADMIN, the system's limit applies.
func (e *Events) SetBuffer(n int) {
	raw, err := e.file.SyscallConn()
	if err != nil {
		return
	}
	_ = raw.Control(func(fd uintptr) {
		if unix.SetsockoptInt(int(fd), unix.SOL_SOCKET, unix.SO_RCVBUFFORCE, n) != nil {
			_ = unix.SetsockoptInt(int(fd), unix.SOL_SOCKET, unix.SO_RCVBUF, n)
		}
	})
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

// Wait waits until an event has arrived, and leaves it to Drain. It may run beside Drain. It returns an error after Close.
func (e *Events) Wait() error {
	raw, err := e.file.SyscallConn()
	if err != nil {
		return err
	}
	return raw.Read(func(fd uintptr) bool {
		fds := []unix.PollFd{{Fd: int32(fd), Events: unix.POLLIN}}
		n, err := unix.Poll(fds, 0)
		return n > 0 || err != nil && err != unix.EINTR
	})
}

// Drain calls each for every event that has arrived, and doesn't wait. The kernel delivers an event before the system call
// that causes it returns, so a caller also sees the last change that it made itself. The caller must not use Next. ErrLost
// doesn't end the subscription; any other error does.
func (e *Events) Drain(each func(Event)) error {
	raw, err := e.file.SyscallConn()
	if err != nil {
		return err
	}
	lost := false
	if err := raw.Control(func(fd uintptr) { lost, err = e.drain(int(fd), each) }); err != nil {
		return err
	}
	if err == nil && lost {
		err = ErrLost
	}
	return err
}

func (e *Events) drain(fd int, each func(Event)) (lost bool, err error) {
	for {
		n, err := unix.Read(fd, e.in)
		switch {
		case err == unix.EAGAIN:
			return lost, nil
		case err == unix.EINTR:
			continue
		case err == unix.ENOBUFS:
			lost = true
			continue
		case err != nil:
			return lost, os.NewSyscallError("read", err)
		case n == len(e.in): // it may have been truncated
			lost = true
			continue
		}
		for b := e.in[:n]; len(b) > 0; {
			h, data, rest, err := NextMessage(b)
			if err != nil {
				lost = true
				break
			}
			each(Event{Type: h.Type, Port: binary.NativeEndian.Uint32(b[12:]), Data: data})
			b = rest
		}
	}
}

// NoPort is the port of no socket.
const NoPort = 0xffffffff

// Ignore drops the events that the socket with that port causes, and those about routes outside of table local, in the
// kernel, so that they cost the reader nothing. A host can have a million routes. It replaces the port of an earlier call.
func (e *Events) Ignore(port uint32) error {
	// The program loads numbers as if they were in network byte order.
	var ports [4]byte
	binary.NativeEndian.PutUint32(ports[:], port)
	typ := func(t uint16) uint32 {
		return uint32(binary.BigEndian.Uint16(binary.NativeEndian.AppendUint16(nil, t)))
	}
	const typeAt, portAt, tableAt, everything = 4, 12, 20, 0xffffffff // in nlmsghdr and rtmsg; the length of an event that passes
	const load, equal = unix.BPF_LD | unix.BPF_ABS, unix.BPF_JMP | unix.BPF_JEQ | unix.BPF_K
	program := []unix.SockFilter{
		{Code: load | unix.BPF_W, K: portAt},
		{Code: equal, K: binary.BigEndian.Uint32(ports[:]), Jt: 5},
		{Code: load | unix.BPF_H, K: typeAt},
		{Code: equal, K: typ(unix.RTM_NEWROUTE), Jt: 1},
		{Code: equal, K: typ(unix.RTM_DELROUTE), Jf: 3},
		{Code: load | unix.BPF_B, K: tableAt},
		{Code: equal, K: unix.RT_TABLE_LOCAL, Jt: 1},
		{Code: unix.BPF_RET | unix.BPF_K, K: 0},
		{Code: unix.BPF_RET | unix.BPF_K, K: everything},
	}
	raw, err := e.file.SyscallConn()
	if err != nil {
		return err
	}
	var failed error
	err = raw.Control(func(fd uintptr) {
		failed = unix.SetsockoptSockFprog(int(fd), unix.SOL_SOCKET, unix.SO_ATTACH_FILTER,
			&unix.SockFprog{Len: uint16(len(program)), Filter: &program[0]})
	})
	return cmp.Or(err, os.NewSyscallError("setsockopt SO_ATTACH_FILTER", failed))
}
