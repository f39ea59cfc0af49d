package proxy

import (
	"bytes"
	"crypto/sha256"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"net/netip"
	"runtime"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/ironvip/ironvip/proxy/loop"
	"github.com/ironvip/ironvip/test/descriptors"
	"github.com/ironvip/ironvip/test/expect"
	"github.com/ironvip/ironvip/test/must"
	"github.com/ironvip/ironvip/test/wait"
	"github.com/ironvip/ironvip/vip"
)

func TestIPv6ClientsReachIPv4Backends(t *testing.T) {
	p := newTarget(t, Options{})
	key := freeKey(t, "::1", vip.TCP)
	p.must(onVIP(key, vip.RoundRobin, tcpBackend(t, "127.0.0.1", named("a"))))
	expect.Equal(t, who(t, key), "a")
}

// The backend ends its direction first: it still receives what the client sends.
func TestTCPHalfCloseByBackend(t *testing.T) {
	got := make(chan string, 1)
	backend := tcpBackend(t, "127.0.0.1", func(c *net.TCPConn) {
		fmt.Fprint(c, "go")
		c.CloseWrite()
		all, _ := io.ReadAll(c)
		got <- string(all)
	})
	p, key := serve(t, backend)
	c := dial(t, key)
	must.Equal(t, string(must.Get(io.ReadAll(c))(t)), "go")
	for i := range 3 {
		fmt.Fprint(c, i)
		time.Sleep(10 * time.Millisecond) // three segments, after the end of the other half
	}
	c.CloseWrite()
	must.Equal(t, <-got, "012", "backend")
	wait.Until(t, "connection gone", func() bool { return p.Stats().Connections == 0 })
}

func TestTCPLargeTransfersBothWays(t *testing.T) {
	for _, c := range []struct {
		name  string
		pipes int
	}{{"spliced", 100}, {"without pipes", 0}} {
		t.Run(c.name, func(t *testing.T) {
			const size = 32 << 20
			data := make([]byte, size)
			rng := rand.NewChaCha8([32]byte{1})
			rng.Read(data)
			sums := make(chan [32]byte, 1)
			backend := tcpBackend(t, "127.0.0.1", func(c *net.TCPConn) {
				var both sync.WaitGroup
				both.Go(func() {
					h := sha256.New()
					io.Copy(h, c)
					sums <- [32]byte(h.Sum(nil))
				})
				c.Write(data)
				c.CloseWrite()
				both.Wait()
			})
			p := newTarget(t, Options{})
			p.pipes.most = c.pipes
			key := freeKey(t, "127.96.0.1", vip.TCP)
			p.must(onVIP(key, vip.RoundRobin, backend))
			conn := dial(t, key)
			var both sync.WaitGroup
			both.Go(func() {
				conn.Write(data)
				conn.CloseWrite()
			})
			h := sha256.New()
			n, err := io.Copy(h, conn)
			both.Wait()
			if want := sha256.Sum256(data); err != nil || n != size || !bytes.Equal(h.Sum(nil), want[:]) || <-sums != want {
				t.Fatalf("%d bytes, %v: not what was sent", n, err)
			}
		})
	}
}

// A small message goes through a buffer, which costs fewer system calls. Most of a large transfer goes
// through a pipe in the kernel and not through this process.
func TestTCPIsSpliced(t *testing.T) {
	const small, large = 1000, 64 << 20
	ends := make(chan struct{})
	backend := tcpBackend(t, "127.0.0.1", func(c *net.TCPConn) {
		_, _ = io.ReadFull(c, make([]byte, small))
		_, _ = c.Write(make([]byte, small))
		_, _ = io.CopyN(io.Discard, struct{ io.Reader }{c}, large)
		fmt.Fprintln(c, "all")
		<-ends
	})
	defer close(ends)
	p, key := serve(t, backend)
	c := dial(t, key)
	_, _ = c.Write(make([]byte, small))
	must.Get(io.ReadFull(c.r, make([]byte, small)))(t)
	spliced := func() (up, down int64) {
		one := p.only()
		one.io.Lock()
		defer one.io.Unlock()
		return one.up.spliced, one.down.spliced
	}
	if up, down := spliced(); up != 0 || down != 0 {
		t.Errorf("%d and %d bytes of small messages spliced", up, down)
	}
	must.Get(io.Copy(struct{ io.Writer }{c}, io.LimitReader(neverEnding{}, large)))(t)
	c.line(t)
	if up, _ := spliced(); up < large/2 {
		t.Errorf("of %d bytes %d spliced", large, up)
	}
	wait.Until(t, "no pipe is held", func() bool { return p.pipes.held() == 0 })
}

