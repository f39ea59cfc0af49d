package proxy

import (
	"errors"
	"io"
	"net"
	"net/netip"
	"runtime/debug"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/ironvip/ironvip/proxy/balance"
	"github.com/ironvip/ironvip/proxy/passive"
	"github.com/ironvip/ironvip/test/expect"
	"github.com/ironvip/ironvip/test/must"
	"github.com/ironvip/ironvip/test/wait"
	"github.com/ironvip/ironvip/vip"
)

// faults counts down the next calls of Options.Own that panic. Clients are admitted by such a call if their frontend has
// source ranges.
type faults struct{ atomic.Int32 }

func (f *faults) own(netip.Addr) bool {
	if f.Add(-1) >= 0 {
		panic("a fault")
	}
	return true
}

func newFaulty(t *testing.T) (*bench, *faults) {
	var f faults
	return newTarget(t, Options{Own: f.own}), &f
}

func TestPanicEndsOneClient(t *testing.T) {
	for name, c := range map[string]struct {
		family, vip string
	}{"ipv4": {"127.0.0.1", "127.96.0.1"}, "ipv6": {"::1", "::1"}} {
		t.Run(name, func(t *testing.T) {
			p, faults := newFaulty(t)
			key, other := freeKey(t, c.vip, vip.TCP), freeKey(t, c.vip, vip.TCP)
			web := tcpBackend(t, c.family, named("web"))
			p.must(only(onVIP(key, vip.RoundRobin, web), "192.0.2.0/24"))
			p.must(onVIP(other, vip.RoundRobin, web))
			held := dial(t, other)
			held.line(t)
			faults.Store(3)
			for range 3 {
				wantRefused(t, key)
			}
			if n, now := p.Panicked(); n != 3 || !now {
				t.Errorf("%d panics, now: %v", n, now)
			}
			held.echo(t, "x")
			expect.Equal(t, who(t, key), "web")
		})
	}
}

func TestPanicOverUDP(t *testing.T) {
	p, faults := newFaulty(t)
	key := freeKey(t, "127.96.0.1", vip.UDP)
	p.must(only(onVIP(key, vip.RoundRobin, udpBackend(t, "127.0.0.1", "a")), "192.0.2.0/24"))
	faults.Store(1)
	c := udpClient(t, key)
	must.Get(c.Write([]byte("lost")))(t)
	for n, _ := p.Panicked(); n == 0; n, _ = p.Panicked() {
		time.Sleep(time.Millisecond)
	}
	expect.Equal(t, mustAsk(t, c, "x"), "a")
}

// A panic in one direction of a connection ends the other one, too.
func TestPanicWhileRelaying(t *testing.T) {
	p, key := serve(t, tcpBackend(t, "127.0.0.1", named("web")))
	f := p.frontend(key)
	client, far := tcpPair(t)
	server, backend := tcpPair(t)
	defer far.Close()
	s := f.Admit(netip.MustParseAddr("127.0.0.1"), false, balance.ConnectionFiles)
	p.balance.Capacity.Connections.Add(1)
	f.Tasks.Add(1)
	by := p.loops.Least()
	c := &connection{f: f, owner: s, loop: by, attempt: f.Attempt(netip.AddrPort{}, s, false), client: bare(t, client), server: bare(t, server)}
	c.endpoint = must.Get(c.attempt.Start(false))(t)
	client.Close()
	server.Close()
	c.relay()
	c.io.Lock()
	err := by.Add(c.server, c) // no tallies: the first byte panics
	c.io.Unlock()
	must.Succeed(t, err)
	must.Get(backend.Write([]byte("x")))(t)
	wait.Until(t, "a panic, and nothing open", func() bool {
		n, _ := p.Panicked()
		return n > 0 && p.Stats().Connections == 0
	})
	if _, err := io.Copy(io.Discard, far); !errors.Is(err, syscall.ECONNRESET) {
		t.Errorf("the client gets %v, want a reset", err)
	}
	backend.Close()
}

