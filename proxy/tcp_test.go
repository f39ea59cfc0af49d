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

	"github.com/ironvip/ironvip/test/wait"
	"github.com/ironvip/ironvip/vip"
)

func TestTCPReachesEveryBackend(t *testing.T) {
	for _, family := range []struct{ name, vip, backend string }{
		{"ipv4", "127.96.0.1", "127.0.0.1"},
		{"ipv6", "::1", "::1"},
		{"ipv6 to ipv4", "::1", "127.0.0.1"},
	} {
		t.Run(family.name, func(t *testing.T) {
			a := tcpBackend(t, family.backend, named("a"))
			b := tcpBackend(t, family.backend, named("b"))
			p := newTarget(t, Options{})
			key := freeKey(t, family.vip, vip.TCP)
			p.must(onVIP(key, vip.RoundRobin, a, b))
			got := map[string]int{}
			for range 10 {
				got[who(t, key)]++
			}
			if got["a"] != 5 || got["b"] != 5 {
				t.Errorf("rr over ten connections: %v", got)
			}
		})
	}
}

func TestTCPWeightsAreExactOverACycle(t *testing.T) {
	a, b, c := tcpBackend(t, "127.0.0.1", named("a")), tcpBackend(t, "127.0.0.1", named("b")), tcpBackend(t, "127.0.0.1", named("c"))
	p := newTarget(t, Options{})
	key := freeKey(t, "127.96.0.1", vip.TCP)
	f := weigh(weigh(onVIP(key, vip.WeightedRoundRobin, a, b, c), a, 50), b, 20)
	p.must(weigh(f, c, 10))
	got := map[string]int{}
	for range 16 {
		got[who(t, key)]++
	}
	if got["a"] != 10 || got["b"] != 4 || got["c"] != 2 {
		t.Errorf("two cycles of 50:20:10: %v", got)
	}
}

// The client ends its direction first: the backend's full response still arrives.
func TestTCPHalfCloseByClient(t *testing.T) {
	backend := tcpBackend(t, "127.0.0.1", func(c *net.TCPConn) {
		all, _ := io.ReadAll(c) // until the client's end
		fmt.Fprintf(c, "%d bytes", len(all))
	})
	p := newTarget(t, Options{})
	key := freeKey(t, "127.96.0.1", vip.TCP)
	p.must(onVIP(key, vip.RoundRobin, backend))
	c := dial(t, key)
	fmt.Fprint(c, "hello")
	c.CloseWrite()
	if got, err := io.ReadAll(c); err != nil || string(got) != "5 bytes" {
		t.Fatalf("%q, %v", got, err)
	}
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
	p := newTarget(t, Options{})
	key := freeKey(t, "127.96.0.1", vip.TCP)
	p.must(onVIP(key, vip.RoundRobin, backend))
	c := dial(t, key)
	if all, err := io.ReadAll(c); err != nil || string(all) != "go" {
		t.Fatalf("%q, %v", all, err)
	}
	for i := range 3 {
		fmt.Fprint(c, i)
		time.Sleep(10 * time.Millisecond) // three segments, after the end of the other half
	}
	c.CloseWrite()
	if s := <-got; s != "012" {
		t.Fatalf("backend got %q", s)
	}
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
	p := newTarget(t, Options{})
	key := freeKey(t, "127.96.0.1", vip.TCP)
	p.must(onVIP(key, vip.RoundRobin, backend))
	c := dial(t, key)
	_, _ = c.Write(make([]byte, small))
	if _, err := io.ReadFull(c.r, make([]byte, small)); err != nil {
		t.Fatal(err)
	}
	spliced := func() (up, down int64) {
		one := p.only()
		one.io.Lock()
		defer one.io.Unlock()
		return one.up.spliced, one.down.spliced
	}
	if up, down := spliced(); up != 0 || down != 0 {
		t.Errorf("%d and %d bytes of small messages spliced", up, down)
	}
	if _, err := io.Copy(struct{ io.Writer }{c}, io.LimitReader(neverEnding{}, large)); err != nil {
		t.Fatal(err)
	}
	c.line(t)
	if up, _ := spliced(); up < large/2 {
		t.Errorf("of %d bytes %d spliced", large, up)
	}
	wait.Until(t, "no pipe is held", func() bool { return p.pipes.held() == 0 })
}

