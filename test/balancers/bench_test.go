//go:build system

package balancers

import (
	"bytes"
	"cmp"
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/ironvip/ironvip/test/freeport"
	"github.com/ironvip/ironvip/test/need"
	"github.com/ironvip/ironvip/test/process"
	"github.com/ironvip/ironvip/test/wait"
)

const (
	loadTime    = 2 * time.Second // of each load in one round
	messageSize = 100             // of a request and of its answer
	kept        = 64              // connections for requests
	opening     = 32              // connections at a time, of one request each
	idle        = 3000            // idle connections
	pace        = 4000            // requests a second for the latency
	backends    = 8               // so that the balancer has enough ports to connect from
)

// competitor starts a balancer at an address.
type competitor struct {
	name  string
	start func(b *bench) *process.Process
}

// haproxy is HAProxy with a number of threads.
func haproxy(threads int) competitor {
	return competitor{"haproxy", func(b *bench) *process.Process {
		return b.program(need.Program(b.t, "haproxy"), "-db", "-f", b.file("haproxy.cfg", fmt.Sprintf("global\n nbthread %d\n maxconn 9000\n", threads)+
			"defaults\n mode tcp\n timeout connect 10s\n timeout client 1h\n timeout server 1h\n"+
			"listen web\n bind "+b.at.String()+"\n balance roundrobin\n"+b.lines(func(i int, a netip.AddrPort) string {
			return fmt.Sprintf(" server s%d %s\n", i, a)
		})))
	}}
}

var (
	nginx = competitor{"nginx", func(b *bench) *process.Process {
		return b.program(need.Daemon(b.t, "nginx"), "-e", "stderr", "-c", b.file("nginx.conf", "load_module /usr/lib/nginx/modules/ngx_stream_module.so;\n"+
			"daemon off;\nmaster_process off;\npid "+b.dir+"/nginx.pid;\nevents { worker_connections 9000; }\nstream {\n upstream web {\n"+
			b.lines(func(_ int, a netip.AddrPort) string { return fmt.Sprintf("  server %s;\n", a) })+
			" }\n server {\n  listen "+b.at.String()+" backlog=4096;\n  proxy_pass web;\n  proxy_timeout 1h;\n }\n"+
			" server {\n  listen "+b.at.String()+" udp;\n  proxy_pass web;\n  proxy_timeout 1m;\n }\n}\n"))
	}}
	ioCopy  = competitor{"copy", func(b *bench) *process.Process { return b.again("copy") }}
	ironvip = competitor{"ironvip", func(b *bench) *process.Process { return b.again("ironvip") }}
)

// by runs a competitor by another program, which sets its environment or its processors.
func (c competitor) by(command ...string) competitor {
	return competitor{c.name, func(b *bench) *process.Process {
		b.by = command
		return c.start(b)
	}}
}

// measures are what a balancer is compared by, in the order of the report.
var measures = []string{"datagrams/s", "cpu-us/datagram", "requests/s", "connections/s", "cpu-us/request", "cpu-us/connection", "B/idle-connection", "bulk-MB/s", "cpu-ms/GB", "p99-us"}

// results has the values of each round.
type results map[string]map[string][]float64

func (r results) add(balancer, measure string, value float64) {
	if r[balancer] == nil {
		r[balancer] = make(map[string][]float64)
	}
	r[balancer][measure] = append(r[balancer][measure], value)
}

func (r results) median(balancer, measure string) float64 {
	all := slices.Sorted(slices.Values(r[balancer][measure]))
	return all[len(all)/2]
}

// BenchmarkBalancers compares all balancers with HAProxy with one thread.
func BenchmarkBalancers(b *testing.B) {
	compare(b, (*bench).measure, haproxy(1), nginx, ioCopy, ironvip)
}

// BenchmarkDatagrams compares UDP with nginx.
func BenchmarkDatagrams(b *testing.B) {
	compare(b, (*bench).measureUDP, nginx, competitor{"ironvip", func(b *bench) *process.Process { return b.again("ironvip-udp") }})
}

// BenchmarkTwoThreads compares two event loops with two threads.
func BenchmarkTwoThreads(b *testing.B) {
	compare(b, (*bench).measure, haproxy(2), ironvip.by("env", "GOMAXPROCS=4"))
}

// BenchmarkOneProcessor compares balancers that have one processor each.
func BenchmarkOneProcessor(b *testing.B) {
	one := []string{"taskset", "--cpu-list", "0"}
	compare(b, (*bench).measure, haproxy(1).by(one...), ironvip.by(one...))
}