// Both sides of each connection that stays detect dead peers, and send small messages at once.
func TestSocketOptions(t *testing.T) {
	inFamilies(t, func(t *testing.T, family family) {
		p := newTarget(t, Options{})
		key := freeKey(t, family.vip, vip.TCP)
		p.must(onVIP(key, vip.RoundRobin, tcpBackend(t, family.backend, named("a"))))
		for client := range 3 {
			c := dial(t, key)
			c.line(t)
			one := p.only()
			p.timeouts.Move(one, p.balance.Now())
			wait.Until(t, "keep-alives", func() bool {
				one.io.Lock()
				defer one.io.Unlock()
				on, err := unix.GetsockoptInt(one.server.FD, unix.SOL_SOCKET, unix.SO_KEEPALIVE)
				return err == nil && on == 1
			})
			one.io.Lock()
			for side, fd := range map[string]int{"client": one.client.FD, "backend": one.server.FD} {
				for option, value := range map[int]int{unix.TCP_NODELAY: 1, unix.TCP_KEEPIDLE: 60, unix.TCP_KEEPINTVL: 20, unix.TCP_KEEPCNT: 6} {
					expect.Equal(t, must.Get(unix.GetsockoptInt(fd, unix.IPPROTO_TCP, option))(t), value, "client %d, %s: option %d", client, side, option)
				}
				expect.Equal(t, must.Get(unix.GetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_KEEPALIVE))(t), 1, "client %d, %s: keep-alive", client, side)
			}
			one.io.Unlock()
			c.Close()
			wait.Until(t, "connection gone", func() bool { return p.Stats().Connections == 0 })
		}
	})
}

// A read ends at an urgent byte, although more has arrived. The byte itself is lost, as in every proxy.
func TestTCPAfterAnUrgentByte(t *testing.T) {
	p, key := serve(t, tcpBackend(t, "127.0.0.1", named("a")))
	c := dial(t, key)
	c.line(t)
	one := p.only()
	one.io.Lock() // all arrives before the loop reads
	control(c.TCPConn, func(fd int) {
		_, err := unix.SendmsgN(fd, []byte("abc!"), nil, nil, unix.MSG_OOB)
		expect.Succeed(t, err)
	})
	fmt.Fprintln(c, "def")
	for unsent(c.TCPConn) > 0 {
		runtime.Gosched()
	}
	one.io.Unlock()
	expect.Equal(t, c.line(t), "abcdef")
}

// A splice ends at an urgent byte, too, and goes on after it neither by itself nor with the end.
func TestATransferGoesOnAfterAnUrgentByte(t *testing.T) {
	for name, ends := range map[string]bool{"open": false, "ended": true} {
		t.Run(name, func(t *testing.T) {
			const bulk = 200_000
			tail := bytes.Repeat([]byte("tail"), 1000)
			p, key := target(t)
			p.must(onVIP(key, vip.RoundRobin, tcpBackend(t, "127.0.0.1", func(c *net.TCPConn) {
				fmt.Fprintln(c, "a")
				all := make([]byte, bulk+len(tail))
				n, err := io.ReadFull(c, all)
				if err == nil && !bytes.HasSuffix(all, tail) {
					err = errors.New("other bytes")
				}
				fmt.Fprintln(c, n, err)
				io.Copy(io.Discard, c)
			})))
			c := dial(t, key)
			c.line(t)
			one := p.only()
			one.io.Lock() // all arrives before the loop reads
			err := unix.SetsockoptInt(one.client.FD, unix.SOL_SOCKET, unix.SO_RCVBUF, 2*bulk)
			c.Write(make([]byte, bulk))
			control(c.TCPConn, func(fd int) {
				_, failed := unix.SendmsgN(fd, []byte("!"), nil, nil, unix.MSG_OOB)
				expect.Succeed(t, failed)
			})
			c.Write(tail)
			if ends {
				c.CloseWrite()
			}
			wait.Until(t, "it has arrived", func() bool { return unsent(c.TCPConn) == 0 })
			one.io.Unlock()
			expect.Succeed(t, err)
			expect.Equal(t, c.line(t), fmt.Sprintf("%d <nil>", bulk+len(tail)), "the backend gets")
			one.io.Lock()
			defer one.io.Unlock()
			expect.True(t, one.up.spliced != 0, "nothing was spliced")
		})
	}
}

