package proxy

import (
	"fmt"
	"io"
	"net"
	"net/netip"
	"os"
	"runtime"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/ironvip/ironvip/plane/reconcile"
	"github.com/ironvip/ironvip/test/must"
	"github.com/ironvip/ironvip/vip"
)

// BenchmarkThroughput moves 64 KiB writes in one direction: directly to the backend, through the
// proxy, and through the proxy without pipes. Compare within a run.
func BenchmarkThroughput(b *testing.B) {
	for _, c := range []struct {
		name  string
		via   bool
		pipes int
	}{{"direct", false, 0}, {"spliced", true, 100}, {"buffered", true, 0}} {
		b.Run(c.name, func(b *testing.B) {
			done := make(chan int64, 1)
			backend := tcpBackend(b, "127.0.0.1", func(c *net.TCPConn) {
				n, _ := io.Copy(io.Discard, struct{ io.Reader }{c})
				done <- n
			})
			addr := through(b, c.via, c.pipes, backend)
			conn := must.Get(net.Dial("tcp", addr.String()))(b)
			defer conn.Close()
			chunk := make([]byte, 64<<10)
			b.SetBytes(int64(len(chunk)))
			for b.Loop() {
				must.Get(conn.Write(chunk))(b)
			}
			conn.(*net.TCPConn).CloseWrite()
			<-done
		})
	}
}

// BenchmarkRoundTrip sends 100 bytes and waits for their echo.
func BenchmarkRoundTrip(b *testing.B) {
	for _, via := range []bool{false, true} {
		b.Run(map[bool]string{false: "direct", true: "proxied"}[via], func(b *testing.B) {
			backend := tcpBackend(b, "127.0.0.1", func(c *net.TCPConn) {
				io.Copy(struct{ io.Writer }{c}, struct{ io.Reader }{c})
			})
			addr := through(b, via, 100, backend)
			conn := must.Get(net.Dial("tcp", addr.String()))(b)
			defer conn.Close()
			chunk := make([]byte, 100)
			b.ReportAllocs()
			for b.Loop() {
				must.Get(conn.Write(chunk))(b)
				must.Get(io.ReadFull(conn, chunk))(b)
			}
		})
	}
}

// BenchmarkConnect opens a connection, reads one byte and closes it.
func BenchmarkConnect(b *testing.B) {
	for _, via := range []bool{false, true} {
		b.Run(map[bool]string{false: "direct", true: "proxied"}[via], func(b *testing.B) {
			backend := tcpBackend(b, "127.0.0.1", func(c *net.TCPConn) { c.Write([]byte{1}) })
			addr := through(b, via, 100, backend)
			b.ReportAllocs()
			for b.Loop() {
				conn := must.Get(net.Dial("tcp", addr.String()))(b)
				if n, err := io.Copy(io.Discard, conn); n != 1 || err != nil {
					b.Fatal(n, err)
				}
				conn.(*net.TCPConn).SetLinger(0) // leave no TIME_WAIT behind
				conn.Close()
			}
		})
	}
}

// BenchmarkUDP sends a datagram and waits for the reply, in one session.
func BenchmarkUDP(b *testing.B) {
	for _, via := range []bool{false, true} {
		b.Run(map[bool]string{false: "direct", true: "proxied"}[via], func(b *testing.B) {
			addr := udpBackend(b, "127.0.0.1", "a")
			if via {
				p := newTarget(b, Options{})
				key := freeKey(b, "127.96.0.1", vip.UDP)
				p.must(onVIP(key, vip.RoundRobin, addr))
				addr = key.AddrPort()
			}
			conn := must.Get(net.Dial("udp", addr.String()))(b)
			defer conn.Close()
			buf := make([]byte, 100)
			b.ReportAllocs()
			for b.Loop() {
				must.Get(conn.Write([]byte("x")))(b)
				must.Get(conn.Read(buf))(b)
			}
		})
	}
}

// BenchmarkIdleFrontends reports the heap, stacks and goroutines of frontends without clients.
func BenchmarkIdleFrontends(b *testing.B) {
	for _, protocol := range []vip.Protocol{vip.TCP, vip.UDP} {
		for _, n := range []int{1000, 5000} {
			b.Run(fmt.Sprintf("%s/frontends=%d", protocol, n), func(b *testing.B) {
				p := newTarget(b, Options{})
				var batch []reconcile.Update[vip.FrontendKey, vip.Frontend]
				for i := range n {
					key := vip.FrontendKey{Addr: netip.AddrFrom4([4]byte{127, 97, byte(i >> 8), byte(i)}), Port: 40000, Protocol: protocol}
					batch = append(batch, reconcile.Update[vip.FrontendKey, vip.Frontend]{Key: key, New: onVIP(key, vip.WeightedRoundRobin, netip.MustParseAddrPort("127.0.0.1:9"))})
				}
				var before, after runtime.MemStats
				goroutines := runtime.NumGoroutine()
				runtime.GC()
				runtime.ReadMemStats(&before)
				must.Succeed(b, p.Apply(b.Context(), batch))
				runtime.GC()
				runtime.ReadMemStats(&after)
				b.ReportMetric(float64(after.HeapAlloc-before.HeapAlloc)/float64(n), "heap-B/frontend")
				b.ReportMetric(float64(after.StackInuse-before.StackInuse)/float64(n), "stack-B/frontend")
				b.ReportMetric(float64(runtime.NumGoroutine()-goroutines), "goroutines")
				b.ReportMetric(0, "ns/op")
			})
		}
	}
}