// Both sides of each connection detect dead peers, and send small messages at once. The first client
// arrives before the listener has the options that later ones inherit.
func TestSocketOptions(t *testing.T) {
	for _, family := range families {
		t.Run(family.name, func(t *testing.T) {
			p := newTarget(t, Options{})
			key := freeKey(t, family.vip, vip.TCP)
			p.must(onVIP(key, vip.RoundRobin, tcpBackend(t, family.backend, named("a"))))
			for client := range 3 {
				c := dial(t, key)
				c.line(t)
				one := p.only()
				one.io.Lock()
				for side, fd := range map[string]int{"client": one.client.fd, "backend": one.server.fd} {
					for _, o := range keepAliveOptions {
						if got, err := unix.GetsockoptInt(fd, o.level, o.name); err != nil || got != o.value {
							t.Errorf("client %d, %s: option %d of level %d is %d, want %d, %v", client, side, o.name, o.level, got, o.value, err)
						}
					}
				}
				one.io.Unlock()
				c.Close()
				wait.Until(t, "connection gone", func() bool { return p.Stats().Connections == 0 })
			}
		})
	}
}

// A read ends at an urgent byte, although more has arrived. The byte itself is lost, as in every proxy.
func TestTCPAfterAnUrgentByte(t *testing.T) {
	p := newTarget(t, Options{})
	key := freeKey(t, "127.96.0.1", vip.TCP)
	p.must(onVIP(key, vip.RoundRobin, tcpBackend(t, "127.0.0.1", named("a"))))
	c := dial(t, key)
	c.line(t)
	one := p.only()
	one.io.Lock() // all arrives before the loop reads
	control(c.TCPConn, func(fd int) {
		if _, err := unix.SendmsgN(fd, []byte("abc!"), nil, nil, unix.MSG_OOB); err != nil {
			t.Error(err)
		}
	})
	fmt.Fprintln(c, "def")
	for unsent(c.TCPConn) > 0 {
		runtime.Gosched()
	}
	one.io.Unlock()
	if got := c.line(t); got != "abcdef" {
		t.Errorf("%q", got)
	}
}

