package probe

import (
	"io"
	"net"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/ironvip/ironvip/test/expect"
	"github.com/ironvip/ironvip/test/must"
	"github.com/ironvip/ironvip/vip"
)

func TestTCP(t *testing.T) {
	inFamilies(t, func(t *testing.T, f family) {
		t.Parallel()
		silent := listen(t, f.host, func(c net.Conn) { io.Copy(io.Discard, c) })
		echo := listen(t, f.host, func(c net.Conn) { io.Copy(c, c) })
		banner := listen(t, f.host, func(c net.Conn) { io.WriteString(c, "220 mail ready\r\n"); io.Copy(io.Discard, c) })
		slow := listen(t, f.host, func(c net.Conn) {
			for {
				if _, err := io.WriteString(c, "2"); err != nil {
					return
				}
				time.Sleep(20 * time.Millisecond)
			}
		})
		flood := listen(t, f.host, func(c net.Conn) {
			chunk := make([]byte, 1<<20)
			for {
				if _, err := c.Write(chunk); err != nil {
					return
				}
			}
		})
		closes := listen(t, f.host, func(net.Conn) {})
		resets := listen(t, f.host, func(c net.Conn) { c.(*net.TCPConn).SetLinger(0); c.Read(make([]byte, 1)) })
		exchange := func(send, expect string) vip.HealthCheck {
			return vip.HealthCheck{Type: vip.CheckTCP, Send: send, Expect: expect}
		}
		run(t, Options{}, []expectation{
			{"connect", silent, tcp, OK, ""},
			{"connect to a server that closes", closes, tcp, OK, ""},
			{"refused", closedPort(t, f.host), tcp, Refused, "connect: connection refused"},
			{"full backlog", fullBacklog(t, f.host), tcp, TimedOut, "no connection within 500ms"},
			{"send only", silent, exchange("x", ""), OK, ""},
			{"echo", echo, exchange("PING\r\n", "PING"), OK, ""},
			{"other answer", echo, exchange("PING\r\n", "PONG"), BadAnswer, `answer "PING\r\n" does not begin with "PONG"`},
			{"banner", banner, exchange("", "220 "), OK, ""},
			{"no answer", silent, exchange("x", "y"), TimedOut, "no answer within 500ms"},
			{"one byte at a time", slow, exchange("", "2222"), OK, ""},
			{"too slow", slow, exchange("", "22222222222222222222222222222222222222222222222222"), TimedOut, "answer within 500ms"},
			{"flood", flood, exchange("", "\x00\x00\x00"), OK, ""},
			{"wrong flood", flood, exchange("", "\x00\x00\x01"), BadAnswer, "does not begin"},
			{"closed", closes, exchange("", "x"), Reset, "closed before"},
			{"reset", resets, exchange("x", "y"), Reset, "connection reset by peer"},
		})
	})
}

// A probe that only connects is not seen by the program that accepts: its reset comes before the
// handshake is complete.
func TestBareConnectIsInvisible(t *testing.T) {
	var accepted atomic.Int32
	seen := make(chan struct{})
	server := listen(t, "127.0.0.1", func(c net.Conn) {
		accepted.Add(1)
		if n, _ := c.Read(make([]byte, 1)); n == 1 {
			close(seen)
		}
	})
	all := make([]Target, 50)
	for i := range all {
		all[i] = NewTarget(server, tcp)
	}
	for _, d := range probeOnce(t, Options{}, all...) {
		expect.Equal(t, d.outcome, OK, "%+v", d)
	}
	if d := probeOnce(t, Options{}, NewTarget(server, vip.HealthCheck{Type: vip.CheckTCP, Send: "x"})); d[0].outcome != OK {
		t.Errorf("%+v", d)
	}
	<-seen // connections are accepted in order
	expect.AtMost(t, accepted.Load(), 5, "accepted of 51 connections")
}

// The kernel can connect a socket to itself. Such a socket is no listener.
func TestConnectionToItself(t *testing.T) {
	for _, f := range families {
		fd, address := boundSocket(t, f.host)
		_, sa := sockaddr(address)
		must.Succeed(t, unix.Connect(fd, sa))
		expect.True(t, connectedToItself(fd, address), "%s: not recognized", f.name)
		server := listen(t, f.host, func(c net.Conn) { io.Copy(io.Discard, c) })
		fd, _ = boundSocket(t, f.host)
		_, sa = sockaddr(server)
		must.Succeed(t, unix.Connect(fd, sa))
		expect.False(t, connectedToItself(fd, server), "%s: a connection to a server counts as one to itself", f.name)
	}
}