// compare measures the balancers in turn, in each round in another order. It reports the medians of ironvip, in units of
// the first one, and logs those of all.
func compare(b *testing.B, measure func(*bench, func(string, float64)), competitors ...competitor) {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	r := make(results)
	for round := range b.N {
		for i := range competitors {
			c := competitors[(round+i)%len(competitors)]
			one := newBench(b)
			one.p = c.start(one)
			must(b, one.p.Start())
			measure(one, func(measure string, value float64) { r.add(c.name, measure, value) })
			one.p.Stop()
			one.loop.end()
		}
	}
	var table strings.Builder
	fmt.Fprintf(&table, "medians of %d rounds, and in units of %s:\n%-20s", b.N, competitors[0].name, "")
	for _, c := range competitors {
		fmt.Fprintf(&table, "%20s", c.name)
	}
	for _, m := range measures {
		if r["ironvip"][m] == nil {
			continue
		}
		first := r.median(competitors[0].name, m)
		fmt.Fprintf(&table, "\n%-20s", m)
		for _, c := range competitors {
			v := r.median(c.name, m)
			fmt.Fprintf(&table, "%13.1f (%4.2f)", v, v/first)
		}
		b.ReportMetric(r.median("ironvip", m)/first, strings.ReplaceAll(m, "/", "-per-")+"-of-"+competitors[0].name)
	}
	b.ReportMetric(0, "ns/op")
	b.Log(table.String())
}

// bench is one balancer with its backends.
type bench struct {
	t    *testing.B
	dir  string
	at   netip.AddrPort   // of the balancer
	to   []netip.AddrPort // of the backends
	by   []string         // the command that runs the balancer; none: it runs itself
	loop *loop
	p    *process.Process

	accepted int
	echo     echo
}

// echo is what backends do.
type echo int

const (
	echoes echo = iota // answer each request
	once               // answer one request and close
	sends              // send without end
)

func newBench(t *testing.B) *bench {
	b := &bench{t: t, dir: t.TempDir(), loop: newLoop(t)}
	front := netip.MustParseAddr("127.96.0.1")
	b.at = netip.AddrPortFrom(front, freeport.Reserve(t, nil, front)[1])
	for i := range backends {
		addr := netip.AddrFrom4([4]byte{127, 97, 0, byte(1 + i)})
		at := netip.AddrPortFrom(addr, freeport.Reserve(t, nil, addr)[1])
		b.to = append(b.to, at)
		b.loop.listen(at, b.serve)
	}
	return b
}

func (b *bench) file(name, text string) string {
	path := filepath.Join(b.dir, name)
	must(b.t, os.WriteFile(path, []byte(text), 0o600))
	return path
}

func (b *bench) lines(line func(i int, a netip.AddrPort) string) string {
	var all strings.Builder
	for i, a := range b.to {
		all.WriteString(line(i, a))
	}
	return all.String()
}

func (b *bench) program(bin string, args ...string) *process.Process {
	all := slices.Concat(b.by, []string{bin}, args)
	return process.New(all[0], filepath.Join(b.dir, "log"), nil, all[1:]...)
}

// again runs this program as a balancer.
func (b *bench) again(name string) *process.Process {
	what := []string{name, b.at.String()}
	for _, a := range b.to {
		what = append(what, a.String())
	}
	return b.program("/usr/bin/env", servedVariable+"="+strings.Join(what, " "), os.Args[0])
}

// serve is a backend's part of a connection.
func (b *bench) serve(fd int) {
	b.accepted++
	if b.echo == sends {
		chunk := make([]byte, 256<<10)
		b.loop.add(fd, unix.EPOLLOUT, func() {
			if n, err := unix.Write(fd, chunk); n < 0 && err != unix.EAGAIN { //nolint:errorlint // an errno
				b.loop.close(fd)
			}
		})
		return
	}
	buffer := make([]byte, messageSize)
	b.loop.add(fd, unix.EPOLLIN, func() {
		n, err := unix.Read(fd, buffer)
		if n <= 0 {
			if err != unix.EAGAIN { //nolint:errorlint // an errno
				b.loop.close(fd)
			}
			return
		}
		_, _ = unix.Write(fd, buffer[:n])
		if b.echo == once {
			b.loop.close(fd)
		}
	})
}

// until waits until the balancer serves.
func (b *bench) until(serves func(fd int) bool, kind int) {
	wait.Until(b.t, "the balancer serves", func() bool {
		if !b.p.Running() {
			b.t.Fatalf("it has ended: %s", b.p.LogEnd(4096))
		}
		fd, err := unix.Socket(unix.AF_INET, kind|unix.SOCK_CLOEXEC, 0)
		must(b.t, err)
		defer unix.Close(fd)
		return unix.Connect(fd, sockaddr(b.at)) == nil && serves(fd)
	})
}

