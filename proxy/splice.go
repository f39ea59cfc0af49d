package proxy

import (
	"errors"
	"io"
	"net"
	"sync"
	"sync/atomic"
	"syscall"

	"golang.org/x/sys/unix"
)

// io.Copy between TCP connections also splices, but it holds a pipe (two descriptors and its
// buffers) for each direction while it runs. A mostly idle connection would hold it permanently.
// io.Copy also doesn't report which side failed. The code below holds a pipe or a buffer only
// during a transfer, so an idle connection costs two descriptors and no buffer.

const (
	spliceChunk = 1 << 20   // most bytes that one splice moves; the pipe's size is a further bound
	pipeSize    = 256 << 10 // requested
	leastPipe   = 64 << 10  // the kernel's default; a buffer is better than a smaller pipe
	bufferSize  = 32 << 10  // for a copy without a pipe
	idlePipes   = 64        // pipes kept for reuse
)

// pipe is a pipe that is empty or holds bytes in transfer.
type pipe struct{ r, w int }

// pipes creates, reuses and bounds pipes.
type pipes struct {
	most int

	mu     sync.Mutex
	idle   []*pipe
	open   int
	closed bool
}

// get returns an empty pipe. It returns nil at the bound, or if the kernel has no pipes left.
func (p *pipes) get() *pipe {
	p.mu.Lock()
	if n := len(p.idle); n > 0 {
		last := p.idle[n-1]
		p.idle = p.idle[:n-1]
		p.mu.Unlock()
		return last
	}
	if p.open >= p.most {
		p.mu.Unlock()
		return nil
	}
	p.open++
	p.mu.Unlock()

	q := newPipe()
	if q == nil {
		p.mu.Lock()
		p.open--
		p.mu.Unlock()
	}
	return q
}

// newPipe returns a pipe, or nil if the kernel has none of a useful size. The kernel gives an
// unprivileged user with many pipes smaller ones, down to two pages (fs.pipe-user-pages-soft).
func newPipe() *pipe {
	var fds [2]int
	if err := unix.Pipe2(fds[:], unix.O_CLOEXEC|unix.O_NONBLOCK); err != nil {
		return nil
	}
	q := &pipe{r: fds[0], w: fds[1]}
	size, err := unix.FcntlInt(uintptr(q.r), unix.F_SETPIPE_SZ, pipeSize)
	if err != nil {
		size, err = unix.FcntlInt(uintptr(q.r), unix.F_GETPIPE_SZ, 0)
	}
	if err != nil || size < leastPipe {
		q.close()
		return nil
	}
	return q
}

// put returns a pipe. It closes a pipe that isn't empty.
func (p *pipes) put(q *pipe, empty bool) {
	p.mu.Lock()
	if empty && !p.closed && len(p.idle) < idlePipes {
		p.idle = append(p.idle, q)
		p.mu.Unlock()
		return
	}
	p.open--
	p.mu.Unlock()
	q.close()
}

func (q *pipe) close() {
	unix.Close(q.r)
	unix.Close(q.w)
}

// held returns the number of pipes in use.
func (p *pipes) held() int {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.open - len(p.idle)
}

// close closes the idle pipes. Pipes that are returned later are closed, too.
func (p *pipes) close() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.closed = true
	for _, q := range p.idle {
		q.close()
	}
	p.open -= len(p.idle)
	p.idle = nil
}

var buffers = sync.Pool{New: func() any { return new([bufferSize]byte) }}

// stream copies from one TCP connection to another until the source ends.
type stream struct {
	dst, src *net.TCPConn
	pipes    *pipes
	buffered bool        // the kernel can't splice these sockets
	stuck    atomic.Bool // the destination accepts no more for now

	pipe    *pipe
	buffer  *[bufferSize]byte
	pending int // bytes in pipe or buffer
	done    int // bytes of buffer already written
	err     error
	bytes   int64           // written
	spliced int64           // part of bytes that went through a pipe
	count   func(bytes int) // called with the number of bytes written; nil: not counted
}

