package probe

import (
	"bufio"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"runtime"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/ironvip/ironvip/internal/table"
	"github.com/ironvip/ironvip/test/expect"
	"github.com/ironvip/ironvip/test/must"
	"github.com/ironvip/ironvip/test/need"
	"github.com/ironvip/ironvip/test/scope"
	"github.com/ironvip/ironvip/test/wait"
	"github.com/ironvip/ironvip/vip"
)

// inNamespace runs the test in a process with a network namespace of its own, because the engine's
// goroutines use any thread. It reports whether this is that process. There, loopback is up and
// all of 127.0.0.0/8 and fd77::/64 are addresses of it.
func inNamespace(t *testing.T) bool {
	t.Helper()
	need.Root(t)
	const inside = "IRONVIP_TEST_NAMESPACE"
	if os.Getenv(inside) != "" {
		lo := must.Get(netlink.LinkByName("lo"))(t)
		must.Succeed(t, netlink.LinkSetUp(lo))
		_, all6, _ := net.ParseCIDR("fd77::/64")
		must.Succeed(t, netlink.RouteAdd(&netlink.Route{LinkIndex: lo.Attrs().Index, Dst: all6, Type: unix.RTN_LOCAL, Table: unix.RT_TABLE_LOCAL}))
		return true
	}
	cmd := exec.CommandContext(t.Context(), os.Args[0], "-test.run=^"+t.Name()+"$", "-test.v", "-test.timeout=60s")
	cmd.Env = append(os.Environ(), inside+"=1")
	cmd.SysProcAttr = &syscall.SysProcAttr{Cloneflags: syscall.CLONE_NEWNET, Pdeathsig: syscall.SIGKILL}
	out, err := cmd.CombinedOutput()
	t.Logf("%s", out)
	expect.Succeed(t, err)
	return false
}

// many returns n targets with different addresses of both families and a port.
func many(n int, port uint16, c vip.HealthCheck) []Target {
	ts := make([]Target, n)
	for i := range ts {
		ip := netip.AddrFrom4([4]byte{127, 1, byte(i >> 8), byte(i)})
		if i%2 == 1 {
			ip = netip.AddrFrom16([16]byte{0xfd, 0x77, 14: byte(i >> 8), 15: byte(i)})
		}
		ts[i] = NewTarget(netip.AddrPortFrom(ip, port), c)
	}
	return ts
}

// sockets counts the TCP sockets of this namespace by state, as in /proc/net/tcp: 01 is
// ESTABLISHED, 06 TIME_WAIT, 0A LISTEN.
func sockets(t *testing.T) map[string]int {
	t.Helper()
	n := map[string]int{}
	for _, name := range []string{"/proc/self/net/tcp", "/proc/self/net/tcp6"} {
		f := must.Get(os.Open(name))(t)
		for lines := bufio.NewScanner(f); lines.Scan(); {
			if fields := strings.Fields(lines.Text()); len(fields) > 3 && fields[0] != "sl" {
				n[fields[3]]++
			}
		}
		f.Close()
	}
	return n
}

// start runs an engine until stop is called.
func start(t testing.TB, o Options) (e *Engine, stop func()) {
	t.Helper()
	o.Results = NewResults(&table.Clock{})
	e = New(o)
	return e, scope.Go(t, e.Run)
}

// count returns the number of finished probes with an outcome.
func (s Stats) count(o Outcome) (n int) {
	for _, c := range s.Probes {
		if c.Outcome == o {
			n += int(c.N)
		}
	}
	return n
}

// Thousands of probes, of healthy, refusing and silent targets, leave no socket, no TIME_WAIT and no
// goroutine. 5,000 timeouts at the same time need no goroutine each, and delay nothing.
// Slow: 5,000 probes time out after 3 s.
func TestNothingIsLeft(t *testing.T) {
	if !inNamespace(t) {
		return
	}
	var files unix.Rlimit
	must.Succeed(t, unix.Getrlimit(unix.RLIMIT_NOFILE, &files))
	if files.Cur < 8000 {
		need.Lack(t, "needs descriptors", "8,000 of them")
	}
	goroutines, fds := runtime.NumGoroutine(), descriptors(t)
	e, stop := start(t, Options{Sockets: 7000})

	l, err := net.Listen("tcp", ":0") // nothing accepts: probes never complete a handshake
	must.Succeed(t, err)
	defer l.Close()
	port := uint16(l.Addr().(*net.TCPAddr).Port)
	const up, down, mute = 1000, 500, 5000
	healthy, refusing := many(up, port, vip.HealthCheck{Type: vip.CheckTCP, Interval: 200 * time.Millisecond}), many(down, port+1, tcp)
	silent := many(mute, muteListener(t), vip.HealthCheck{Type: vip.CheckTCP, Timeout: 3 * time.Second})
	for _, all := range [][]Target{healthy, refusing, silent} {
		for _, target := range all {
			e.Start(target, Use{Namespace: "default"})
		}
	}
	most := 0
	wait.Until(t, "all states", func() bool {
		most = max(most, e.Stats().Running)
		n := 0
		for _, r := range e.o.Results.All() {
			if r.Health != vip.Unknown {
				n++
			}
		}
		return n == up+down+mute
	})
	for _, target := range silent[:10] {
		if r, _, _ := e.o.Results.Get(target); r.Health != vip.Unhealthy || r.Reason != "no connection within 3s" {
			t.Errorf("%+v", r)
		}
	}
	wait.Until(t, "10,000 probes that passed", func() bool { return e.Stats().count(OK) > 10_000 })
	s := e.Stats()
	if most < mute*9/10 || s.count(Local) > 0 {
		t.Errorf("%d probes at once; %+v", most, s.Probes)
	}
	expect.AtMost(t, runtime.NumGoroutine(), goroutines+6, "goroutines with %d probes, %d before", s.Running, goroutines)
	if n := sockets(t); n["06"] > 0 {
		t.Errorf("sockets by state: %v, want none in TIME_WAIT", n)
	}
	stop()
	l.Close()
	if n := descriptors(t); n > fds+6 { // the silent listener's and Go's own poller
		t.Errorf("%d descriptors, %d before", n, fds)
	}
	expect.AtMost(t, runtime.NumGoroutine(), goroutines+2, "goroutines")
	wait.Until(t, "no sockets", func() bool {
		n := sockets(t)
		return n["01"]+n["02"]+n["03"]+n["06"] <= 2 // those that fill the silent listener
	})
}