// measureUDP has a thousand clients of which a hundred wait for the answer to a request.
func (b *bench) measureUDP(record func(string, float64)) {
	for _, at := range b.to {
		b.datagrams(at, unix.Bind, func(fd int, from unix.Sockaddr) { _ = unix.Sendto(fd, request, unix.MSG_DONTWAIT, from) })
	}
	b.until(func(fd int) bool {
		_, _ = unix.Write(fd, request)
		b.loop.run(lasts(10 * time.Millisecond)) // the backends answer
		n, _, _ := unix.Recvfrom(fd, make([]byte, messageSize), unix.MSG_DONTWAIT)
		return n == messageSize
	}, unix.SOCK_DGRAM)
	const clients, asking = 1000, 100
	var waiting []int
	answered := 0
	next := func() {
		fd := waiting[0]
		waiting = waiting[1:]
		_, _ = unix.Write(fd, request)
	}
	for range clients {
		waiting = append(waiting, b.datagrams(b.at, unix.Connect, func(fd int, _ unix.Sockaddr) {
			answered++
			waiting = append(waiting, fd)
			next()
		}))
	}
	for range asking {
		next()
	}
	b.loop.run(lasts(loadTime / 4)) // each client has a session
	cpu, n, began := b.cpu(), answered, time.Now()
	b.loop.run(lasts(loadTime))
	n = 2 * (answered - n)
	record("datagrams/s", float64(n)/time.Since(began).Seconds())
	record("cpu-us/datagram", (b.cpu()-cpu).Seconds()*1e6/float64(n))
}

// datagrams binds or connects a socket of UDP, and calls received with each datagram.
func (b *bench) datagrams(at netip.AddrPort, bind func(int, unix.Sockaddr) error, received func(fd int, from unix.Sockaddr)) int {
	fd, err := unix.Socket(unix.AF_INET, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK, 0)
	must(b.t, err)
	must(b.t, bind(fd, sockaddr(at)))
	buffer := make([]byte, messageSize)
	b.loop.add(fd, unix.EPOLLIN, func() {
		if n, from, err := unix.Recvfrom(fd, buffer, 0); err == nil && n == messageSize {
			received(fd, from)
		}
	})
	return fd
}

// measure has all loads of TCP.
func (b *bench) measure(record func(string, float64)) {
	b.until(func(int) bool { return true }, unix.SOCK_STREAM)
	b.requests(kept, func(asks *asking) { b.loop.run(lasts(loadTime / 4)) }) // warm
	record("B/idle-connection", b.idleBytes())
	b.requests(kept, func(asks *asking) {
		cpu, n, began := b.cpu(), asks.answered, time.Now()
		b.loop.run(lasts(loadTime))
		n = asks.answered - n
		record("requests/s", float64(n)/time.Since(began).Seconds())
		record("cpu-us/request", (b.cpu()-cpu).Seconds()*1e6/float64(n))
	})
	record("p99-us", b.latency())
	b.connections(record)
	b.bulk(record)
}

// cpu returns the processor time of the balancer's process.
func (b *bench) cpu() time.Duration {
	var at unix.Timespec
	clock := ^int32(b.p.Pid())<<3 | 2 // the clock of another process; see clock_getcpuclockid(3)
	must(b.t, unix.ClockGettime(clock, &at))
	return time.Duration(at.Nano())
}

// memory returns the private memory of the balancer's process in bytes.
func (b *bench) memory() (sum int) {
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/smaps_rollup", b.p.Pid()))
	must(b.t, err)
	for line := range bytes.Lines(text) {
		if f := strings.Fields(string(line)); strings.HasPrefix(f[0], "Private_") {
			kib, err := strconv.Atoi(f[1])
			must(b.t, err)
			sum += kib << 10
		}
	}
	return sum
}

// asking is connections with a request each, followed by the next one after the answer.
type asking struct {
	answered int
	fds      []int
	busy     map[int]time.Time // since when; only of paced ones
	free     []int
	took     []time.Duration
}

var request = make([]byte, messageSize)

// requests opens n connections, runs during, and closes them.
func (b *bench) requests(n int, during func(*asking)) {
	b.echo = echoes
	a := &asking{}
	for range n {
		fd := b.loop.dial(b.at)
		a.fds = append(a.fds, fd)
		buffer := make([]byte, messageSize)
		b.loop.add(fd, unix.EPOLLIN, func() {
			n, err := unix.Read(fd, buffer)
			if n != messageSize {
				b.t.Fatalf("an answer of %d bytes, %v", n, err)
			}
			a.answered++
			if a.busy == nil {
				b.send(fd)
				return
			}
			a.took = append(a.took, time.Since(a.busy[fd]))
			a.free = append(a.free, fd)
		})
		b.send(fd)
	}
	during(a)
	b.closeAll(a.fds)
}

func (b *bench) send(fd int) {
	if n, err := unix.Write(fd, request); n != len(request) {
		b.t.Fatalf("wrote %d bytes of a request, %v", n, err)
	}
}

