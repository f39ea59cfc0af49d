package proxy

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/netip"
	"os"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"go.uber.org/goleak"
	"golang.org/x/sys/unix"

	"github.com/ironvip/ironvip/internal/reconcile"
	"github.com/ironvip/ironvip/test/freeport"
	"github.com/ironvip/ironvip/test/wait"
	"github.com/ironvip/ironvip/vip"
)

const testTimeout = time.Minute // for events that are certain to happen

// bench is one Target under test with its environment. At the end of the test, it checks for leaks.
type bench struct {
	testing.TB
	*Target
}

// acceptor returns what accepts the clients of a frontend that has had one. The poller's goroutine
// has made it.
func (b *bench) acceptor(key vip.FrontendKey) *acceptor {
	b.acceptPoller.mu.Lock()
	defer b.acceptPoller.mu.Unlock()
	a := b.frontend(key).listener.(*tcpListener).acceptor
	a.mu.Lock()
	defer a.mu.Unlock()
	return a
}

func newTarget(t testing.TB, opts Options) *bench {
	t.Helper()
	before := openFDs(t)
	ignore := goleak.IgnoreCurrent()
	if opts.Log == nil && testing.Verbose() {
		opts.Log = slog.New(slog.NewTextHandler(os.Stderr, nil))
	}
	if opts.device == nil && opts.Device == "" {
		opts.device = &netlinkDevice{name: "ironvip0"} // not watched: who waits for the kernel stops the clock of a bubble
	}
	target := New(opts)
	t.Cleanup(func() {
		if err := target.Close(); err != nil {
			t.Error(err)
		}
		if n := target.capacity.connections.Load(); n != 0 {
			t.Errorf("%d connections counted as open after Close", n)
		}
		if n := target.capacity.sessions.Load(); n != 0 {
			t.Errorf("%d sessions counted as open after Close", n)
		}
		if n := target.capacity.used.Load(); n != 0 {
			t.Errorf("%d descriptors counted as used after Close", n)
		}
		if n := len(target.services.m); n != 0 {
			t.Errorf("%d services left after Close", n)
		}
		if n := target.pipes.held(); n != 0 {
			t.Errorf("%d pipes open after Close", n)
		}
		if err := goleak.Find(ignore); err != nil {
			t.Error(err)
		}
		wait.Until(t, fmt.Sprintf("%d descriptors as before", before), func() bool { return openFDs(t) <= before }, func() any { return openFDs(t) })
	})
	return &bench{t, target}
}

func openFDs(t testing.TB) int {
	t.Helper()
	entries, err := os.ReadDir("/proc/self/fd")
	if err != nil {
		t.Fatal(err)
	}
	n := 0
	for _, e := range entries { // the runtime opens epoll and event descriptors with the first socket
		if target, err := os.Readlink("/proc/self/fd/" + e.Name()); err == nil && !strings.HasPrefix(target, "anon_inode:") {
			n++
		}
	}
	return n
}

// apply applies one frontend and returns the frontend's error.
func (b *bench) apply(f *vip.Frontend) error {
	b.Helper()
	batch := []reconcile.Update[vip.FrontendKey, vip.Frontend]{{Key: f.Key, New: f}}
	if err := b.Apply(context.Background(), batch); err != nil {
		b.Fatal(err)
	}
	return batch[0].Err
}

func (b *bench) must(f *vip.Frontend) {
	b.Helper()
	if err := b.apply(f); err != nil {
		b.Fatal(err)
	}
}

func (b *bench) remove(key vip.FrontendKey) {
	b.Helper()
	batch := []reconcile.Update[vip.FrontendKey, vip.Frontend]{{Key: key}}
	if err := errors.Join(b.Apply(context.Background(), batch), batch[0].Err); err != nil {
		b.Fatal(err)
	}
}

func (b *bench) actual() []reconcile.Observed[vip.Frontend] {
	b.Helper()
	var out []reconcile.Observed[vip.Frontend]
	for o, err := range b.Actual(context.Background()) {
		if err != nil {
			b.Fatal(err)
		}
		out = append(out, o)
	}
	slices.SortFunc(out, func(x, y reconcile.Observed[vip.Frontend]) int {
		return vip.CompareFrontendKeys(x.Value.Key, y.Value.Key)
	})
	return out
}

func (b *bench) open(key vip.FrontendKey, backend netip.AddrPort) int {
	b.Helper()
	open, err := b.Connections(context.Background(), key)
	if err != nil {
		b.Fatal(err)
	}
	return open[backend]
}

