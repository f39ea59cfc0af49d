package netlink

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"os"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"
)

// Limits of one send. The kernel may answer each message with an error, and the
// socket buffer holds that many answers (each costs the kernel about 1 KiB).
const (
	PackMessages = 256 // messages per send
	packBytes    = 32 << 10
	recvBytes    = 64 << 10 // the kernel puts at most 32 KiB of a dump into a datagram
	socketBuffer = 1 << 20
)

// replyTimeout bounds the wait for one reply. The kernel does its work during
// the send, so a reply that doesn't arrive at once was lost.
const replyTimeout = 10 * time.Second

var (
	// ErrUnknown is the outcome of a message if its acknowledgement was lost. The
	// kernel may or may not have carried it out.
	ErrUnknown = errors.New("outcome unknown: the kernel's answer was lost")
	// ErrInterrupted means that the listed objects changed during a dump.
	ErrInterrupted = errors.New("dump interrupted by a change")
	// ErrMalformed means that a message doesn't have the expected format.
	ErrMalformed = errors.New("malformed netlink message")
)

// Counters count messages to the kernel. Several sockets may share them, and
// they may be read at any time.
type Counters struct {
	Writes atomic.Uint64 // messages that Write sent
	Sends  atomic.Uint64 // system calls that carried messages
	Dumps  atomic.Uint64 // questions that Query sent
	Lost   atomic.Uint64 // messages whose outcome is unknown
}

// Conn is one netlink socket. It packs many messages into a send and requests an
// acknowledgement of the last one only. The kernel reports errors of each message,
// identified by sequence number. Conn is not safe for concurrent use.
type Conn struct {
	protocol int
	fd       int // -1: closed
	port     uint32
	seq      uint32
	out, in  []byte
	unread   []byte // rest of the last datagram
	stats    *Counters
}

// Socket is what the dataplanes use of a Conn. Tests put fakes in its place.
type Socket interface {
	Write(ctx context.Context, n int, put func(b []byte, i int) []byte, done func(i int, err error)) error
	Query(ctx context.Context, put func(b []byte) []byte, each func(typ uint16, data []byte) error) error
	Close()
}

// NewConn returns a closed socket. Open opens it.
func NewConn(protocol int, stats *Counters) *Conn {
	return &Conn{protocol: protocol, fd: -1, in: make([]byte, recvBytes), stats: stats}
}

// Dial returns an open socket.
func Dial(protocol int, stats *Counters) (*Conn, error) {
	c := NewConn(protocol, stats)
	return c, c.Open()
}

// Open opens the socket in the network namespace of the calling thread.
func (c *Conn) Open() error {
	fd, err := unix.Socket(unix.AF_NETLINK, unix.SOCK_RAW|unix.SOCK_CLOEXEC, c.protocol)
	if err != nil {
		return fmt.Errorf("open a netlink socket: %w", err)
	}
	if err := c.prepare(fd); err != nil {
		unix.Close(fd)
		return fmt.Errorf("prepare a netlink socket: %w", err)
	}
	c.fd = fd
	return nil
}

func (c *Conn) prepare(fd int) error {
	if err := unix.Bind(fd, &unix.SockaddrNetlink{Family: unix.AF_NETLINK}); err != nil {
		return os.NewSyscallError("bind", err)
	}
	// After connect, the kernel rejects messages from other processes.
	if err := unix.Connect(fd, &unix.SockaddrNetlink{Family: unix.AF_NETLINK}); err != nil {
		return os.NewSyscallError("connect", err)
	}
	name, err := unix.Getsockname(fd)
	if err != nil {
		return os.NewSyscallError("getsockname", err)
	}
	c.port = name.(*unix.SockaddrNetlink).Pid
	timeout := unix.NsecToTimeval(replyTimeout.Nanoseconds())
	if err := unix.SetsockoptTimeval(fd, unix.SOL_SOCKET, unix.SO_RCVTIMEO, &timeout); err != nil {
		return os.NewSyscallError("setsockopt SO_RCVTIMEO", err)
	}
	// These options only reduce the cost: an error doesn't repeat the message that
	// caused it, and the buffer holds the errors of a full pack.
	_ = unix.SetsockoptInt(fd, unix.SOL_NETLINK, unix.NETLINK_CAP_ACK, 1)
	if unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_RCVBUFFORCE, socketBuffer) != nil {
		_ = unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_RCVBUF, socketBuffer)
	}
	return nil
}

