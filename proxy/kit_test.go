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

	"github.com/ironvip/ironvip/plane/reconcile"
	"github.com/ironvip/ironvip/proxy/balance"
	"github.com/ironvip/ironvip/proxy/loop"
	"github.com/ironvip/ironvip/test/descriptors"
	"github.com/ironvip/ironvip/test/expect"
	"github.com/ironvip/ironvip/test/freeport"
	"github.com/ironvip/ironvip/test/must"
	"github.com/ironvip/ironvip/test/wait"
	"github.com/ironvip/ironvip/vip"
)

const testTimeout = time.Minute // for events that are certain to happen

// bench is one Target under test with its environment. At the end of the test, it checks for leaks.
type bench struct {
	testing.TB
	*Target
}

func newTarget(t testing.TB, opts Options) *bench {
	t.Helper()
	before := descriptors.Open(t)
	ignore := goleak.IgnoreCurrent()
	if opts.Log == nil && testing.Verbose() {
		opts.Log = slog.New(slog.NewTextHandler(os.Stderr, nil))
	}
	target := New(opts)
	t.Cleanup(func() {
		expect.Succeed(t, target.Close())
		u, r := target.Usage(), target.Report()
		expect.Equal(t, u.Connections, 0, "connections counted as open after Close")
		expect.Equal(t, u.Sessions, 0, "sessions counted as open after Close")
		expect.Equal(t, u.Used, 0, "descriptors counted as used after Close")
		expect.Equal(t, len(r.Services)+len(r.Failures), 0, "services and backends left after Close")
		expect.Equal(t, target.pipes.held(), 0, "pipes open after Close")
		expect.Succeed(t, goleak.Find(ignore))
		wait.Until(t, fmt.Sprintf("%d descriptors as before", before), func() bool { return descriptors.Open(t) <= before }, func() any { return descriptors.Open(t) })
	})
	return &bench{t, target}
}

// stats are counts since the start, except for Listeners, Connections and Sessions, which are the current numbers.
type stats struct {
	Listeners                                int
	Connections, Sessions                    int64  // of TCP and UDP
	Failures, Unserved, Strangers, OverLimit uint64 // connects; clients without a backend, outside source_ranges, beyond a limit
}

func (b *bench) Stats() stats {
	r := b.Report()
	s := stats{Listeners: b.Len(), Connections: r.Capacity.Connections, Sessions: r.Capacity.Sessions,
		Unserved: b.refusedFor("no_backend", "unreachable"), Strangers: b.refusedFor("source_ranges"),
		OverLimit: b.refusedFor("capacity", "reserve", "descriptors", "max_connections", "backend_max_connections", "max_queue", "queue_timeout")}
	for _, f := range r.Failures {
		s.Failures += f.Connects
	}
	return s
}

// refusedFor returns how many clients were refused for some reasons.
func (b *bench) refusedFor(why ...string) (n uint64) {
	for _, one := range b.Report().Refusals {
		if slices.Contains(why, one.Reason) {
			n += one.Count
		}
	}
	return n
}

// Panicked returns how many clients were refused because of a panic, and whether any was in the last minute.
func (b *bench) Panicked() (clients uint64, now bool) {
	r := b.Report()
	return r.Panics()
}

// Limited returns the services that have reached their own limits.
func (b *bench) Limited() []balance.Limited {
	r := b.Report()
	return r.Limited()
}

// held returns the number of pipes in use.
func (p *pipes) held() int {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.open - len(p.idle)
}

// endpoint returns a backend of a frontend, also before the first client.
func (b *bench) endpoint(key vip.FrontendKey, addr netip.AddrPort) *balance.Endpoint {
	f := b.frontend(key)
	f.Attempt(netip.AddrPort{}, f.Service(), false).End()
	all := f.Endpoints()
	return all[slices.IndexFunc(all, func(e *balance.Endpoint) bool { return e.Addr == addr })]
}

// carried returns how many connections and sessions a frontend has assigned to backends.
func (b *bench) carried(key vip.FrontendKey) uint64 { return b.frontend(key).Traffic().Connections }

// target returns a Target and a free key.
func target(t testing.TB) (*bench, vip.FrontendKey) {
	t.Helper()
	return newTarget(t, Options{}), freeKey(t, "127.96.0.1", vip.TCP)
}

// serve returns a Target with a frontend of these backends, which take turns.
func serve(t testing.TB, backends ...netip.AddrPort) (*bench, vip.FrontendKey) {
	t.Helper()
	p, key := target(t)
	p.must(onVIP(key, vip.RoundRobin, backends...))
	return p, key
}

// apply applies one frontend and returns the frontend's error.
func (b *bench) apply(f *vip.Frontend) error {
	b.Helper()
	batch := []reconcile.Update[vip.FrontendKey, vip.Frontend]{{Key: f.Key, New: f}}
	must.Succeed(b, b.Apply(context.Background(), batch))
	return batch[0].Err
}