// A splice ends at an urgent byte, too, and goes on after it neither by itself nor with the end.
func TestATransferGoesOnAfterAnUrgentByte(t *testing.T) {
	for name, ends := range map[string]bool{"open": false, "ended": true} {
		t.Run(name, func(t *testing.T) {
			const bulk = 200_000
			tail := bytes.Repeat([]byte("tail"), 1000)
			p := newTarget(t, Options{})
			key := freeKey(t, "127.96.0.1", vip.TCP)
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
			err := unix.SetsockoptInt(one.client.fd, unix.SOL_SOCKET, unix.SO_RCVBUF, 2*bulk)
			c.Write(make([]byte, bulk))
			control(c.TCPConn, func(fd int) {
				if _, failed := unix.SendmsgN(fd, []byte("!"), nil, nil, unix.MSG_OOB); failed != nil {
					t.Error(failed)
				}
			})
			c.Write(tail)
			if ends {
				c.CloseWrite()
			}
			wait.Until(t, "it has arrived", func() bool { return unsent(c.TCPConn) == 0 })
			one.io.Unlock()
			if err != nil {
				t.Error(err)
			}
			if got, want := c.line(t), fmt.Sprintf("%d <nil>", bulk+len(tail)); got != want {
				t.Errorf("the backend gets %s, want %s", got, want)
			}
			one.io.Lock()
			defer one.io.Unlock()
			if one.up.spliced == 0 {
				t.Error("nothing was spliced")
			}
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

	one.loop.own(one.client, deaf{})
	one.io.Lock()
	if err := errors.Join(unix.SetsockoptInt(one.client.fd, unix.SOL_SOCKET, unix.SO_RCVBUF, 16*turn),
		unix.SetsockoptInt(one.server.fd, unix.SOL_SOCKET, unix.SO_SNDBUF, 16*turn)); err != nil {
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
	one.loop.own(one.client, one)

	one.io.Lock()
	one.client.readable = true
	before := p.frontend(key).tally.in.Load()
	one.pump(&one.up, &one.down)
	n := p.frontend(key).tally.in.Load() - before
	one.io.Unlock()
	if n != turn {
		t.Errorf("%d bytes in one turn, want %d", n, turn)
	}
	other.echo(t, "between the turns")
	wait.Until(t, "the rest", func() bool { return got.Load() == int64(sent) }, func() any { return got.Load() })
}

// A listener with more clients than it may accept in a turn goes on after it without another client.
func TestAListenerTakesTurns(t *testing.T) {
	oneLoop(t)
	p := newTarget(t, Options{})
	key := freeKey(t, "127.96.0.1", vip.TCP)
	p.must(onVIP(key, vip.RoundRobin, tcpBackend(t, "127.0.0.1", named("a"))))
	first := dial(t, key)
	first.line(t)
	a := p.acceptor(key)
	loop := a.socket.loop
	loop.own(a.socket, deaf{})
	var clients []*client
	for range acceptsPerTurn + 10 {
		clients = append(clients, dial(t, key))
	}
	first.echo(t, "the loop has had all events of the listener")
	loop.own(a.socket, a)
	a.ready(a.socket, unix.EPOLLIN)
	for _, c := range clients {
		c.line(t)
	}
}

// deaf ignores events.
type deaf struct{}

func (deaf) ready(*socket, uint32) {}

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
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	x, err := net.Dial("tcp", l.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	y, err := l.Accept()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { x.Close(); y.Close() })
	return x.(*net.TCPConn), y.(*net.TCPConn)
}

func TestTCPRefusingBackendIsRetriedElsewhereAndPassedOver(t *testing.T) {
	for _, s := range []vip.Scheduler{vip.RoundRobin, vip.WeightedRoundRobin, vip.LeastConnection, vip.WeightedLeastConnection, vip.SourceHash, vip.MaglevHash} {
		t.Run(s.String(), func(t *testing.T) {
			good, better := tcpBackend(t, "127.0.0.1", named("good")), tcpBackend(t, "127.0.0.1", named("good"))
			p := newTarget(t, Options{})
			key := freeKey(t, "127.96.0.1", vip.TCP)
			f := onVIP(key, s, good, better, closedPort(t, "127.0.0.2"), closedPort(t, "127.0.0.3"))
			f.SchedulerPort = true // so that hashes vary
			p.must(f)
			start := time.Now()
			for range 30 {
				if got := who(t, key); got != "good" {
					t.Fatal(got)
				}
			}
			if n, most := p.Stats().Failures, 2*(1+uint64(time.Since(start)/ejectFirst)); n == 0 || n > most {
				t.Errorf("%d attempts at two backends that refuse, want 1 to %d", n, most)
			}
		})
	}
}

func TestTCPBackendThatDoesNotAnswerIsRetriedElsewhere(t *testing.T) {
	good := tcpBackend(t, "127.0.0.1", named("good"))
	silent := fullBacklog(t)
	p := newTarget(t, Options{})
	key := freeKey(t, "127.96.0.1", vip.TCP)
	f := onVIP(key, vip.RoundRobin, good, silent)
	f.Relay = &vip.Relay{ConnectTimeout: 500 * time.Millisecond}
	p.must(f)
	start := time.Now()
	for range 4 {
		if got := who(t, key); got != "good" {
			t.Fatal(got)
		}
	}
	wait.Until(t, "a connect fails", func() bool { return p.Stats().Failures > 0 }) // its client is served meanwhile
	if n, most := p.Stats().Failures, 1+uint64(time.Since(start)/ejectFirst); n > most {
		t.Errorf("%d attempts at the silent backend, want 1 to %d", n, most)
	}
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
			f.Relay = &vip.Relay{ConnectTimeout: testTimeout}
			p.must(f)
			start := time.Now()
			wantRefused(t, key)
			if took := time.Since(start); took > testTimeout/2 {
				t.Errorf("took %v", took)
			}
			if n := p.Stats().Unserved; n != 1 {
				t.Errorf("%d unserved", n)
			}
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
	f.Relay = &vip.Relay{ConnectTimeout: 80 * time.Millisecond}
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
	p := newTarget(t, Options{})
	key := freeKey(t, "127.96.0.1", vip.TCP)
	p.must(onVIP(key, vip.RoundRobin, backend))
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
	p := newTarget(t, Options{})
	key := freeKey(t, "127.96.0.1", vip.TCP)
	p.must(onVIP(key, vip.RoundRobin, backend))
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
	p := newTarget(t, Options{})
	key := freeKey(t, "127.96.0.1", vip.TCP)
	p.must(onVIP(key, vip.RoundRobin, backend))
	c := dial(t, key)
	c.line(t)
	c.SetLinger(0)
	c.Close()
	if err := <-ended; err == nil {
		t.Error("backend saw an orderly end")
	}
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
	p := newTarget(t, Options{})
	key := freeKey(t, "127.96.0.1", vip.TCP)
	p.must(onVIP(key, vip.RoundRobin, backend))
	for range 10 {
		c := dial(t, key)
		go io.Copy(c, io.LimitReader(neverEnding{}, 8<<20))
		if got := c.line(t); got != "too large" {
			t.Fatal(got)
		}
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
				if got, err := c.r.ReadString('\n'); err != nil || got != want {
					t.Error(got, err)
				}
			}
		})
	}
	all.Wait()
	wait.Until(t, "idle connections hold no pipe", func() bool { return p.pipes.held() == 0 })
	if fds := openFDs(t); fds > 4*n+200 {
		t.Errorf("%d descriptors for %d connections of two descriptors each", fds, n)
	}

	// One more client is refused and counted.
	wantRefused(t, key)
	if s := p.Stats(); s.OverLimit != 1 || s.Connections != n {
		t.Errorf("%+v", s)
	}
	clients[0].Close()
	wait.Until(t, "room again", func() bool { return p.Stats().Connections < n })
	who(t, key)
}