// BenchmarkStart opens frontends without clients, and reports the processor time of the process, its
// memory, and that of the kernel's slab, which other programs change, too. The garbage collector counts the reserve as live, so
// that it waits, as at the start of an agent.
func BenchmarkStart(b *testing.B) {
	for _, c := range []struct {
		n        int
		skLookup bool
		reserve  int
	}{{10_000, false, 0}, {10_000, true, 0}, {10_000, true, 128 << 20}, {60_000, true, 0}} {
		b.Run(fmt.Sprintf("frontends=%d/sk_lookup=%t/reserve=%d", c.n, c.skLookup, c.reserve>>20), func(b *testing.B) {
			reserve := make([]byte, c.reserve)
			defer runtime.KeepAlive(reserve)
			batch := make([]reconcile.Update[vip.FrontendKey, vip.Frontend], c.n)
			for i := range batch {
				key := vip.FrontendKey{Addr: netip.AddrFrom4([4]byte{127, 98, byte(i >> 8), byte(i)}), Port: 40000, Protocol: vip.TCP}
				batch[i] = reconcile.Update[vip.FrontendKey, vip.Frontend]{Key: key, New: onVIP(key, vip.WeightedRoundRobin, netip.MustParseAddrPort("127.0.0.1:9"))}
			}
			least, heap, slab := time.Hour, uint64(0), uint64(0)
			files := 0
			for b.Loop() {
				runtime.GC()
				runtime.GC()
				var before, after runtime.MemStats
				runtime.ReadMemStats(&before)
				kernel, start := slabBytes(b), processorTime(b)
				p := New(Options{SkLookup: c.skLookup, Files: 19_000})
				if err := p.Apply(b.Context(), batch); err != nil || batch[c.n-1].Err != nil {
					b.Fatal(err, batch[c.n-1].Err)
				}
				least = min(least, processorTime(b)-start)
				slab = slabBytes(b) - kernel
				files = 19_000 - int(p.Usage().Files)
				runtime.GC()
				runtime.ReadMemStats(&after)
				heap = after.HeapAlloc - before.HeapAlloc + after.StackInuse - before.StackInuse
				p.Close()
			}
			b.ReportMetric(float64(least.Microseconds())/1000, "cpu-ms")
			b.ReportMetric(float64(heap)/1e6, "process-MB")
			b.ReportMetric(float64(int64(slab))/1e6, "slab-MB")
			b.ReportMetric(float64(files), "descriptors")
			b.ReportMetric(0, "ns/op")
		})
	}
}

func processorTime(b *testing.B) time.Duration {
	var r unix.Rusage
	must.Succeed(b, unix.Getrusage(unix.RUSAGE_SELF, &r))
	return time.Duration(r.Utime.Nano() + r.Stime.Nano())
}

// slabBytes returns the kernel's Slab of /proc/meminfo.
func slabBytes(b *testing.B) uint64 {
	text := must.Get(os.ReadFile("/proc/meminfo"))(b)
	var kib uint64
	_, rest, _ := strings.Cut(string(text), "\nSlab:")
	must.Get(fmt.Sscan(rest, &kib))(b)
	return kib << 10
}

// BenchmarkApply changes one weight of one frontend among many.
func BenchmarkApply(b *testing.B) {
	for _, n := range []int{1, 1000} {
		b.Run(fmt.Sprintf("frontends=%d", n), func(b *testing.B) {
			backend := netip.MustParseAddrPort("127.0.0.1:9")
			p := newTarget(b, Options{})
			var f *vip.Frontend
			for i := range n {
				f = onVIP(vip.FrontendKey{Addr: netip.AddrFrom4([4]byte{127, 97, byte(i >> 8), byte(i)}), Port: 40000, Protocol: vip.TCP}, vip.WeightedRoundRobin, backend)
				p.must(f)
			}
			g := weigh(f, backend, 2)
			for i := 0; b.Loop(); i++ {
				if i%2 == 0 {
					p.must(g)
				} else {
					p.must(f)
				}
			}
		})
	}
}

func through(b *testing.B, via bool, pipes int, backend netip.AddrPort) netip.AddrPort {
	b.Helper()
	if !via {
		return backend
	}
	p := newTarget(b, Options{})
	p.pipes.most = pipes
	key := freeKey(b, "127.96.0.1", vip.TCP)
	p.must(onVIP(key, vip.RoundRobin, backend))
	return key.AddrPort()
}
