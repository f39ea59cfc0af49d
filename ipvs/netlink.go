package ipvs

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

// What one send may carry. Every message of a pack may come back as an error;
// the receive buffer holds that many (each costs the kernel about 1 KiB).
const (
	packBytes    = 32 << 10
	packMessages = 256
	recvBytes    = 64 << 10 // the kernel fills no more than 32 KiB of a dump at once
	socketBuffer = 1 << 20
)

// replyTimeout bounds the wait for one reply. The kernel does its work within
// the send, so a reply that isn't there at once was lost.
const replyTimeout = 10 * time.Second

var (
	// errUnknown is the outcome of a message whose acknowledgement was lost: it
	// may or may not have been carried out.
	errUnknown = errors.New("outcome unknown: the kernel's answer was lost")
	// errInterrupted says that a dump changed while it was read.
	errInterrupted = errors.New("dump interrupted by a change")
	errMalformed   = errors.New("malformed netlink message")
)

// counters count what went to the kernel. They are shared by all sockets of a
// Target and may be read at any time.
type counters struct {
	writes, sends, dumps, lost, nftMessages, addresses, conntrack, conntrackDumps, tables atomic.Uint64
}

// conn is one netlink socket that packs many messages into a send and asks for
// an acknowledgement of the last only: errors come back for each message, told
// apart by sequence number. It is not safe for concurrent use.
type conn struct {
	protocol int
	fd       int // -1: to be opened anew
	port     uint32
	seq      uint32
	out, in  []byte
	stats    *counters
}

func dial(protocol int, stats *counters) (*conn, error) {
	c := &conn{protocol: protocol, fd: -1, in: make([]byte, recvBytes), stats: stats}
	return c, c.open()
}

// open makes the socket, in the network namespace of the calling thread.
func (c *conn) open() error {
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

func (c *conn) prepare(fd int) error {
	if err := unix.Bind(fd, &unix.SockaddrNetlink{Family: unix.AF_NETLINK}); err != nil {
		return os.NewSyscallError("bind", err)
	}
	// From here on the kernel refuses what other processes send to this socket.
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
	// These make things cheaper, no more: an error doesn't repeat the message
	// that caused it, and a full pack of errors fits.
	_ = unix.SetsockoptInt(fd, unix.SOL_NETLINK, unix.NETLINK_CAP_ACK, 1)
	if unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_RCVBUFFORCE, socketBuffer) != nil {
		_ = unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_RCVBUF, socketBuffer)
	}
	return nil
}

func (c *conn) close() {
	if c.fd >= 0 {
		unix.Close(c.fd)
		c.fd = -1
	}
}

// write sends n messages, which put appends one at a time (see beginMessage),
// and tells done the outcome of each, in order: nil, an errno, or errUnknown.
// The error it returns means that nothing from the first message not told of
// was sent: the context ended, or there is no socket to be had.
func (c *conn) write(ctx context.Context, n int, put func(b []byte, i int) []byte, done func(i int, err error)) error {
	var outcome [packMessages]error
	for i := 0; i < n; {
		if err := ctx.Err(); err != nil {
			return err
		}
		b, first, last := c.out[:0], i, 0
		for i < n && i-first < packMessages {
			start := len(b)
			longer := put(b, i)
			if start > 0 && len(longer) > packBytes {
				break
			}
			b, last = longer, start
			c.seq++
			endMessage(b[start:], c.seq, c.port)
			i++
		}
		c.out = b
		flags := binary.NativeEndian.Uint16(b[last+6:])
		binary.NativeEndian.PutUint16(b[last+6:], flags|unix.NLM_F_ACK)
		count := i - first
		clear(outcome[:count])
		c.stats.writes.Add(uint64(count))
		if err := c.send(b); err != nil {
			return err
		}
		c.collect(c.seq-uint32(count)+1, outcome[:count])
		for j, err := range outcome[:count] {
			done(first+j, err)
		}
	}
	return nil
}

