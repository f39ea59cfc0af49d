package server

import (
	"context"
	"net"
	"net/netip"
	"runtime"
	"time"

	"golang.org/x/sys/unix"

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
	defer end(conn)
	defer context.AfterFunc(ctx, func() { _ = conn.SetReadDeadline(time.Now()) })() // what waits is for the next process
	if err := prepare(conn); err != nil {
		return err
	}
	e.up()
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	query := make([]byte, maxQuery)
	for answered := 1; ; answered++ {
		n, client, err := conn.ReadFromUDPAddrPort(query)
		switch {
		case err == nil: // also one from before the end
		case ctx.Err() != nil:
			return ctx.Err()
		default:
			return err
		}
		s.answer(e, conn, query[:n], netip.AddrPortFrom(client.Addr().Unmap(), client.Port()))
		if answered%turn == 0 {
			runtime.Gosched()
		}
	}
}

// turn is how many datagrams are answered without a pause, in about a millisecond.
const turn = 128

// answer sends the reply to a datagram.
func (s *Server) answer(e *endpoint, conn *net.UDPConn, query []byte, client netip.AddrPort) {
	start := time.Now()
	if !e.at.Addr().IsLoopback() && !s.admit(e, s.policy.Load(), client, start) {
		return
	}
	reply, outcome := s.Answerer.Answer(query, false)
	if len(reply) == 0 {
		s.counters.drop(Malformed)
		return
	}
	s.counters.answered(UDP, outcome)
	if _, err := conn.WriteToUDPAddrPort(reply, client); err != nil {
		s.counters.drop(SendFailed)
	}
	s.Took(time.Since(start))
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

// prepare sets the options of a socket.
func prepare(c *net.UDPConn) error {
	raw, err := c.SyscallConn()
	if err != nil {
		return err
	}
	return raw.Control(func(fd uintptr) {
		// Room for what arrives while the process waits for the processor. A process without
		// CAP_NET_ADMIN gets what net.core.rmem_max allows.
		if unix.SetsockoptInt(int(fd), unix.SOL_SOCKET, unix.SO_RCVBUFFORCE, receiveBuffer) != nil {
			_ = unix.SetsockoptInt(int(fd), unix.SOL_SOCKET, unix.SO_RCVBUF, receiveBuffer)
		}
	})
}

// receiveBuffer is in bytes. The kernel counts about 800 for a query.
const receiveBuffer = 1 << 20
