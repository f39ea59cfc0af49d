package proxy

import (
	"sync/atomic"
	"testing"
	"time"

	"github.com/ironvip/ironvip/proxy/pick"
	"github.com/ironvip/ironvip/vip"
)

// faulty is a picker that panics a number of times.
type faulty struct {
	pick.Picker
	left atomic.Int32
}

func (f *faulty) Pick(hash uint64, now int64, tried []int) int {
	if f.left.Add(-1) >= 0 {
		panic("a fault")
	}
	return f.Picker.Pick(hash, now, tried)
}

// breakPicks has the next n picks of a frontend panic.
func (b *bench) breakPicks(key vip.FrontendKey, n int32) {
	b.Helper()
	b.mu.RLock()
	defer b.mu.RUnlock()
	f := b.frontends[key]
	set := *f.backends.Load()
	broken := &faulty{Picker: set.picker}
	broken.left.Store(n)
	set.picker = broken
	f.backends.Store(&set)
}

func TestPanicEndsOneClient(t *testing.T) {
	for name, c := range map[string]struct {
		family, vip string
	}{"ipv4": {"127.0.0.1", "127.96.0.1"}, "ipv6": {"::1", "::1"}} {
		t.Run(name, func(t *testing.T) {
			p := newTarget(t, Options{})
			key, other := freeKey(t, c.vip, vip.TCP), freeKey(t, c.vip, vip.TCP)
			web := tcpBackend(t, c.family, named("web"))
			p.must(onVIP(key, vip.RoundRobin, web))
			p.must(onVIP(other, vip.RoundRobin, web))
			held := dial(t, other)
			held.line(t)
			p.breakPicks(key, 3)
			for range 3 {
				wantRefused(t, key)
			}
			if n, now := p.Panicked(); n != 3 || !now {
				t.Errorf("%d panics, now: %v", n, now)
			}
			held.echo(t, "x")
			if got := who(t, key); got != "web" {
				t.Error(got)
			}
		})
	}
}

// A client that waits in a queue has its turn, and a panic then. The others go on.
func TestPanicInAQueue(t *testing.T) {
	p := newTarget(t, Options{})
	f := limited(onVIP(freeKey(t, "127.96.0.1", vip.TCP), vip.RoundRobin, tcpBackend(t, "127.0.0.1", named("a"))), 1, 10, 1)
	p.must(f)
	first, _ := served(t, f)
	second := p.waits(t, f)
	third := p.waits(t, f)
	p.breakPicks(f.Key, 1)
	first.Close()
	second.wantReset(t)
	if got := third.line(t); got != "a" {
		t.Error(got)
	}
}

func TestPanicOverUDP(t *testing.T) {
	p := newTarget(t, Options{})
	key := freeKey(t, "127.96.0.1", vip.UDP)
	p.must(onVIP(key, vip.RoundRobin, udpBackend(t, "127.0.0.1", "a")))
	p.breakPicks(key, 1)
	c := udpClient(t, key)
	if _, err := c.Write([]byte("lost")); err != nil {
		t.Fatal(err)
	}
	for n, _ := p.Panicked(); n == 0; n, _ = p.Panicked() {
		time.Sleep(time.Millisecond)
	}
	if got := mustAsk(t, c, "x"); got != "a" {
		t.Error(got)
	}
}

// A panic in one direction of a connection ends the other one, too.
func TestPanicWhileRelaying(t *testing.T) {
	p := newTarget(t, Options{})
	key := freeKey(t, "127.96.0.1", vip.TCP)
	p.must(onVIP(key, vip.RoundRobin, tcpBackend(t, "127.0.0.1", named("web"))))
	p.mu.RLock()
	f := p.frontends[key]
	p.mu.RUnlock()
	client, far := tcpPair(t)
	server, backend := tcpPair(t)
	defer far.Close()
	c := &connection{f: f, owner: f.backends.Load().service, client: client, server: server}
	ended := make(chan struct{})
	f.tasks.Go(func() {
		defer close(ended)
		defer f.contain(c.owner, c.abort)
		c.relay() // no tallies: the first byte panics
	})
	if _, err := backend.Write([]byte("x")); err != nil {
		t.Fatal(err)
	}
	<-ended
	if n, _ := p.Panicked(); n == 0 {
		t.Error("no panic")
	}
	backend.Close()
}
