package server

import (
	"context"
	"errors"
	"net"
	"net/netip"
	"os"
	"runtime"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/ironvip/ironvip/dns/message"
	"github.com/ironvip/ironvip/internal/sockets"
)

// serveUDP opens the UDP socket of an endpoint, and answers until the context ends.
//
// One goroutine serves a socket, so that a flood takes no more than one processor from the rest of the
// agent. It has a thread of its own. On a busy host, the kernel gives a thread that has used much of a
// processor less of it, and the runtime would let that thread run other goroutines: a change of a
// service took three to five times as long during a flood. The goroutine also yields during one, for
// hosts with one processor.
func (s *Server) serveUDP(ctx context.Context, e *endpoint, end func(sockets.Socket)) error {
	conn, err := s.Sockets.ListenUDP(ctx, e.at)
	if err != nil {
		return err
	}
	defer endWith(ctx, func() { end(conn) })()
	if err := prepare(conn); err != nil {
		return err
	}
	raw, err := conn.SyscallConn()
	if err != nil {
		return err
	}
	e.up()
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	b := newBatch()
	var failed syscall.Errno
	err = raw.Read(func(fd uintptr) (done bool) {
		failed = s.drain(ctx, e, b, fd)
		return failed != 0
	})
	if failed != 0 {
		return os.NewSyscallError("recvmmsg", failed)
	}
	if errors.Is(err, net.ErrClosed) && ctx.Err() != nil {
		return ctx.Err()
	}
	return err
}

// turn is how many datagrams are answered without a pause, in less than a millisecond. A pause costs two
// changes of threads.
const turn = 8 * batchSize

// drain answers until no datagram waits. It returns what ends the socket.
//
// The last call of the kernel finds nothing, even after a batch that was not full. It costs a tenth of
// what a wait costs, and at 100,000 queries per second a datagram has arrived more often than not.
func (s *Server) drain(ctx context.Context, e *endpoint, b *batch, fd uintptr) syscall.Errno {
	answered := 0 // since the last pause
	for ctx.Err() == nil {
		n, errno := b.receive(fd)
		switch errno {
		case 0:
		case unix.EAGAIN:
			return 0
		case unix.EINTR, unix.ECONNREFUSED, unix.ENOMEM, unix.ENOBUFS:
			continue
		default:
			return errno
		}
		s.answer(e, b, n, fd)
		if answered += n; answered >= turn {
			answered = 0
			runtime.Gosched()
		}
	}
	return 0
}

// answer sends the replies to the datagrams of a batch.
func (s *Server) answer(e *endpoint, b *batch, n int, fd uintptr) {
	start := time.Now()
	p := s.policy.Load()
	loopback := e.at.Addr().IsLoopback()
	for i := range n {
		if !loopback {
			if client := b.client(i); !s.admit(e, p, client, start) {
				continue
			}
		}
		query, truncated := b.query(i)
		reply, outcome := b.space(i), malformed
		if truncated {
			reply = message.Malformed(reply, query)
		} else {
			reply, outcome = s.Answerer.Answer(reply, query, false)
		}
		if len(reply) == 0 {
			s.counters.drop(Malformed)
			continue
		}
		s.counters.answered(UDP, outcome)
		b.reply(i, len(reply))
	}
	if b.replied == 0 {
		return
	}
	for range b.send(fd) {
		s.counters.drop(SendFailed)
	}
	s.counters.took(time.Since(start), b.replied)
}

// admit reports whether the client of a datagram gets a reply.
func (s *Server) admit(e *endpoint, p *policy, client netip.AddrPort, now time.Time) bool {
	switch {
	case !e.admits(p, client.Addr()):
		s.counters.drop(NotAllowed)
		return false
	case client.Port() == 0:
		s.counters.drop(Malformed)
		return false
	case p.limit != nil && !client.Addr().IsLoopback() && !p.limit.take(client.Addr(), now):
		s.counters.drop(RateLimited)
		return false
	}
	return true
}