// freeKey returns a frontend key on addr with a port that nothing listens on. The port is reserved:
// the kernel doesn't assign it to sockets without a fixed port.
func freeKey(t testing.TB, addr string, protocol vip.Protocol) vip.FrontendKey {
	t.Helper()
	a := netip.MustParseAddr(addr)
	return vip.FrontendKey{Addr: a, Port: freeport.Reserve(t, nil, a)[1], Protocol: protocol}
}

// onVIP returns a frontend on a VIP with backends of equal weight.
func onVIP(key vip.FrontendKey, s vip.Scheduler, backends ...netip.AddrPort) *vip.Frontend {
	f := &vip.Frontend{Key: key, Kind: vip.OnVIP, Service: vip.ServiceKey{Namespace: "default", Name: "web"}, Scheduler: s, Forward: vip.ForwardNAT}
	for _, b := range backends {
		f.Backends = append(f.Backends, vip.Endpoint{Addr: b, Weight: 1})
	}
	slices.SortFunc(f.Backends, vip.CompareEndpoints)
	return f
}

// weigh returns a copy of f with the weight of backend changed.
func weigh(f *vip.Frontend, backend netip.AddrPort, weight uint16) *vip.Frontend {
	g := *f
	g.Backends = slices.Clone(f.Backends)
	for i := range g.Backends {
		if g.Backends[i].Addr == backend {
			g.Backends[i].Weight = weight
		}
	}
	return &g
}

// without returns a copy of f without backend.
func without(f *vip.Frontend, backend netip.AddrPort) *vip.Frontend {
	g := *f
	g.Backends = slices.DeleteFunc(slices.Clone(f.Backends), func(e vip.Endpoint) bool { return e.Addr == backend })
	return &g
}

// tcpBackend runs serve on every connection until the end of the test.
func tcpBackend(t testing.TB, addr string, serve func(*net.TCPConn)) netip.AddrPort {
	t.Helper()
	return tcpBackendAt(t, netip.AddrPortFrom(netip.MustParseAddr(addr), 0), serve)
}

func tcpBackendAt(t testing.TB, at netip.AddrPort, serve func(*net.TCPConn)) netip.AddrPort {
	t.Helper()
	l, err := net.Listen("tcp", at.String())
	if err != nil {
		t.Fatal(err)
	}
	serveOn(t, l, serve)
	return l.Addr().(*net.TCPAddr).AddrPort()
}

// serveOn runs serve on every connection of l until the end of the test.
func serveOn(t testing.TB, l net.Listener, serve func(*net.TCPConn)) {
	var mu sync.Mutex
	open := map[net.Conn]bool{}
	var tasks sync.WaitGroup
	tasks.Go(func() {
		for {
			c, err := l.Accept()
			if errors.Is(err, net.ErrClosed) {
				return
			}
			if err != nil { // without free descriptors, also if no client has arrived
				time.Sleep(time.Millisecond)
				continue
			}
			mu.Lock()
			open[c] = true
			mu.Unlock()
			tasks.Go(func() {
				serve(c.(*net.TCPConn))
				c.Close()
				mu.Lock()
				delete(open, c)
				mu.Unlock()
			})
		}
	})
	t.Cleanup(func() {
		l.Close()
		mu.Lock()
		for c := range open {
			c.Close()
		}
		mu.Unlock()
		tasks.Wait()
	})
}

// named answers with its name, then echoes, without pipes of its own.
func named(name string) func(*net.TCPConn) {
	return func(c *net.TCPConn) {
		if _, err := fmt.Fprintln(c, name); err == nil {
			_, _ = io.Copy(struct{ io.Writer }{c}, struct{ io.Reader }{c})
		}
	}
}

// client is a connection with a reader.
type client struct {
	*net.TCPConn
	r *bufio.Reader
}

func dial(t testing.TB, key vip.FrontendKey) *client { return dialFrom(t, "", key) }

func dialerFrom(from string) *net.Dialer {
	d := &net.Dialer{Timeout: testTimeout}
	if from != "" {
		d.LocalAddr = &net.TCPAddr{IP: net.ParseIP(from)}
	}
	return d
}

func dialFrom(t testing.TB, from string, key vip.FrontendKey) *client {
	t.Helper()
	c, err := dialerFrom(from).Dial("tcp", key.AddrPort().String())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { c.Close() })
	_ = c.SetDeadline(time.Now().Add(testTimeout))
	return &client{c.(*net.TCPConn), bufio.NewReader(c)}
}

// line reads the next line.
func (c *client) line(t testing.TB) string {
	t.Helper()
	s, err := c.r.ReadString('\n')
	if err != nil {
		t.Fatalf("read: %v", err)
	}
	return strings.TrimSpace(s)
}

