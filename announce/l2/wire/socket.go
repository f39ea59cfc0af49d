package wire

import (
	"encoding/binary"
	"errors"
	"fmt"
	"os"
	"sync/atomic"
	"syscall"

	"golang.org/x/sys/unix"

	"github.com/ironvip/ironvip/announce/l2/frame"
)

// ErrBusy means that the kernel has no room for a frame now. The nftables egress hook reports a frame
// that it dropped in the same way.
var ErrBusy = errors.New("the send queue is full")

// maxFrame is more than any frame of the two protocols that matters has.
const maxFrame = 512

const (
	sendBuffer = 4 << 20 // about 5,000 short frames
	control    = 7       // TC_PRIO_CONTROL: before other traffic in the queue of an interface
)

// Socket is a packet socket for one protocol on all interfaces, those that appear later included.
// One goroutine may call Receive; Send and Close may be called concurrently.
type Socket struct {
	file *os.File
	raw  syscall.RawConn
	// sendto is the system call. Tests replace it.
	sendto func(fd int, b []byte, flags int, to unix.Sockaddr) error
	busy   atomic.Uint64
}

// Busy returns how often Send has returned ErrBusy.
func (s *Socket) Busy() uint64 { return s.busy.Load() }

// Open opens a socket in the network namespace of the calling thread. Protocol is frame.TypeARP or
// frame.TypeIPv6. For the latter, the socket receives neighbor solicitations and advertisements only.
func Open(protocol uint16) (*Socket, error) {
	// A socket without a protocol receives nothing until it is bound, with the filter in place.
	fd, err := unix.Socket(unix.AF_PACKET, unix.SOCK_RAW|unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK, 0)
	if err != nil {
		return nil, fmt.Errorf("open a packet socket: %w", err)
	}
	if err := prepare(fd, protocol); err != nil {
		unix.Close(fd)
		return nil, fmt.Errorf("prepare a packet socket: %w", err)
	}
	s := &Socket{file: os.NewFile(uintptr(fd), "packet socket"), sendto: unix.Sendto}
	if s.raw, err = s.file.SyscallConn(); err != nil {
		s.file.Close()
		return nil, err
	}
	return s, nil
}

func prepare(fd int, protocol uint16) error {
	if protocol == frame.TypeIPv6 {
		if err := unix.SetsockoptSockFprog(fd, unix.SOL_SOCKET, unix.SO_ATTACH_FILTER, neighborDiscovery()); err != nil {
			return os.NewSyscallError("setsockopt SO_ATTACH_FILTER", err)
		}
	}
	if unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_SNDBUFFORCE, sendBuffer) != nil {
		_ = unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_SNDBUF, sendBuffer)
	}
	if err := unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_PRIORITY, control); err != nil {
		return os.NewSyscallError("setsockopt SO_PRIORITY", err)
	}
	return os.NewSyscallError("bind", unix.Bind(fd, &unix.SockaddrLinklayer{Protocol: networkOrder(protocol)}))
}

// networkOrder returns v such that its bytes in memory are in network byte order.
func networkOrder(v uint16) uint16 {
	return binary.NativeEndian.Uint16(binary.BigEndian.AppendUint16(nil, v))
}

// neighborDiscovery is a filter that passes ICMPv6 messages of types 135 and 136 without extension
// headers. Only they cost a copy and a wake-up; other IPv6 packets cost three instructions.
func neighborDiscovery() *unix.SockFprog {
	const nextHeader, icmpType = 14 + 6, 14 + 40
	f := []unix.SockFilter{
		{Code: unix.BPF_LD | unix.BPF_B | unix.BPF_ABS, K: nextHeader},
		{Code: unix.BPF_JMP | unix.BPF_JEQ | unix.BPF_K, K: unix.IPPROTO_ICMPV6, Jf: 4},
		{Code: unix.BPF_LD | unix.BPF_B | unix.BPF_ABS, K: icmpType},
		{Code: unix.BPF_JMP | unix.BPF_JEQ | unix.BPF_K, K: 135, Jt: 1},
		{Code: unix.BPF_JMP | unix.BPF_JEQ | unix.BPF_K, K: 136, Jf: 1},
		{Code: unix.BPF_RET | unix.BPF_K, K: maxFrame},
		{Code: unix.BPF_RET | unix.BPF_K, K: 0},
	}
	return &unix.SockFprog{Len: uint16(len(f)), Filter: &f[0]}
}

// Receive calls each for every frame that another station sent to this host or to a group, with the
// index of the interface, until Close or an error. The frame is valid during the call only.
func (s *Socket) Receive(each func(index int, b []byte)) error {
	b := make([]byte, maxFrame)
	for {
		var n int
		var from unix.Sockaddr
		var failed error
		err := s.raw.Read(func(fd uintptr) bool {
			n, from, failed = unix.Recvfrom(int(fd), b, 0)
			return failed != unix.EAGAIN
		})
		switch {
		case err != nil:
			return err
		case failed == unix.EINTR || failed == unix.ENETDOWN || failed == unix.ENOBUFS:
			continue // ENETDOWN: an interface went down
		case failed != nil:
			return os.NewSyscallError("recvfrom", failed)
		}
		ll, ok := from.(*unix.SockaddrLinklayer)
		if ok && ll.Hatype == unix.ARPHRD_ETHER && ll.Pkttype <= unix.PACKET_MULTICAST { // not for other hosts, not outgoing
			each(ll.Ifindex, b[:n])
		}
	}
}

// Send sends a frame on an interface. It never waits. The error is ErrBusy, or that of the system.
func (s *Socket) Send(index int, b []byte) error {
	var failed error
	err := s.raw.Write(func(fd uintptr) bool {
		for {
			failed = s.sendto(int(fd), b, 0, &unix.SockaddrLinklayer{Protocol: binary.NativeEndian.Uint16(b[12:]), Ifindex: index})
			if failed != unix.EINTR {
				return true
			}
		}
	})
	switch {
	case err != nil:
		return err
	case failed == unix.ENOBUFS || failed == unix.EAGAIN:
		s.busy.Add(1)
		return ErrBusy
	}
	return os.NewSyscallError("sendto", failed)
}

// Close ends Receive.
func (s *Socket) Close() error { return s.file.Close() }