// SetSendBuffer sets the send buffer to n bytes. Without CAP_NET_ADMIN, the
// system's limit applies.
func (c *Conn) SetSendBuffer(n int) {
	if unix.SetsockoptInt(c.fd, unix.SOL_SOCKET, unix.SO_SNDBUFFORCE, n) != nil {
		_ = unix.SetsockoptInt(c.fd, unix.SOL_SOCKET, unix.SO_SNDBUF, n)
	}
}

// FD returns the socket's file descriptor for socket options, or -1 if the socket
// is closed.
func (c *Conn) FD() int { return c.fd }

// Port returns the port of the open socket, or of the last one. Events carry it (Event.Port).
func (c *Conn) Port() uint32 { return c.port }

// Close closes the socket. A later call opens it again.
func (c *Conn) Close() {
	if c.fd >= 0 {
		unix.Close(c.fd)
		c.fd = -1
	}
}

// Write sends n messages. It calls put to append each one (see BeginMessage), and
// done with the outcome of each one in order: nil, an errno, or ErrUnknown. If
// Write returns an error (the context ended, or no socket could be opened), it
// sent none of the messages without an outcome.
func (c *Conn) Write(ctx context.Context, n int, put func(b []byte, i int) []byte, done func(i int, err error)) error {
	var outcome [PackMessages]error
	for i := 0; i < n; {
		if err := ctx.Err(); err != nil {
			return err
		}
		b, first, last := c.out[:0], i, 0
		for i < n && i-first < PackMessages {
			start := len(b)
			longer := put(b, i)
			if start > 0 && len(longer) > packBytes {
				break
			}
			b, last = longer, start
			c.seq++
			EndMessage(b[start:], c.seq, c.port)
			i++
		}
		c.out = b
		flags := binary.NativeEndian.Uint16(b[last+6:])
		binary.NativeEndian.PutUint16(b[last+6:], flags|unix.NLM_F_ACK)
		count := i - first
		clear(outcome[:count])
		c.stats.Writes.Add(uint64(count))
		if err := c.send(ctx, b, true); err != nil {
			return err
		}
		c.collect(c.seq-uint32(count)+1, outcome[:count])
		for j, err := range outcome[:count] {
			done(first+j, err)
		}
	}
	return nil
}

// send sends messages, which change something or ask for it.
func (c *Conn) send(ctx context.Context, b []byte, write bool) error {
	if c.fd < 0 {
		if err := c.Open(); err != nil {
			return err
		}
		// The messages contain the old socket's port, but the kernel doesn't check it.
	}
	c.stats.Sends.Add(1)
	c.unread = nil // answers to earlier messages
	if i := interceptorOf(ctx); i != nil {
		return i(b, write, c.transmit)
	}
	return c.transmit(b)
}

func (c *Conn) transmit(b []byte) error {
	for {
		_, err := unix.Write(c.fd, b)
		if err == unix.EINTR {
			continue
		}
		if err != nil {
			return fmt.Errorf("send %d bytes by netlink: %w", len(b), err)
		}
		return nil
	}
}

// collect reads the outcomes of a pack. First is the sequence number of its first
// message. The answer to the last message ends the pack.
func (c *Conn) collect(first uint32, outcome []error) {
	for last := uint32(len(outcome) - 1); ; {
		h, data, err := c.message()
		if err != nil { // some answers were dropped, or there is none: a new socket receives no late ones
			c.Close()
			c.unknown(outcome)
			return
		}
		// Other messages are answers to earlier ones.
		if at := h.Seq - first; at <= last && h.Type == unix.NLMSG_ERROR && len(data) >= 4 {
			if code := int32(binary.NativeEndian.Uint32(data)); code != 0 {
				outcome[at] = unix.Errno(-code)
			}
			if at == last {
				return
			}
		}
	}
}

