package probe

import (
	"io"
	"log"
	"net"
	"net/netip"
	"os"
	"runtime"
	"strings"
	"sync"
	"testing"
	"time"

	"go.uber.org/goleak"
	"golang.org/x/sys/unix"

	"github.com/ironvip/ironvip/internal/parallel"
	"github.com/ironvip/ironvip/test/must"
	"github.com/ironvip/ironvip/vip"
)

func addr(text string) netip.AddrPort { return netip.MustParseAddrPort(text) }

// heapOf returns the bytes that what f returns keeps on the heap.
func heapOf(f func() any) int {
	var before, after runtime.MemStats
	runtime.GC()
	runtime.ReadMemStats(&before)
	kept := f()
	runtime.GC()
	runtime.ReadMemStats(&after)
	runtime.KeepAlive(kept)
	return int(after.HeapAlloc) - int(before.HeapAlloc)
}

// descriptors returns the number of open descriptors of this process.
func descriptors(t testing.TB) int {
	t.Helper()
	return len(must.Get(os.ReadDir("/proc/self/fd"))(t))
}

// stateOf returns the state of a target, if there is one.
func (e *Engine) stateOf(t Target) (s state, ok bool) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if n := e.targets[t]; n != nil {
		return n.state, true
	}
	return s, false
}

type family struct{ name, host string }

// families are loopback addresses of both families.
var families = []family{{"IPv4", "127.0.0.1"}, {"IPv6", "::1"}}

// inFamilies runs a subtest for each family.
func inFamilies(t *testing.T, f func(*testing.T, family)) {
	t.Helper()
	for _, one := range families {
		t.Run(one.name, func(t *testing.T) { f(t, one) })
	}
}

// listen opens a listening socket that handle serves, one goroutine for each connection. It closes
// everything at the end of the test.
func listen(t testing.TB, host string, handle func(net.Conn)) netip.AddrPort {
	t.Helper()
	l := must.Get(net.Listen("tcp", net.JoinHostPort(host, "0")))(t)
	var all sync.WaitGroup
	var mu sync.Mutex
	var conns []net.Conn
	all.Go(func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			mu.Lock()
			conns = append(conns, c)
			mu.Unlock()
			all.Go(func() {
				handle(c)
				c.Close()
			})
		}
	})
	t.Cleanup(func() {
		l.Close()
		mu.Lock()
		for _, c := range conns {
			c.Close()
		}
		mu.Unlock()
		all.Wait()
	})
	return netip.MustParseAddrPort(l.Addr().String())
}

// closedPort returns an address of this host where nothing listens during the test.
func closedPort(t testing.TB, host string) netip.AddrPort {
	t.Helper()
	_, address := boundSocket(t, host) // bound, so that no other test gets the port
	return address
}

// boundSocket returns a socket with a port of its own, and its address.
func boundSocket(t testing.TB, host string) (fd int, address netip.AddrPort) {
	t.Helper()
	family, sa := sockaddr(netip.AddrPortFrom(netip.MustParseAddr(host), 0))
	fd = must.Get(unix.Socket(family, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0))(t)
	t.Cleanup(func() { unix.Close(fd) })
	must.Succeed(t, unix.Bind(fd, sa))
	bound := must.Get(unix.Getsockname(fd))(t)
	port := 0
	switch b := bound.(type) {
	case *unix.SockaddrInet4:
		port = b.Port
	case *unix.SockaddrInet6:
		port = b.Port
	}
	return fd, netip.AddrPortFrom(netip.MustParseAddr(host), uint16(port))
}

// fullBacklog returns an address that is silent: its listener has a full queue, and the kernel
// ignores further connections.
func fullBacklog(t testing.TB, host string) netip.AddrPort {
	t.Helper()
	fd, address := boundSocket(t, host)
	must.Succeed(t, unix.Listen(fd, 0))
	c, err := net.Dial("tcp", address.String()) // the queue holds one more than its length
	must.Succeed(t, err)
	t.Cleanup(func() { c.Close() })
	return address
}

// probeOnce runs one probe of each target and returns the results in their order.
func probeOnce(t testing.TB, o Options, all ...Target) []done {
	t.Helper()
	results := make(chan done, len(all))
	report := func(batch []done) {
		for _, d := range batch {
			results <- d
		}
	}
	e := New(o)
	sockets := must.Get(newPoller(report))(t)
	running, ctx := parallel.NewGroup(t.Context())
	running.Go(sockets.run)
	defer running.Wait()
	defer sockets.close()
	r := &routines{ctx: ctx, all: running, run: e.probeFunc, report: report}
	place := map[*target]int{}
	var jobs [lanes][]job
	for i, tt := range all {
		n := &target{Target: tt}
		place[n] = i
		l := laneOf(tt.Check().Type)
		jobs[l] = append(jobs[l], job{t: n, check: tt.Check()})
	}
	sockets.start(jobs[socketLane])
	r.start(jobs[requestLane])
	r.start(jobs[commandLane])
	out := make([]done, len(all))
	for range all {
		d := <-results
		out[place[d.t]] = d
	}
	return out
}

// expectation is a row of the tests of the kinds.
type expectation struct {
	name    string
	addr    netip.AddrPort
	check   vip.HealthCheck
	outcome Outcome
	reason  string // a part of it
}

// run probes the targets of all rows at the same time and compares.
func run(t *testing.T, o Options, rows []expectation) {
	t.Helper()
	before := descriptors(t)
	all := make([]Target, len(rows))
	for i, row := range rows {
		if row.check.Timeout = 30 * time.Second; row.outcome == TimedOut {
			row.check.Timeout = 500 * time.Millisecond
		}
		all[i] = NewTarget(row.addr, row.check)
	}
	for i, d := range probeOnce(t, o, all...) {
		row := rows[i]
		if d.outcome != row.outcome || !strings.Contains(d.reason, row.reason) || (d.outcome == OK) != (d.reason == "") {
			t.Errorf("%s: %v, %q; want %v, %q", row.name, d.outcome, d.reason, row.outcome, row.reason)
		}
		if timeout := all[i].Check().Timeout; d.took > timeout+2*time.Second || d.outcome == TimedOut && d.took < timeout {
			t.Errorf("%s: took %v, the timeout is %v", row.name, d.took, timeout)
		}
	}
	if after := descriptors(t); after > before+2*len(rows) { // accepted connections of the servers
		t.Errorf("%d descriptors before, %d after", before, after)
	}
}

var quiet = log.New(io.Discard, "", 0)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }
