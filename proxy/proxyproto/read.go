package proxyproto

import (
	"errors"
	"io"
	"sync"
	"syscall"

	"golang.org/x/sys/unix"
)

// ErrTruncated means that the connection ended inside the header.
var ErrTruncated = errors.New("the connection ended inside the header")

var buffers = sync.Pool{New: func() any { return new([MaxSize]byte) }}

// Read reads the header from c, a stream socket, and no byte after it. It takes at most MaxSize
// bytes, MaxV1 in version 1, and returns as soon as these can't be a header. It holds no buffer while
// it waits for the first byte. Besides errors of Parse and of c's read deadline, which bounds the
// wait, it returns io.EOF if c ends or is reset before the first byte, and ErrTruncated later. After
// an error, an unknown part of the header is still unread.
func Read(c syscall.Conn) (Header, error) {
	raw, err := c.SyscallConn()
	if err != nil {
		return Header{}, err
	}
	r := reader{}
	defer r.release()
	// The error of raw.Read is that of the deadline or of a closed socket; r has all others.
	if err := raw.Read(r.read); err != nil {
		return Header{}, err
	}
	return r.header, r.err
}

// reader is the state of one Read.
type reader struct {
	buffer *[MaxSize]byte
	have   int // bytes of the header that are in buffer, and no longer in the socket
	header Header
	err    error
}

// read takes what has arrived. It returns false if more is needed.
//
// It peeks, and then takes only bytes that belong to the header: all of them if the header is
// incomplete. A reader that left these in the socket could not wait for the next ones, because the
// poller reports new events only, and the end of the stream could already have been reported.
func (r *reader) read(fd uintptr) bool {
	if r.buffer == nil {
		r.buffer = buffers.Get().(*[MaxSize]byte)
	}
	for {
		n, err := recv(fd, r.buffer[r.have:], unix.MSG_PEEK)
		switch {
		case errors.Is(err, unix.EAGAIN):
			if r.have == 0 {
				r.release()
			}
			return false
		case err != nil && !errors.Is(err, unix.ECONNRESET):
			r.err = err
			return true
		case n <= 0:
			if r.err = ErrTruncated; r.have == 0 {
				r.err = io.EOF
			}
			return true
		}
		header, size, err := Parse(r.buffer[:r.have+n])
		if err != nil && !errors.Is(err, ErrIncomplete) {
			r.err = err
			return true
		}
		if err == nil {
			n = size - r.have
		}
		if n, r.err = recv(fd, r.buffer[r.have:r.have+n], 0); r.err != nil {
			return true
		}
		if r.have += n; r.have == size {
			r.header = header
			return true
		}
	}
}

func (r *reader) release() {
	if r.buffer != nil {
		buffers.Put(r.buffer)
		r.buffer = nil
	}
}

func recv(fd uintptr, b []byte, flags int) (n int, err error) {
	for {
		if n, _, err = unix.Recvfrom(int(fd), b, flags); !errors.Is(err, unix.EINTR) {
			return n, err
		}
	}
}