// unknown sets the outcome of all messages without an error to ErrUnknown.
func (c *Conn) unknown(outcome []error) {
	for i, err := range outcome {
		if err == nil {
			outcome[i] = ErrUnknown
			c.stats.Lost.Add(1)
		}
	}
}

// pending reports whether a message can be read now.
func (c *Conn) pending() bool {
	if len(c.unread) > 0 {
		return true
	}
	fds := []unix.PollFd{{Fd: int32(c.fd), Events: unix.POLLIN}}
	n, err := unix.Poll(fds, 0)
	return err == nil && n > 0
}

// Batch is a sequence of messages that the kernel applies atomically.
type Batch interface {
	// End completes the batch and returns its bytes. The message that requests an
	// acknowledgement gets the sequence number last, all others get first.
	End(first, last, port uint32) []byte
}

// Transact sends a batch. It returns the errors of all messages, joined.
func (c *Conn) Transact(ctx context.Context, x Batch) error {
	first := c.seq + 1
	c.seq += 2
	if err := c.send(ctx, x.End(first, c.seq, c.port), true); err != nil {
		return err
	}
	var failed error
	for {
		// The kernel reports errors before the acknowledgement. If it rejects the
		// batch itself, it sends no acknowledgement.
		if failed != nil && !c.pending() {
			return failed
		}
		h, data, err := c.message()
		if err != nil {
			c.Close()
			return errors.Join(failed, fmt.Errorf("%w: %w", ErrUnknown, err))
		}
		if h.Seq-first > 1 || h.Type != unix.NLMSG_ERROR || len(data) < 4 {
			continue
		}
		code := int32(binary.NativeEndian.Uint32(data))
		switch errno := unix.Errno(-code); {
		case code != 0 && !errors.Is(failed, errno):
			failed = errors.Join(failed, errno)
		case code == 0 && h.Seq == c.seq && failed == nil:
			return nil
		}
	}
}

// Query sends one request and calls each for each message of the answer. The
// slice is valid during the call only.
func (c *Conn) Query(ctx context.Context, put func(b []byte) []byte, each func(typ uint16, data []byte) error) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	b := put(c.out[:0])
	c.out = b
	c.seq++
	EndMessage(b, c.seq, c.port)
	c.stats.Dumps.Add(1)
	if err := c.send(ctx, b, false); err != nil {
		return err
	}
	err := c.answers(c.seq, each)
	if err != nil {
		// The rest of this answer must not be read as the answer to a later request.
		if _, errno := err.(unix.Errno); !errno && err != ErrInterrupted || err == unix.ENOBUFS || err == unix.EAGAIN {
			c.Close()
		}
	}
	return err
}

func (c *Conn) answers(seq uint32, each func(typ uint16, data []byte) error) error {
	interrupted := false
	for {
		h, data, err := c.message()
		if err != nil {
			return err
		}
		if h.Seq != seq {
			continue
		}
		interrupted = interrupted || h.Flags&unix.NLM_F_DUMP_INTR != 0
		switch h.Type {
		case unix.NLMSG_ERROR, unix.NLMSG_DONE:
			if len(data) >= 4 {
				if code := int32(binary.NativeEndian.Uint32(data)); code < 0 {
					return unix.Errno(-code)
				}
			}
			if interrupted {
				return ErrInterrupted
			}
			return nil
		}
		if err := each(h.Type, data); err != nil {
			return err
		}
		if h.Flags&unix.NLM_F_MULTI == 0 {
			return nil
		}
	}
}

// message returns the next message. It is valid until the next call.
func (c *Conn) message() (h Header, data []byte, err error) {
	if len(c.unread) == 0 {
		if c.unread, err = c.receive(); err != nil {
			return h, nil, err
		}
	}
	h, data, c.unread, err = NextMessage(c.unread)
	return h, data, err
}

// receive returns one datagram. The socket is connected, so only the kernel can be the
// sender.
func (c *Conn) receive() ([]byte, error) {
	for {
		n, err := unix.Read(c.fd, c.in)
		switch {
		case err == unix.EINTR:
			continue
		case err != nil:
			return nil, err
		case n == len(c.in): // it may have been truncated
			return nil, fmt.Errorf("netlink answer has %d bytes or more: %w", n, ErrMalformed)
		}
		return c.in[:n], nil
	}
}