func (c *conn) send(b []byte) error {
	if c.fd < 0 {
		if err := c.open(); err != nil {
			return err
		}
		// The messages carry the old socket's port, which the kernel doesn't check.
	}
	c.stats.sends.Add(1)
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

// collect reads the answers to the pack that starts at sequence number first,
// up to that of its last message.
func (c *conn) collect(first uint32, outcome []error) {
	lost := false
	for {
		msgs, err := c.receive()
		if err == unix.ENOBUFS {
			lost = true // some answers are gone, later ones may still be there
			if c.pending() {
				continue
			}
			c.unknown(outcome)
			return
		}
		if err != nil { // no answer, or not a sensible one: a new socket knows nothing of old answers
			c.close()
			c.unknown(outcome)
			return
		}
		for len(msgs) > 0 {
			h, data, rest, err := nextMessage(msgs)
			if err != nil {
				c.close()
				c.unknown(outcome)
				return
			}
			msgs = rest
			at := h.seq - first
			if at >= uint32(len(outcome)) || h.typ != unix.NLMSG_ERROR || len(data) < 4 {
				continue // an answer to an earlier question
			}
			if code := int32(binary.NativeEndian.Uint32(data)); code != 0 {
				outcome[at] = unix.Errno(-code)
			}
			if at == uint32(len(outcome)-1) {
				if lost {
					c.unknown(outcome[:at])
				}
				return
			}
		}
		if lost && !c.pending() {
			c.unknown(outcome)
			return
		}
	}
}

// unknown marks those messages that no answer spoke of.
func (c *conn) unknown(outcome []error) {
	for i, err := range outcome {
		if err == nil {
			outcome[i] = errUnknown
			c.stats.lost.Add(1)
		}
	}
}

// pending reports whether something is there to be received.
func (c *conn) pending() bool {
	fds := []unix.PollFd{{Fd: int32(c.fd), Events: unix.POLLIN}}
	n, err := unix.Poll(fds, 0)
	return err == nil && n > 0
}

// transact sends a batch that is carried out as a whole or not at all. What went
// wrong with any part of it is one error.
func (c *conn) transact(x *transaction) error {
	first := c.seq + 1
	c.seq += 2
	if err := c.send(x.end(first, c.seq, c.port)); err != nil {
		return err
	}
	var failed error
	for {
		// The kernel speaks of errors before it answers, and where it
		// refuses the batch itself it doesn't answer.
		if failed != nil && !c.pending() {
			return failed
		}
		msgs, err := c.receive()
		if err != nil {
			c.close()
			return errors.Join(failed, fmt.Errorf("%w: %w", errUnknown, err))
		}
		for len(msgs) > 0 {
			h, data, rest, err := nextMessage(msgs)
			if err != nil {
				c.close()
				return errors.Join(failed, err)
			}
			msgs = rest
			if h.seq-first > 1 || h.typ != unix.NLMSG_ERROR || len(data) < 4 {
				continue
			}
			code := int32(binary.NativeEndian.Uint32(data))
			switch errno := unix.Errno(-code); {
			case code != 0 && !errors.Is(failed, errno):
				failed = errors.Join(failed, errno)
			case code == 0 && h.seq == c.seq && failed == nil:
				return nil
			}
		}
	}
}

// query sends one question and hands each part of the answer to each, which
// must not keep the slice. A dump ends with the kernel's word that it is done.
func (c *conn) query(ctx context.Context, put func(b []byte) []byte, each func(typ uint16, data []byte) error) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	b := put(c.out[:0])
	c.out = b
	c.seq++
	endMessage(b, c.seq, c.port)
	c.stats.dumps.Add(1)
	if err := c.send(b); err != nil {
		return err
	}
	err := c.answers(c.seq, each)
	if err != nil {
		// What is left of the answer must not be taken for that of another question.
		if _, errno := err.(unix.Errno); !errno && err != errInterrupted || err == unix.ENOBUFS || err == unix.EAGAIN {
			c.close()
		}
	}
	return err
}

func (c *conn) answers(seq uint32, each func(typ uint16, data []byte) error) error {
	interrupted := false
	for {
		msgs, err := c.receive()
		if err != nil {
			return err
		}
		for len(msgs) > 0 {
			h, data, rest, err := nextMessage(msgs)
			if err != nil {
				return err
			}
			msgs = rest
			if h.seq != seq {
				continue
			}
			interrupted = interrupted || h.flags&unix.NLM_F_DUMP_INTR != 0
			switch h.typ {
			case unix.NLMSG_ERROR, unix.NLMSG_DONE:
				if len(data) >= 4 {
					if code := int32(binary.NativeEndian.Uint32(data)); code < 0 {
						return unix.Errno(-code)
					}
				}
				if interrupted {
					return errInterrupted
				}
				return nil
			}
			if err := each(h.typ, data); err != nil {
				return err
			}
			if h.flags&unix.NLM_F_MULTI == 0 {
				return nil
			}
		}
	}
}

// receive returns one datagram, valid until the next call. The socket is
// connected to the kernel, so it comes from nobody else.
func (c *conn) receive() ([]byte, error) {
	for {
		n, err := unix.Read(c.fd, c.in)
		switch {
		case err == unix.EINTR:
			continue
		case err != nil:
			return nil, err
		case n == len(c.in): // as long as that, or cut
			return nil, fmt.Errorf("a netlink answer of %d bytes or more: %w", n, errMalformed)
		}
		return c.in[:n], nil
	}
}

// attrTypeMask takes the flag bits off an attribute's type.
const attrTypeMask = ^uint16(unix.NLA_F_NESTED | unix.NLA_F_NET_BYTEORDER)