// closeAll closes connections and waits until the balancer has closed them, too.
func (b *bench) closeAll(fds []int) {
	for _, fd := range fds {
		b.loop.close(fd)
	}
	b.loop.run(func() bool { return len(b.loop.on) == backends })
}

// latency returns the 99th percentile of the times of requests at a constant rate, in microseconds.
// A time begins when the request is due.
func (b *bench) latency() (p99 float64) {
	b.requests(kept, func(a *asking) {
		b.loop.run(lasts(loadTime / 10))
		a.busy = make(map[int]time.Time, kept) // from now on, an answer is followed by no request
		b.loop.run(func() bool { return len(a.free) == kept })
		a.took = nil
		timer, err := unix.TimerfdCreate(unix.CLOCK_MONOTONIC, unix.TFD_CLOEXEC|unix.TFD_NONBLOCK)
		must(b.t, err)
		const interval = time.Second / pace
		every := unix.NsecToTimespec(int64(interval))
		must(b.t, unix.TimerfdSettime(timer, 0, &unix.ItimerSpec{Interval: every, Value: every}, nil))
		due := time.Now()
		b.loop.add(timer, unix.EPOLLIN, func() {
			var ticks [8]byte
			_, _ = unix.Read(timer, ticks[:])
			for now := time.Now(); due.Before(now) && len(a.free) > 0; due = due.Add(interval) {
				fd := a.free[0]
				a.free = a.free[1:]
				a.busy[fd] = due
				b.send(fd)
			}
		})
		b.loop.run(lasts(loadTime))
		b.loop.close(timer)
		b.loop.run(func() bool { return len(a.free) == kept })
		slices.Sort(a.took)
		p99 = a.took[len(a.took)*99/100].Seconds() * 1e6
	})
	return p99
}

// idleBytes returns the balancer's private memory of a connection that had a request.
func (b *bench) idleBytes() float64 {
	b.echo = echoes
	before := b.memory()
	var fds []int
	answered := 0
	for range idle {
		fd := b.loop.dial(b.at)
		fds = append(fds, fd)
		b.loop.add(fd, unix.EPOLLIN, func() {
			_, _ = unix.Read(fd, make([]byte, messageSize))
			answered++
		})
		b.send(fd)
		if len(fds)%opening == 0 {
			b.loop.run(func() bool { return answered == len(fds) })
		}
	}
	b.loop.run(func() bool { return answered == idle })
	time.Sleep(loadTime / 2)
	after := b.memory()
	b.closeAll(fds)
	return float64(after-before) / idle
}

// connections opens connections of one request each, which the backend ends.
func (b *bench) connections(record func(string, float64)) {
	b.echo = once
	n, open, more := 0, 0, true
	var next func()
	next = func() {
		fd := b.loop.dial(b.at)
		open++
		buffer := make([]byte, messageSize)
		b.loop.add(fd, unix.EPOLLIN, func() {
			got, err := unix.Read(fd, buffer)
			switch {
			case got > 0 || err == unix.EAGAIN: //nolint:errorlint // an errno
				return
			case err != nil:
				b.t.Fatalf("a connection ends with %v", err)
			}
			_ = unix.SetsockoptLinger(fd, unix.SOL_SOCKET, unix.SO_LINGER, &unix.Linger{Onoff: 1}) // leave no TIME_WAIT
			b.loop.close(fd)
			open--
			if n++; more {
				next()
			}
		})
		b.send(fd)
	}
	for range opening {
		next()
	}
	cpu, began := b.cpu(), time.Now()
	b.loop.run(lasts(loadTime))
	record("connections/s", float64(n)/time.Since(began).Seconds())
	record("cpu-us/connection", (b.cpu()-cpu).Seconds()*1e6/float64(cmp.Or(n, 1)))
	more = false
	b.loop.run(func() bool { return open == 0 && len(b.loop.on) == backends })
}

// bulk reads what a backend sends without end.
func (b *bench) bulk(record func(string, float64)) {
	b.echo = sends
	fd := b.loop.dial(b.at)
	bytes, buffer := 0, make([]byte, 256<<10)
	b.loop.add(fd, unix.EPOLLIN, func() {
		n, _ := unix.Read(fd, buffer)
		bytes += max(n, 0)
	})
	b.loop.run(lasts(loadTime / 10))
	bytes = 0
	cpu, began := b.cpu(), time.Now()
	b.loop.run(lasts(loadTime))
	record("bulk-MB/s", float64(bytes)/1e6/time.Since(began).Seconds())
	record("cpu-ms/GB", (b.cpu()-cpu).Seconds()*1e3/(float64(bytes)/1e9))
	b.closeAll([]int{fd})
}