// echo sends a line and expects it back.
func (c *client) echo(t testing.TB, s string) {
	t.Helper()
	if _, err := fmt.Fprintln(c, s); err != nil {
		t.Fatalf("write: %v", err)
	}
	if got := c.line(t); got != s {
		t.Fatalf("echo %q, want %q", got, s)
	}
}

// wantReset reads until the connection ends, which must be by a reset.
func (c *client) wantReset(t testing.TB) {
	t.Helper()
	_, err := io.Copy(io.Discard, c.r)
	if !errors.Is(err, syscall.ECONNRESET) {
		t.Fatalf("read ended with %v, want a reset", err)
	}
}

// wantRefused connects, which must end in a reset. The connect itself usually reports it.
func wantRefused(t testing.TB, key vip.FrontendKey) { t.Helper(); wantRefusedFrom(t, "", key) }

// wantRefusedFrom expects a reset, possibly while it connects.
func wantRefusedFrom(t testing.TB, from string, key vip.FrontendKey) {
	t.Helper()
	c, err := dialerFrom(from).Dial("tcp", key.AddrPort().String())
	if err == nil {
		defer c.Close()
		_ = c.SetDeadline(time.Now().Add(testTimeout))
		_, err = c.Read(make([]byte, 1))
	}
	if !errors.Is(err, syscall.ECONNRESET) {
		t.Fatalf("client got %v, want a reset", err)
	}
}

// who connects, reads the backend's name and closes the connection.
func who(t testing.TB, key vip.FrontendKey) string {
	t.Helper()
	c := dial(t, key)
	defer c.Close()
	return c.line(t)
}

// closedPort returns an address that refuses TCP.
func closedPort(t testing.TB, addr string) netip.AddrPort {
	t.Helper()
	return freeKey(t, addr, vip.TCP).AddrPort()
}

// backlog returns an address that accepts n connections and never uses them.
func backlog(t testing.TB, n int) netip.AddrPort {
	t.Helper()
	fd, err := unix.Socket(unix.AF_INET, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { unix.Close(fd) })
	if err := errors.Join(unix.Bind(fd, &unix.SockaddrInet4{Addr: [4]byte{127, 0, 0, 1}}), unix.Listen(fd, n)); err != nil {
		t.Fatal(err)
	}
	sa, err := unix.Getsockname(fd)
	if err != nil {
		t.Fatal(err)
	}
	return netip.AddrPortFrom(netip.MustParseAddr("127.0.0.1"), uint16(sa.(*unix.SockaddrInet4).Port))
}

// fullBacklog returns an address with a full backlog: connects are neither answered nor refused.
func fullBacklog(t testing.TB) netip.AddrPort { return newSilent(t, "127.0.0.1").addr }

// silent is a backend that doesn't answer connects until it is woken.
type silent struct {
	addr netip.AddrPort
	l    *net.TCPListener
	t    testing.TB
}

func newSilent(t testing.TB, addr string) *silent {
	t.Helper()
	l, err := net.Listen("tcp", netip.AddrPortFrom(netip.MustParseAddr(addr), 0).String())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { l.Close() })
	s := &silent{l.Addr().(*net.TCPAddr).AddrPort(), l.(*net.TCPListener), t}
	control(s.l, func(fd int) { err = unix.Listen(fd, 0) })
	if err != nil {
		t.Fatal(err)
	}
	for wait := testTimeout; ; wait = 50 * time.Millisecond { // it has room for one, however long that takes
		c, err := net.DialTimeout("tcp", s.addr.String(), wait)
		if err != nil {
			return s
		}
		t.Cleanup(func() { c.Close() })
	}
}

// wake runs serve on every connection from now on. The kernel of a client repeats its SYN a second
// after the first one.
func (s *silent) wake(serve func(*net.TCPConn)) {
	s.t.Helper()
	var err error
	control(s.l, func(fd int) { err = unix.Listen(fd, 100) })
	if err != nil {
		s.t.Fatal(err)
	}
	serveOn(s.t, s.l, serve)
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

// bare returns a socket of the proxy that is the same connection as c.
func bare(t testing.TB, c *net.TCPConn) *socket {
	t.Helper()
	fd := -1
	control(c, func(of int) { fd, _ = unix.FcntlInt(uintptr(of), unix.F_DUPFD_CLOEXEC, 0) })
	s := newSocket(fd)
	t.Cleanup(s.close)
	return s
}

func addrPort(a net.Addr) netip.AddrPort {
	ap := a.(*net.TCPAddr).AddrPort()
	return netip.AddrPortFrom(ap.Addr().Unmap(), ap.Port())
}

// unsent returns the number of bytes written to c that its peer has not acknowledged.
func unsent(c *net.TCPConn) (n int) {
	control(c, func(fd int) { n = newSocket(fd).unsent() })
	return n
}
