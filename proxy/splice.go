package proxy

import (
	"errors"
	"io"
	"sync"
	"sync/atomic"

	"golang.org/x/sys/unix"

	"github.com/ironvip/ironvip/proxy/loop"
)

// A message that fits into a buffer costs a read and a write. More than that goes through a pipe, which
// saves copying it but takes two system calls more to find out that nothing is left. A pipe or a
// buffer is held only during a transfer, so an idle connection costs two descriptors and no buffer.

const (
	spliceChunk = 1 << 20   // most bytes that one splice moves; the pipe's size is a further bound
	pipeSize    = 256 << 10 // requested
	leastPipe   = 64 << 10  // the kernel's default; a buffer is better than a smaller pipe
	bufferSize  = 32 << 10  // a read that fills it begins to splice
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

// stream is what is copied from one TCP connection to another. It never waits.
type stream struct {
	dst, src *loop.Socket
	bulk     bool        // the last transfer was larger than a buffer
	buffered bool        // the kernel can't splice these sockets
	stuck    atomic.Bool // the destination accepts no more for now

	pipe    *pipe
	buffer  *[bufferSize]byte
	pending int   // bytes in pipe or buffer
	done    int   // bytes of buffer already written
	spliced int64 // bytes that went through a pipe
}

// fill reads what the source has, into a pipe if that is much. It returns 0 without an error if there
// is nothing for now, and then src isn't readable; or at the end of the source.
func (s *stream) fill(pipes *pipes) (n int, err error) {
	for s.src.Readable {
		if s.bulk && s.pipe == nil && !s.buffered {
			s.pipe = pipes.get()
		}
		room := bufferSize
		if s.pipe != nil {
			var moved int64
			moved, err = unix.Splice(s.src.FD, nil, s.pipe.w, nil, spliceChunk, unix.SPLICE_F_MOVE|unix.SPLICE_F_NONBLOCK)
			n, room = int(moved), 0
		} else {
			if s.buffer == nil {
				s.buffer = buffers.Get().(*[bufferSize]byte)
			}
			n, err = unix.Read(s.src.FD, s.buffer[:])
		}
		switch {
		case s.pipe != nil && (err == nil && n == 0 || s.src.Careful && errors.Is(err, unix.EAGAIN)):
			// At an urgent byte, a splice finds nothing or the end, although more follows. A read goes on
			// after it. The event of the byte may still be to come.
			s.release(pipes)
			s.bulk = false
		case err == nil:
			s.pending, s.done = n, 0
			s.bulk = n >= bufferSize
			if n > 0 && n < room && !s.src.Careful {
				s.src.Readable = false // there was no more; an event says when there is
			}
			return n, nil
		case errors.Is(err, unix.EINTR):
		case errors.Is(err, unix.EAGAIN):
			s.src.Readable = false
		case s.pipe != nil && (errors.Is(err, unix.EINVAL) || errors.Is(err, unix.ENOSYS)):
			s.release(pipes)
			s.buffered = true
		default:
			return 0, err
		}
	}
	return 0, nil
}

// drain writes what fill read, and returns how many bytes. It returns 0 without an error if the
// destination accepts no more for now.
func (s *stream) drain() (n int, err error) {
	for s.dst.Writable {
		if s.pipe != nil {
			var moved int64
			moved, err = unix.Splice(s.pipe.r, nil, s.dst.FD, nil, s.pending, unix.SPLICE_F_MOVE|unix.SPLICE_F_NONBLOCK)
			n = int(moved)
		} else {
			n, err = unix.Write(s.dst.FD, s.buffer[s.done:s.done+s.pending])
		}
		switch {
		case err == nil && n == 0:
			return 0, io.ErrShortWrite
		case err == nil:
			s.pending -= n
			s.done += n
			if s.pipe != nil {
				s.spliced += int64(n)
			}
			return n, nil
		case errors.Is(err, unix.EINTR):
		case errors.Is(err, unix.EAGAIN):
			s.dst.Writable = false
		default:
			return 0, err
		}
	}
	return 0, nil
}

// release returns the pipe and the buffer.
func (s *stream) release(pipes *pipes) {
	if s.pipe != nil {
		pipes.put(s.pipe, s.pending == 0)
		s.pipe = nil
	}
	if s.buffer != nil {
		buffers.Put(s.buffer)
		s.buffer = nil
	}
}
