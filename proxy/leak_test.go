package proxy

import (
	"fmt"
	"net/netip"
	"runtime"
	"sync"
	"testing"

	"github.com/ironvip/ironvip/test/descriptors"
	"github.com/ironvip/ironvip/test/expect"
	"github.com/ironvip/ironvip/test/wait"
	"github.com/ironvip/ironvip/vip"
)

// Frontends, connections and sessions that start and end leave nothing. newTarget checks
// descriptors and goroutines at the end of each test; this test checks that they don't grow during
// the run.
func TestChurnLeavesNothing(t *testing.T) {
	a, b := tcpBackend(t, "127.0.0.1", named("a")), tcpBackend(t, "127.0.0.1", named("b"))
	u := udpBackend(t, "127.0.0.1", "u")
	refuses := closedPort(t, "127.0.0.1")
	p := newTarget(t, Options{})
	tcp, udp := freeKey(t, "127.96.0.1", vip.TCP), freeKey(t, "127.96.0.2", vip.UDP)
	round := func() {
		p.must(onVIP(tcp, vip.RoundRobin, a, b, refuses))
		p.must(onVIP(udp, vip.MaglevHash, u))
		var clients sync.WaitGroup
		for range 8 {
			clients.Go(func() {
				c := dial(t, tcp)
				c.line(t)
				c.echo(t, "x")
				c.Close()
				d := udpClient(t, udp)
				mustAsk(t, d, "x")
				d.Close()
			})
		}
		clients.Wait()
		open := dial(t, tcp) // one is open when its backend is removed
		open.line(t)
		p.must(onVIP(tcp, vip.LeastConnection))
		open.wantReset(t)
		open.Close()
		p.remove(tcp)
		p.remove(udp)
	}
	round()
	wait.Until(t, "idle", func() bool { return p.Stats().Connections == 0 && p.Stats().Sessions == 0 })
	fds, goroutines := descriptors.Open(t), runtime.NumGoroutine()
	for range 20 {
		round()
	}
	// Idle pipes are kept for reuse, at most idlePipes of them.
	wait.Until(t, "descriptors as before", func() bool { return descriptors.Open(t) <= fds+2*idlePipes })
	wait.Until(t, "goroutines as before", func() bool { return runtime.NumGoroutine() <= goroutines })
}

// A connection costs two descriptors and no goroutine. A benchmark measures its memory.
func TestCostOfAnIdleConnection(t *testing.T) {
	a := tcpBackend(t, "127.0.0.1", named("a"))
	p, key := serve(t, a)
	p.pipes.close() // keep none for reuse, so that the count is exact
	const n = 100
	first := dial(t, key)
	first.line(t)
	first.echo(t, "both its directions run")
	wait.Until(t, "its pipes are put back", func() bool { return p.pipes.held() == 0 })
	fds, goroutines := descriptors.Open(t), runtime.NumGoroutine()
	for range n {
		dial(t, key).line(t)
	}
	wait.Until(t, "pipes put back", func() bool { return p.pipes.held() == 0 })
	// The test's own part: the descriptors of the client and the backend, and the backend's
	// goroutine.
	expect.AtMost(t, descriptors.Open(t)-fds-2*n, 2*n, "descriptors of %d connections", n)
	expect.AtMost(t, runtime.NumGoroutine()-goroutines-n, 0, "goroutines of %d connections", n)
}

// Concurrent updates, traffic and queries, for the race detector.
func TestConcurrentUpdatesAndTraffic(t *testing.T) {
	var all []netip.AddrPort
	for i := range 4 {
		all = append(all, tcpBackend(t, "127.0.0.1", named(fmt.Sprint(i))))
	}
	p, key := target(t)
	full := onVIP(key, vip.WeightedLeastConnection, all...)
	full.Affinity = 1e9
	p.must(full)
	stop := make(chan struct{})
	var clients sync.WaitGroup
	for range 4 {
		clients.Go(func() {
			for {
				select {
				case <-stop:
					return
				default:
					who(t, key)
				}
			}
		})
	}
	clients.Go(func() {
		for {
			select {
			case <-stop:
				return
			default:
				p.open(key, all[0])
				p.Stats()
			}
		}
	})
	// A draining backend causes no refusals: every client is served.
	for i := range 200 {
		p.must(weigh(full, all[i%4], 0))
		p.must(full)
	}
	close(stop)
	clients.Wait()
}