// A panic after the backend has answered leaves nothing of the connect: no socket, link or place.
func TestPanicAfterAConnect(t *testing.T) {
	var faults atomic.Bool
	ended := make(chan error, 1)
	addr := tcpBackend(t, "127.0.0.1", func(c *net.TCPConn) {
		_, err := io.Copy(io.Discard, c)
		ended <- err
	})
	p := newTarget(t, Options{Own: func(netip.Addr) bool {
		if faults.Load() {
			panic("a fault")
		}
		return true
	}})
	key := freeKey(t, "127.96.0.1", vip.TCP)
	p.must(onVIP(key, vip.RoundRobin, addr))
	faults.Store(true)
	wantRefused(t, key)
	select {
	case <-ended:
	case <-time.After(10 * time.Second):
		t.Error("the backend's socket is open")
	}
	faults.Store(false)
	p.wantNothing(t, key, addr)
}

// So does a panic while the connect begins.
func TestPanicBeforeAConnect(t *testing.T) {
	p := newTarget(t, Options{})
	key, addr := freeKey(t, "127.96.0.1", vip.TCP), tcpBackend(t, "127.0.0.1", named("a"))
	p.must(onVIP(key, vip.RoundRobin, addr))
	f := p.frontend(key)
	s := f.Admit(netip.MustParseAddr("127.0.0.1"), false, balance.ConnectionFiles)
	p.balance.Capacity.Connections.Add(1)
	f.Tasks.Add(1)
	client, _ := tcpPair(t)
	c := &connection{f: f, owner: s, client: bare(t, client), attempt: f.Attempt(netip.AddrPort{}, s, false)} // no loop
	c.task(c.connectNow)
	p.wantNothing(t, key, addr)
}

func (b *bench) wantNothing(t *testing.T, key vip.FrontendKey, addr netip.AddrPort) {
	t.Helper()
	wait.Until(t, "a panic, and nothing open", func() bool {
		n, _ := b.Panicked()
		return n > 0 && b.Usage().Used == 0
	})
	e := b.endpoint(key, addr)
	if n, links := e.State.Open.Load(), e.Links(); n != 0 || len(links) != 0 {
		t.Errorf("%d places and %d links are left", n, len(links))
	}
}

// A panic while a connection ends, or while its end is handled, ends nothing else.
func TestPanicAtTheEnd(t *testing.T) {
	p := newTarget(t, Options{})
	key, addr := freeKey(t, "127.96.0.1", vip.TCP), tcpBackend(t, "127.0.0.1", named("a"))
	p.must(onVIP(key, vip.RoundRobin, addr))
	c := dial(t, key)
	c.line(t)
	one := p.only()
	one.io.Lock()
	endpoint := one.endpoint
	one.endpoint = nil // finish panics
	one.io.Unlock()
	one.Abort()
	n, _ := p.Panicked()
	expect.Equal(t, n, 1, "panics")
	expect.Equal(t, p.Stats().Connections, 0, "connections are left")
	endpoint.Remove(one)
	endpoint.Leave()
	c.wantReset(t)

	f := p.frontend(key)
	func() {
		defer f.Contain(one.owner, func() { panic("another fault") })
		panic("a fault")
	}()
	expect.Equal(t, who(t, key), "a")
}

// A panic while a connect is late ends that connect alone. Its client goes to another backend.
func TestPanicAfterTheDelay(t *testing.T) {
	p := newTarget(t, Options{})
	var faults atomic.Int32
	faults.Store(1)
	p.balance.Passive = passive.New(func() int64 {
		if strings.Contains(string(debug.Stack()), ".Doubt(") && faults.Add(-1) == 0 {
			panic("a fault")
		}
		return p.balance.Now()
	})
	key := freeKey(t, "127.96.0.1", vip.TCP)
	late := newSilent(t, "127.0.0.1")
	p.must(patient(onVIP(key, vip.RoundRobin, late.addr, tcpBackend(t, "127.0.0.1", named("a")))))
	for n, _ := p.Panicked(); n == 0; n, _ = p.Panicked() {
		must.Equal(t, who(t, key), "a")
	}
}
