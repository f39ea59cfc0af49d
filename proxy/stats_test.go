package proxy

import (
	"bytes"
	"io"
	"net"
	"net/netip"
	"sync"
	"testing"

	"github.com/ironvip/ironvip/plane/reconcile"
	"github.com/ironvip/ironvip/test/must"
	"github.com/ironvip/ironvip/test/wait"
	"github.com/ironvip/ironvip/vip"
)

// counted waits until a frontend's counters have the wanted values. Bytes are counted when they are
// written, and the peer may see them slightly earlier.
func (b *bench) counted(key vip.FrontendKey, want reconcile.Breakdown) {
	b.Helper()
	var got reconcile.Breakdown
	defer func() {
		if b.Failed() {
			b.Logf("got  %+v\nwant %+v", got, want)
		}
	}()
	wait.Until(b, "counted", func() bool {
		var found bool
		var err error
		if got, found, err = b.Breakdown(b.Context(), key); err != nil || !found {
			b.Fatal(found, err)
		}
		all, err := b.Totals(b.Context(), everyFrontend)
		if err != nil || len(all) > 1 {
			b.Fatal(all, err)
		}
		if got.Traffic != want.Traffic || all[key] != want.Traffic || len(got.Endpoints) != len(want.Endpoints) {
			return false
		}
		for addr, e := range want.Endpoints {
			if got.Endpoints[addr] != e {
				return false
			}
		}
		return true
	})
}

func traffic(connections, active, in, out uint64) reconcile.Traffic {
	return reconcile.Traffic{Connections: connections, Active: active, In: reconcile.Volume{Bytes: in}, Out: reconcile.Volume{Bytes: out}}
}

type endpointTraffic = map[netip.AddrPort]reconcile.Traffic

// Every byte of TCP is counted once for its backend and once for the frontend, spliced or not. The
// frontend's counters keep the traffic of a removed backend.
func TestTCPIsCounted(t *testing.T) {
	for _, c := range []struct {
		name  string
		pipes int
	}{{"spliced", 100}, {"without pipes", 0}} {
		t.Run(c.name, func(t *testing.T) {
			const up, down = 3 << 20, 1<<20 + 7
			backend := tcpBackend(t, "127.0.0.1", func(c *net.TCPConn) {
				if n, _ := io.Copy(io.Discard, c); n == up {
					c.Write(make([]byte, down))
				}
			})
			idle := tcpBackend(t, "127.0.0.1", named("idle"))
			p := newTarget(t, Options{})
			p.pipes.most = c.pipes
			key := freeKey(t, "127.96.0.1", vip.TCP)
			both := onVIP(key, vip.RoundRobin, backend, idle)
			p.must(weigh(both, idle, 0))
			p.counted(key, reconcile.Breakdown{Endpoints: endpointTraffic{backend: {}, idle: {}}})
			for i := range uint64(2) {
				conn := dial(t, key)
				must.Get(conn.Write(make([]byte, up)))(t)
				n := traffic(i+1, 1, (i+1)*up, i*down)
				p.counted(key, reconcile.Breakdown{Traffic: n, Endpoints: endpointTraffic{backend: n, idle: {}}})
				conn.CloseWrite()
				must.Equal(t, must.Get(io.Copy(io.Discard, conn))(t), down)
				n = traffic(i+1, 0, (i+1)*up, (i+1)*down)
				p.counted(key, reconcile.Breakdown{Traffic: n, Endpoints: endpointTraffic{backend: n, idle: {}}})
			}
			all := traffic(2, 0, 2*up, 2*down)
			p.must(without(both, backend))
			p.counted(key, reconcile.Breakdown{Traffic: all, Endpoints: endpointTraffic{idle: {}}})
			p.must(both) // it returns as a new backend
			p.counted(key, reconcile.Breakdown{Traffic: all, Endpoints: endpointTraffic{backend: {}, idle: {}}})
			p.remove(key)
			if _, found, err := p.Breakdown(t.Context(), key); found || err != nil {
				t.Errorf("a frontend that is gone: %v, %v", found, err)
			}
			p.must(both)
			p.counted(key, reconcile.Breakdown{Endpoints: endpointTraffic{backend: {}, idle: {}}})
		})
	}
}

// A refused connection isn't counted for its backend. The accepted one is counted.
func TestRetriedConnectionIsCountedOnce(t *testing.T) {
	refuses, works := closedPort(t, "127.0.0.1"), tcpBackend(t, "127.0.0.1", named("a"))
	p, key := serve(t, refuses, works)
	for range 4 {
		who(t, key)
	}
	n := traffic(4, 0, 0, 4*2)
	p.counted(key, reconcile.Breakdown{Traffic: n, Endpoints: endpointTraffic{refuses: {}, works: n}})
}

// A UDP client counts as a connection. Datagrams count by their payload, including empty ones.
func TestUDPIsCounted(t *testing.T) {
	backend := udpBackend(t, "127.0.0.1", "b") // answers "b " and the datagram
	p := newTarget(t, Options{})
	key := freeKey(t, "127.96.0.1", vip.UDP)
	p.must(onVIP(key, vip.RoundRobin, backend))
	buf := make([]byte, 64<<10)
	for i := range uint64(3) {
		c := udpClient(t, key)
		for _, size := range []int{10, 0, 9000} {
			must.Get(c.Write(bytes.Repeat([]byte("x"), size)))(t)
			must.Equal(t, must.Get(c.Read(buf))(t), size+2)
		}
		n := traffic(i+1, i+1, (i+1)*9010, (i+1)*9016)
		p.counted(key, reconcile.Breakdown{Traffic: n, Endpoints: endpointTraffic{backend: n}})
	}
}

// Concurrent reads and lists, traffic and changes, for the race detector. No counter decreases.
func TestReadWhileServing(t *testing.T) {
	var last reconcile.Traffic
	whileServing(t, func(p *bench, key vip.FrontendKey) bool {
		p.list(everyFrontend)
		all, err := p.Totals(t.Context(), everyFrontend)
		if err != nil {
			t.Error(err)
			return false
		}
		now := all[key]
		if now.Connections < last.Connections || now.In.Bytes < last.In.Bytes || now.Out.Bytes < last.Out.Bytes {
			t.Errorf("%+v after %+v", now, last)
		}
		last = now
		return true
	})
}

// whileServing calls read until it returns false, while clients connect to a frontend and its backends
// change.
func whileServing(t *testing.T, read func(p *bench, key vip.FrontendKey) bool) {
	t.Helper()
	a, b := tcpBackend(t, "127.0.0.1", named("a")), tcpBackend(t, "127.0.0.1", named("b"))
	p, key := target(t)
	both := onVIP(key, vip.RoundRobin, a, b)
	p.must(both)
	done := make(chan struct{})
	var reader sync.WaitGroup
	reader.Go(func() {
		for read(p, key) {
			select {
			case <-done:
				return
			default:
			}
		}
	})
	for i := range 60 {
		if i%10 == 0 {
			p.must(without(both, b))
			p.must(both)
		}
		dial(t, key).line(t)
	}
	close(done)
	reader.Wait()
}

// everyFrontend selects all frontends for Totals.
func everyFrontend(vip.FrontendKey) bool { return true }