func (b *bench) must(f *vip.Frontend) {
	b.Helper()
	must.Succeed(b, b.apply(f))
}

func (b *bench) remove(key vip.FrontendKey) {
	b.Helper()
	batch := []reconcile.Update[vip.FrontendKey, vip.Frontend]{{Key: key}}
	must.Succeed(b, errors.Join(b.Apply(context.Background(), batch), batch[0].Err))
}

func (b *bench) actual() []reconcile.Observed[vip.Frontend] {
	b.Helper()
	var out []reconcile.Observed[vip.Frontend]
	for o, err := range b.Actual(context.Background()) {
		must.Succeed(b, err)
		out = append(out, o)
	}
	slices.SortFunc(out, func(x, y reconcile.Observed[vip.Frontend]) int {
		return vip.CompareFrontendKeys(x.Value.Key, y.Value.Key)
	})
	return out
}

func (b *bench) open(key vip.FrontendKey, backend netip.AddrPort) int {
	b.Helper()
	open := must.Get(b.Connections(context.Background(), key))(b)
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
	l := must.Get(net.Listen("tcp", at.String()))(t)
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
	c := must.Get(dialerFrom(from).Dial("tcp", key.AddrPort().String()))(t)
	t.Cleanup(func() { c.Close() })
	_ = c.SetDeadline(time.Now().Add(testTimeout))
	return &client{c.(*net.TCPConn), bufio.NewReader(c)}
}

// line reads the next line.
func (c *client) line(t testing.TB) string {
	t.Helper()
	s, err := c.r.ReadString('\n')
	must.Succeed(t, err, "read")
	return strings.TrimSpace(s)
}

// echo sends a line and expects it back.
func (c *client) echo(t testing.TB, s string) {
	t.Helper()
	_, err := fmt.Fprintln(c, s)
	must.Succeed(t, err, "write")
	must.Equal(t, c.line(t), s, "echo")
}

// wantReset reads until the connection ends, which must be by a reset.
func (c *client) wantReset(t testing.TB) {
	t.Helper()
	_, err := io.Copy(io.Discard, c.r)
	must.Is(t, err, syscall.ECONNRESET, "read ended with")
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
	must.Is(t, err, syscall.ECONNRESET, "client")
}

func wantNobody(t *testing.T, key vip.FrontendKey) {
	t.Helper()
	if c, err := net.Dial("tcp", key.AddrPort().String()); err == nil {
		c.Close()
		t.Errorf("somebody listens on %s", key)
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
	fd := must.Get(unix.Socket(unix.AF_INET, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0))(t)
	t.Cleanup(func() { unix.Close(fd) })
	must.Succeed(t, errors.Join(unix.Bind(fd, &unix.SockaddrInet4{Addr: [4]byte{127, 0, 0, 1}}), unix.Listen(fd, n)))
	sa := must.Get(unix.Getsockname(fd))(t)
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
	must.Succeed(t, err)
	t.Cleanup(func() { l.Close() })
	s := &silent{l.Addr().(*net.TCPAddr).AddrPort(), l.(*net.TCPListener), t}
	control(s.l, func(fd int) { err = unix.Listen(fd, 0) })
	must.Succeed(t, err)
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
	must.Succeed(s.t, err)
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
func bare(t testing.TB, c *net.TCPConn) *loop.Socket {
	t.Helper()
	fd := -1
	control(c, func(of int) { fd, _ = unix.FcntlInt(uintptr(of), unix.F_DUPFD_CLOEXEC, 0) })
	s := loop.NewSocket(fd)
	t.Cleanup(s.Close)
	return s
}

func addrPort(a net.Addr) netip.AddrPort {
	ap := a.(*net.TCPAddr).AddrPort()
	return netip.AddrPortFrom(ap.Addr().Unmap(), ap.Port())
}

// unsent returns the number of bytes written to c that its peer has not acknowledged.
func unsent(c *net.TCPConn) (n int) {
	control(c, func(fd int) { n = loop.NewSocket(fd).Unsent() })
	return n
}

// The parts of a report.

func (b *bench) Refusals() []reconcile.Refusal { return b.Report().Refusals }

func (b *bench) ServiceRefusals(key vip.ServiceKey) []reconcile.Refusal {
	return b.Report().Services[key].Refusals
}

func (b *bench) Queue(key vip.ServiceKey) (waiting, most int) {
	s := b.Report().Services[key]
	return s.Waiting, s.Most
}

func (b *bench) Full(key vip.ServiceKey) bool { return b.Report().Services[key].Full }

func (b *bench) Failures(key vip.PassiveKey) reconcile.Failures { return failuresOf(b.Target, key) }

func failuresOf(t *Target, key vip.PassiveKey) reconcile.Failures { return t.Report().Failures[key] }