// copy runs the stream and returns the error of each side. Both are nil if the source ended
// normally.
func (s *stream) copy() (readErr, writeErr error) {
	src, err := s.src.SyscallConn()
	if err != nil {
		return err, nil
	}
	dst, err := s.dst.SyscallConn()
	if err != nil {
		return nil, err
	}
	defer s.release()
	fill, drain := s.fill, s.drain
	for {
		if err := s.do(src.Read, fill); err != nil {
			return err, nil
		}
		if s.pending == 0 {
			return nil, nil
		}
		if err := s.do(dst.Write, drain); err != nil {
			return nil, err
		}
	}
}

func (s *stream) do(wait func(func(uintptr) bool) error, f func(uintptr) bool) error {
	s.err = nil
	if err := wait(f); err != nil {
		return err
	}
	return s.err
}

// fill reads what the source has. It returns false if there is nothing yet, and then holds neither
// pipe nor buffer while it waits.
func (s *stream) fill(fd uintptr) bool {
	for {
		if s.pipe == nil && !s.buffered {
			s.pipe = s.pipes.get()
		}
		var n int
		var err error
		if s.pipe != nil {
			var moved int64
			moved, err = unix.Splice(int(fd), nil, s.pipe.w, nil, spliceChunk, unix.SPLICE_F_MOVE|unix.SPLICE_F_NONBLOCK)
			n = int(moved)
		} else {
			if s.buffer == nil {
				s.buffer = buffers.Get().(*[bufferSize]byte)
			}
			n, err = unix.Read(int(fd), s.buffer[:])
		}
		switch {
		case err == nil:
			s.pending, s.done = n, 0
			return true
		case errors.Is(err, unix.EINTR):
		case errors.Is(err, unix.EAGAIN):
			s.release()
			return false
		case s.pipe != nil && (errors.Is(err, unix.EINVAL) || errors.Is(err, unix.ENOSYS)):
			s.release()
			s.buffered = true
		default:
			s.pending, s.err = 0, err
			return true
		}
	}
}

// drain writes everything that fill read. It returns false if the destination accepts no more for
// now.
func (s *stream) drain(fd uintptr) bool {
	for s.pending > 0 {
		var n int
		var err error
		if s.pipe != nil {
			var moved int64
			moved, err = unix.Splice(s.pipe.r, nil, int(fd), nil, s.pending, unix.SPLICE_F_MOVE|unix.SPLICE_F_NONBLOCK)
			n = int(moved)
			s.spliced += max(moved, 0)
		} else {
			n, err = unix.Write(int(fd), s.buffer[s.done:s.done+s.pending])
		}
		switch {
		case err == nil && n == 0:
			s.err = io.ErrShortWrite
			return true
		case err == nil:
			s.pending -= n
			s.done += n
			s.bytes += int64(n)
			if s.count != nil {
				s.count(n)
			}
			if s.stuck.Load() {
				s.stuck.Store(false)
			}
		case errors.Is(err, unix.EINTR):
		case errors.Is(err, unix.EAGAIN):
			s.stuck.Store(true)
			return false
		default:
			s.err = err
			return true
		}
	}
	return true
}

// release returns the pipe and the buffer.
func (s *stream) release() {
	if s.pipe != nil {
		s.pipes.put(s.pipe, s.pending == 0)
		s.pipe = nil
	}
	if s.buffer != nil {
		buffers.Put(s.buffer)
		s.buffer = nil
	}
}

// reset closes c so that its peer receives a reset, even if data is unsent.
func reset(c *net.TCPConn) {
	_ = c.SetLinger(0)
	_ = c.Close()
}

// control runs f on c's descriptor if c is open.
func control(c syscall.Conn, f func(fd int)) bool {
	raw, err := c.SyscallConn()
	return err == nil && raw.Control(func(fd uintptr) { f(int(fd)) }) == nil
}