// muteListener returns a port that is silent on every address.
func muteListener(t testing.TB) uint16 {
	t.Helper()
	fd := must.Get(unix.Socket(unix.AF_INET6, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0))(t)
	t.Cleanup(func() { unix.Close(fd) })
	must.Succeed(t, unix.Bind(fd, &unix.SockaddrInet6{}))
	must.Succeed(t, unix.Listen(fd, 0))
	sa := must.Get(unix.Getsockname(fd))(t)
	port := uint16(sa.(*unix.SockaddrInet6).Port)
	c := must.Get(net.Dial("tcp", netip.AddrPortFrom(netip.IPv6Loopback(), port).String()))(t)
	t.Cleanup(func() { c.Close() })
	return port
}

// Without a route, a target is unreachable.
func TestNoRoute(t *testing.T) {
	if !inNamespace(t) {
		return
	}
	for _, d := range probeOnce(t, Options{}, NewTarget(addr("192.0.2.1:80"), tcp), NewTarget(addr("[2001:db8::1]:80"), tcp)) {
		if d.outcome != Unreachable || d.reason != "connect: network is unreachable" {
			t.Errorf("%v, %q", d.outcome, d.reason)
		}
	}
}

// Without local ports, the probe proves nothing.
func TestNoPorts(t *testing.T) {
	if !inNamespace(t) {
		return
	}
	must.Succeed(t, os.WriteFile("/proc/sys/net/ipv4/ip_local_port_range", []byte("50000 50000"), 0))
	l := must.Get(net.Listen("tcp", "127.0.0.1:80"))(t)
	defer l.Close()
	c := must.Get(net.Dial("tcp", "127.0.0.1:80"))(t)
	defer c.Close()
	if d := probeOnce(t, Options{}, NewTarget(addr("127.0.0.1:80"), tcp))[0]; d.outcome != Local || d.reason != "connect: cannot assign requested address" {
		t.Errorf("%v, %q", d.outcome, d.reason)
	}
}

// BenchmarkTCPProbes runs 10,000 TCP probes every 2 s against this host. One operation is one probe.
// It reports the share of one processor, which includes the kernel's work for both ends, and the
// memory of a target.
func BenchmarkTCPProbes(b *testing.B) {
	const n = 10_000
	l := must.Get(net.Listen("tcp4", ":0"))(b)
	defer l.Close()
	port := uint16(l.Addr().(*net.TCPAddr).Port)
	var e *Engine
	var stop func()
	size := heapOf(func() any {
		e, stop = start(b, Options{})
		for i := range n {
			e.Start(NewTarget(netip.AddrPortFrom(netip.AddrFrom4([4]byte{127, 1, byte(i >> 8), byte(i)}), port), tcp), Use{Namespace: "default"})
		}
		return e
	})
	defer stop()
	var before, after unix.Rusage
	for e.Stats().count(OK) < n {
		time.Sleep(10 * time.Millisecond)
	}
	from := e.Stats().count(OK)
	unix.Getrusage(unix.RUSAGE_SELF, &before)
	began := time.Now()
	b.ResetTimer()
	for e.Stats().count(OK) < from+b.N {
		time.Sleep(10 * time.Millisecond)
	}
	b.StopTimer()
	unix.Getrusage(unix.RUSAGE_SELF, &after)
	cpu := time.Duration(after.Utime.Nano() + after.Stime.Nano() - before.Utime.Nano() - before.Stime.Nano())
	b.ReportMetric(float64(cpu)/float64(time.Since(began)), "cores")
	b.ReportMetric(float64(cpu.Microseconds())/float64(e.Stats().count(OK)-from), "cpu-us/probe")
	b.ReportMetric(float64(size)/n, "B/target")
}