// Without descriptors, probes end as faults of this host, and all descriptors come back.
func TestNoDescriptors(t *testing.T) {
	server, err := net.Listen("tcp", "127.0.0.1:0") // accepts nobody, so that each probe keeps its descriptor
	must.Succeed(t, err)
	defer server.Close()
	silent := tcp
	silent.Expect = "answer"
	all := make([]Target, 200)
	for i := range all {
		all[i] = NewTarget(server.Addr().(*net.TCPAddr).AddrPort(), silent)
	}
	var old unix.Rlimit
	must.Succeed(t, unix.Getrlimit(unix.RLIMIT_NOFILE, &old))
	limit := old
	limit.Cur = uint64(descriptors(t) + 40)
	must.Succeed(t, unix.Setrlimit(unix.RLIMIT_NOFILE, &limit))
	defer unix.Setrlimit(unix.RLIMIT_NOFILE, &old)
	faults := 0
	for _, d := range probeOnce(t, Options{}, all...) {
		switch {
		case d.outcome == NoDescriptors && d.reason == "open a socket: too many open files":
			faults++
		case d.outcome != TimedOut:
			t.Errorf("%+v", d)
		}
	}
	if faults == 0 || faults == len(all) {
		t.Errorf("%d faults of %d probes", faults, len(all))
	}
}

func TestOutcomesOfErrors(t *testing.T) {
	for err, want := range map[error]Outcome{
		unix.ECONNREFUSED: Refused, unix.ETIMEDOUT: TimedOut, unix.ECONNRESET: Reset, unix.EPIPE: Reset,
		unix.ENETUNREACH: Unreachable, unix.EHOSTUNREACH: Unreachable, unix.EPERM: Unreachable,
		unix.EMFILE: NoDescriptors, unix.ENFILE: NoDescriptors, unix.ENOBUFS: Local, unix.EADDRNOTAVAIL: Local, unix.EAFNOSUPPORT: Local,
		io.ErrUnexpectedEOF: BadAnswer,
	} {
		got, _ := judge("x", err)
		expect.Equal(t, got, want, err)
	}
}

func FuzzMatch(f *testing.F) {
	f.Add("220 ready", "220 ", 2)
	f.Add("", "", 0)
	f.Fuzz(func(t *testing.T, answer, expect string, cut int) {
		cut = min(max(cut, 0), len(answer))
		got := match(expect, 0, []byte(answer[:cut]))
		if got >= 0 {
			got = match(expect, got, []byte(answer[cut:]))
		}
		whole := match(expect, 0, []byte(answer))
		if got != whole || (whole == len(expect)) != (len(answer) >= len(expect) && answer[:len(expect)] == expect) {
			t.Errorf("%q in parts: %d, whole: %d", answer, got, whole)
		}
		if text := clip(unexpected([]byte(answer), expect)); len(text) > maxReason+maxReason || text != clip(text) {
			t.Errorf("reason %q", text)
		}
	})
}

// A copy of a closed socket, which a process has that was forked and hasn't executed its program yet, is still reported. It is
// not taken for the socket that has the descriptor now.
func TestClosedSocketsAreNotReported(t *testing.T) {
	p := must.Get(newPoller(func([]done) { t.Error("a report") }))(t)
	defer p.epoll.Close()
	ends := must.Get(unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0))(t)
	defer unix.Close(ends[1])
	copied := must.Get(unix.FcntlInt(uintptr(ends[0]), unix.F_DUPFD_CLOEXEC, 0))(t)
	defer unix.Close(copied)
	fd := int32(ends[0])
	must.Succeed(t, unix.EpollCtl(p.fd, unix.EPOLL_CTL_ADD, ends[0], &unix.EpollEvent{Events: unix.EPOLLOUT, Fd: fd, Pad: 1}))
	unix.Close(ends[0])
	expect.Equal(t, p.poll(), 1, "events without a socket")
	p.sockets[fd] = &socket{id: 2, fd: -1}
	expect.Equal(t, p.poll(), 1, "events with another socket")
}