// header is the part of nlmsghdr that matters.
type header struct {
	typ, flags uint16
	seq        uint32
}

// nextMessage splits the first message off b.
func nextMessage(b []byte) (h header, data, rest []byte, err error) {
	if len(b) < unix.SizeofNlMsghdr {
		return h, nil, nil, errMalformed
	}
	size := int(binary.NativeEndian.Uint32(b))
	if size < unix.SizeofNlMsghdr || size > len(b) {
		return h, nil, nil, errMalformed
	}
	h.typ = binary.NativeEndian.Uint16(b[4:])
	h.flags = binary.NativeEndian.Uint16(b[6:])
	h.seq = binary.NativeEndian.Uint32(b[8:])
	return h, b[unix.SizeofNlMsghdr:size], b[min(align(size), len(b)):], nil
}

// beginMessage appends a message header; the sender completes it.
func beginMessage(b []byte, typ, flags uint16) []byte {
	b = binary.NativeEndian.AppendUint32(b, 0)
	b = binary.NativeEndian.AppendUint16(b, typ)
	b = binary.NativeEndian.AppendUint16(b, flags|unix.NLM_F_REQUEST)
	return append(b, 0, 0, 0, 0, 0, 0, 0, 0)
}

func endMessage(m []byte, seq, port uint32) {
	binary.NativeEndian.PutUint32(m, uint32(len(m)))
	binary.NativeEndian.PutUint32(m[8:], seq)
	binary.NativeEndian.PutUint32(m[12:], port)
}

func align(n int) int { return (n + 3) &^ 3 }

// appendAttr appends one attribute, padded.
func appendAttr(b []byte, typ uint16, value ...byte) []byte {
	b = binary.NativeEndian.AppendUint16(b, uint16(4+len(value)))
	b = binary.NativeEndian.AppendUint16(b, typ)
	b = append(b, value...)
	for len(b)%4 != 0 {
		b = append(b, 0)
	}
	return b
}

func appendAttr16(b []byte, typ, v uint16) []byte {
	b = append(b, 0, 0, 0, 0, 0, 0, 0, 0)
	at := b[len(b)-8:]
	binary.NativeEndian.PutUint16(at, 6)
	binary.NativeEndian.PutUint16(at[2:], typ)
	binary.NativeEndian.PutUint16(at[4:], v)
	return b
}

func appendAttr32(b []byte, typ uint16, v uint32) []byte {
	b = binary.NativeEndian.AppendUint16(b, 8)
	b = binary.NativeEndian.AppendUint16(b, typ)
	return binary.NativeEndian.AppendUint32(b, v)
}

func appendAttrString(b []byte, typ uint16, s string) []byte {
	b = binary.NativeEndian.AppendUint16(b, uint16(4+len(s)+1))
	b = binary.NativeEndian.AppendUint16(b, typ)
	b = append(b, s...)
	b = append(b, 0)
	for len(b)%4 != 0 {
		b = append(b, 0)
	}
	return b
}

// beginNest appends the head of a nested attribute and returns where it
// starts; endNest fills in its length.
func beginNest(b []byte, typ uint16) ([]byte, int) {
	return binary.NativeEndian.AppendUint16(append(b, 0, 0), typ), len(b)
}

func endNest(b []byte, start int) []byte {
	binary.NativeEndian.PutUint16(b[start:], uint16(len(b)-start))
	return b
}

// attrs walks the attributes in b. After the walk, err says whether b was well
// formed.
type attrs struct {
	b   []byte
	err error
}

// next returns the next attribute's type, without flag bits, and its value.
func (a *attrs) next() (typ uint16, value []byte, ok bool) {
	if len(a.b) == 0 || a.err != nil {
		return 0, nil, false
	}
	if len(a.b) < 4 {
		a.err = errMalformed
		return 0, nil, false
	}
	size := int(binary.NativeEndian.Uint16(a.b))
	if size < 4 || size > len(a.b) {
		a.err = errMalformed
		return 0, nil, false
	}
	typ = binary.NativeEndian.Uint16(a.b[2:]) & attrTypeMask
	value = a.b[4:size]
	a.b = a.b[min(align(size), len(a.b)):]
	return typ, value, true
}

func (a *attrs) uint16(v []byte) uint16 {
	if len(v) < 2 {
		a.err = errMalformed
		return 0
	}
	return binary.NativeEndian.Uint16(v)
}

func (a *attrs) uint32(v []byte) uint32 {
	if len(v) < 4 {
		a.err = errMalformed
		return 0
	}
	return binary.NativeEndian.Uint32(v)
}

func (a *attrs) uint64(v []byte) uint64 {
	if len(v) < 8 {
		a.err = errMalformed
		return 0
	}
	return binary.NativeEndian.Uint64(v)
}