// A transfer that is always ready leaves the other connections of its loop their turn, and then goes on
// without an event of its sockets.
func TestATransferTakesTurns(t *testing.T) {
	oneLoop(t)
	const turn = fillsPerTurn * bufferSize
	var got atomic.Int64
	p := newTarget(t, Options{})
	p.pipes.most = 0
	key := freeKey(t, "127.96.0.1", vip.TCP)
	p.must(onVIP(key, vip.RoundRobin, tcpBackend(t, "127.0.0.1", func(c *net.TCPConn) {
		fmt.Fprintln(c, "a")
		_, _ = io.Copy(writerFunc(func(b []byte) { got.Add(int64(len(b))) }), c)
	})))
	c := dial(t, key)
	c.line(t)
	one := p.only()
	echo := onVIP(freeKey(t, "127.96.0.2", vip.TCP), vip.RoundRobin, tcpBackend(t, "127.0.0.1", named("echo")))
	p.must(echo)
	other := dial(t, echo.Key)
	other.line(t)

	one.loop.Own(one.client, deaf{})
	one.io.Lock()
	if err := errors.Join(unix.SetsockoptInt(one.client.FD, unix.SOL_SOCKET, unix.SO_RCVBUF, 16*turn),
		unix.SetsockoptInt(one.server.FD, unix.SOL_SOCKET, unix.SO_SNDBUF, 16*turn)); err != nil {
		t.Error(err)
	}
	one.io.Unlock()
	sent := 0
	for sent < 2*turn { // all of it arrives before the proxy reads
		n, _ := c.Write(make([]byte, bufferSize))
		sent += n
		wait.Until(t, "it has arrived", func() bool { return unsent(c.TCPConn) == 0 })
	}
	other.echo(t, "the loop has had all events of the transfer")
	one.loop.Own(one.client, one)

	one.io.Lock()
	one.client.Readable = true
	before := p.frontend(key).Traffic().In.Bytes
	one.pump(&one.up, &one.down)
	n := p.frontend(key).Traffic().In.Bytes - before
	one.io.Unlock()
	expect.Equal(t, n, turn, "bytes in one turn")
	other.echo(t, "between the turns")
	wait.Until(t, "the rest", func() bool { return got.Load() == int64(sent) }, func() any { return got.Load() })
}

// deaf ignores events.
type deaf struct{}

func (deaf) Ready(*loop.Socket, uint32) {}

type writerFunc func([]byte)

func (f writerFunc) Write(b []byte) (int, error) {
	f(b)
	return len(b), nil
}

// oneLoop makes all connections of the test share a loop.
func oneLoop(t *testing.T) {
	before := runtime.GOMAXPROCS(2)
	t.Cleanup(func() { runtime.GOMAXPROCS(before) })
}

func tcpPair(t testing.TB) (a, b *net.TCPConn) {
	t.Helper()
	l := must.Get(net.Listen("tcp", "127.0.0.1:0"))(t)
	defer l.Close()
	x := must.Get(net.Dial("tcp", l.Addr().String()))(t)
	y := must.Get(l.Accept())(t)
	t.Cleanup(func() { x.Close(); y.Close() })
	return x.(*net.TCPConn), y.(*net.TCPConn)
}

func TestTCPNoBackendIsResetAtOnce(t *testing.T) {
	drained := tcpBackend(t, "127.0.0.1", named("drained"))
	key := freeKey(t, "127.96.0.1", vip.TCP)
	for name, f := range map[string]*vip.Frontend{
		"none":        onVIP(key, vip.RoundRobin),
		"all drained": weigh(onVIP(key, vip.RoundRobin, drained), drained, 0),
		"all refuse":  onVIP(key, vip.RoundRobin, closedPort(t, "127.0.0.2")),
	} {
		t.Run(name, func(t *testing.T) {
			p := newTarget(t, Options{ConnectBudget: testTimeout})
			f.Relay = &vip.ProxySettings{ConnectTimeout: testTimeout}
			p.must(f)
			start := time.Now()
			wantRefused(t, key)
			expect.AtMost(t, time.Since(start), testTimeout/2, "took")
			expect.Equal(t, p.Stats().Unserved, 1, "unserved")
		})
	}
}

func TestTCPSilentBackendsAreGivenUpInBoundedTime(t *testing.T) {
	p := newTarget(t, Options{ConnectBudget: 200 * time.Millisecond})
	key := freeKey(t, "127.96.0.1", vip.TCP)
	var silent []netip.AddrPort
	for range 6 {
		silent = append(silent, fullBacklog(t))
	}
	f := onVIP(key, vip.RoundRobin, silent...)
	f.Relay = &vip.ProxySettings{ConnectTimeout: 80 * time.Millisecond}
	p.must(f)
	start := time.Now()
	wantRefused(t, key)
	if took, tried := time.Since(start), p.Stats().Failures; took < 150*time.Millisecond || tried > 3 {
		t.Errorf("took %v of a budget of 200ms, for %d attempts of 80ms", took, tried)
	}
}

// A backend dies in mid-stream. The client receives what was sent, and then a reset instead of an
// end, which would look complete.
func TestTCPBackendDiesMidStream(t *testing.T) {
	kill := make(chan struct{})
	backend := tcpBackend(t, "127.0.0.1", func(c *net.TCPConn) {
		fmt.Fprintln(c, "half")
		<-kill
		c.SetLinger(0)
	})
	p, key := serve(t, backend)
	c := dial(t, key)
	c.line(t)
	close(kill)
	c.wantReset(t)
	wait.Until(t, "connection gone", func() bool { return p.open(key, backend) == 0 })
}

// The same while the client is sending: the error occurs in the other direction.
func TestTCPBackendDiesWhileClientSends(t *testing.T) {
	backend := tcpBackend(t, "127.0.0.1", func(c *net.TCPConn) {
		io.ReadFull(c, make([]byte, 1000))
		c.SetLinger(0)
	})
	_, key := serve(t, backend)
	for range 20 {
		c := dial(t, key)
		write := make(chan error)
		go func() {
			for {
				if _, err := c.Write(make([]byte, 10000)); err != nil {
					write <- err
					return
				}
			}
		}()
		// A reset is reported once, to whichever of the client's calls comes first.
		_, readErr := io.Copy(io.Discard, c)
		if writeErr := <-write; !errors.Is(readErr, syscall.ECONNRESET) && !errors.Is(writeErr, syscall.ECONNRESET) {
			t.Fatalf("read: %v, write: %v; want a reset", readErr, writeErr)
		}
	}
}

// A client dies: its backend receives a reset.
func TestTCPClientDies(t *testing.T) {
	ended := make(chan error, 1)
	backend := tcpBackend(t, "127.0.0.1", func(c *net.TCPConn) {
		fmt.Fprintln(c, "hello")
		_, err := io.Copy(io.Discard, c)
		ended <- err
	})
	_, key := serve(t, backend)
	c := dial(t, key)
	c.line(t)
	c.SetLinger(0)
	c.Close()
	expect.True(t, <-ended != nil, "backend saw an orderly end")
}

// An upload is refused early, as with HTTP 413. The response arrives completely, although the
// backend closes with unread bytes.
func TestTCPEarlyAnswerArrives(t *testing.T) {
	backend := tcpBackend(t, "127.0.0.1", func(c *net.TCPConn) {
		io.ReadFull(c, make([]byte, 10))
		fmt.Fprintln(c, "too large")
		c.CloseWrite()
		time.Sleep(20 * time.Millisecond)
	})
	_, key := serve(t, backend)
	for range 10 {
		c := dial(t, key)
		go io.Copy(c, io.LimitReader(neverEnding{}, 8<<20))
		must.Equal(t, c.line(t), "too large")
		c.Close()
	}
}

type neverEnding struct{}

func (neverEnding) Read(p []byte) (int, error) { return len(p), nil }

func TestTCPManyConnectionsAtOnce(t *testing.T) {
	a, b := tcpBackend(t, "127.0.0.1", named("a")), tcpBackend(t, "127.0.0.1", named("b"))
	p := newTarget(t, Options{Files: 1 + 2*500})
	key := freeKey(t, "127.96.0.1", vip.TCP)
	p.must(onVIP(key, vip.LeastConnection, a, b))
	const n, atOnce = 500, 400
	clients := make([]*client, n)
	for i := range atOnce {
		clients[i] = dial(t, key)
	}
	wait.Until(t, "each has a backend", func() bool { return p.open(key, a)+p.open(key, b) == atOnce })
	// Clients that choose simultaneously may choose the same backend. Later clients, one at a time,
	// balance that.
	for i := atOnce; i < n; i++ {
		clients[i] = dial(t, key)
		clients[i].line(t)
	}
	if x, y := p.open(key, a), p.open(key, b); x+y != n || max(x, y)-min(x, y) > 1 {
		t.Errorf("lc: %d and %d open", x, y)
	}
	var all sync.WaitGroup
	for i, c := range clients {
		all.Go(func() {
			if i < atOnce {
				if s, err := c.r.ReadString('\n'); err != nil {
					t.Error(s, err)
				}
			}
			for range 5 {
				want := fmt.Sprintf("hello %d\n", i)
				fmt.Fprint(c, want)
				expect.Equal(t, must.Get(c.r.ReadString('\n'))(t), want)
			}
		})
	}
	all.Wait()
	wait.Until(t, "idle connections hold no pipe", func() bool { return p.pipes.held() == 0 })
	expect.AtMost(t, descriptors.Open(t), 4*n+200, "descriptors for %d connections of two descriptors each", n)

	// One more client is refused and counted.
	wantRefused(t, key)
	if s := p.Stats(); s.OverLimit != 1 || s.Connections != n {
		t.Errorf("%+v", s)
	}
	clients[0].Close()
	wait.Until(t, "room again", func() bool { return p.Stats().Connections < n })
	who(t, key)
}
