package proxy

import (
	"fmt"
	"io"
	"net"
	"net/netip"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/ironvip/ironvip/proxy/pick"
	"github.com/ironvip/ironvip/test/expect"
	"github.com/ironvip/ironvip/test/must"
	"github.com/ironvip/ironvip/test/wait"
	"github.com/ironvip/ironvip/vip"
)

// limited returns a copy of f with limits: of the service, of its queue, and of each backend.
func limited(f *vip.Frontend, most, queue, each uint32) *vip.Frontend {
	g := *f
	relay := f.Relay.Get()
	relay.MaxConnections, relay.MaxQueue, relay.QueueTimeout = most, queue, time.Minute
	g.Relay = &relay
	g.Backends = nil
	for _, e := range f.Backends {
		e.MaxConnections = each
		g.Backends = append(g.Backends, e)
	}
	return &g
}

// served opens a connection and returns it with the backend's name.
func served(t *testing.T, f *vip.Frontend) (*client, string) {
	t.Helper()
	c := dial(t, f.Key)
	return c, c.line(t)
}

// waits opens a connection that is then the last in the queue.
func (b *bench) waits(t *testing.T, f *vip.Frontend) *client {
	t.Helper()
	before, _ := b.Queue(f.Service)
	c := dial(t, f.Key)
	wait.Until(t, "the client waits", func() bool { n, _ := b.Queue(f.Service); return n == before+1 })
	return c
}

// The frontends of a service share its limit, and UDP sessions count.
func TestServiceLimit(t *testing.T) {
	p := newTarget(t, Options{})
	a := tcpBackend(t, "127.0.0.1", named("a"))
	v4 := limited(onVIP(freeKey(t, "127.96.0.1", vip.TCP), vip.RoundRobin, a), 4, 0, 0)
	v6 := limited(onVIP(freeKey(t, "::1", vip.TCP), vip.RoundRobin, a), 4, 0, 0)
	udp := limited(onVIP(freeKey(t, "127.96.0.1", vip.UDP), vip.RoundRobin, udpBackend(t, "127.0.0.1", "u")), 4, 0, 0)
	for _, f := range []*vip.Frontend{v4, v6, udp} {
		p.must(f)
	}
	first, _ := served(t, v4)
	served(t, v4)
	served(t, v6)
	ask := func() net.Conn {
		c := must.Get(net.Dial("udp", udp.Key.AddrPort().String()))(t)
		t.Cleanup(func() { c.Close() })
		fmt.Fprint(c, "x")
		return c
	}
	ask()
	wait.Until(t, "a session", func() bool { return p.Stats().Sessions == 1 })
	wantRefused(t, v4.Key)
	wantRefused(t, v6.Key)
	ask()
	wait.Until(t, "three are refused", func() bool { return p.refusedFor("max_connections") == 3 })
	if got := p.ServiceRefusals(v4.Service); len(got) != 1 || got[0].Reason != "max_connections" || got[0].Count != 3 {
		t.Errorf("refusals of the service: %+v", got)
	}
	if got := p.Limited(); len(got) != 1 || got[0].Service != v4.Service || got[0].Refused != 3 || len(got[0].Reasons) != 1 || !got[0].Full {
		t.Errorf("limited: %+v", got)
	}
	expect.True(t, p.Full(v4.Service), "not full")
	first.Close()
	wait.Until(t, "a place", func() bool { return p.Stats().Connections == 2 })
	wait.Until(t, "the service is not full", func() bool { return !p.Full(v4.Service) })
	served(t, v6)
	expect.False(t, p.Usage().Short(), "counted as a lack of capacity")
}

// The frontends of a service share the limit of a backend. Each scheduler skips a full one.
func TestBackendLimit(t *testing.T) {
	for _, scheduler := range pick.Supported() {
		for _, affinity := range []time.Duration{0, time.Hour} {
			p := newTarget(t, Options{})
			a, b := tcpBackend(t, "127.0.0.1", named("a")), tcpBackend(t, "127.0.0.1", named("b"))
			v4 := limited(onVIP(freeKey(t, "127.96.0.1", vip.TCP), scheduler, a, b), 0, 0, 3)
			v6 := limited(onVIP(freeKey(t, "::1", vip.TCP), scheduler, a, b), 0, 0, 3)
			v4.Affinity, v6.Affinity = affinity, affinity
			p.must(v4)
			p.must(v6)
			names := map[string]int{}
			var last *client
			for _, f := range []*vip.Frontend{v4, v6, v4, v6, v4, v6} {
				c, name := served(t, f)
				names[name]++
				last = c
			}
			if names["a"] != 3 || names["b"] != 3 {
				t.Errorf("%s, affinity %s: connections go to %v", scheduler, affinity, names)
			}
			wantRefused(t, v4.Key)
			wantRefused(t, v6.Key)
			expect.Equal(t, p.refusedFor("backend_max_connections"), 2, "%s: refused for full backends", scheduler)
			last.Close()
			wait.Until(t, "a place", func() bool { return p.Stats().Connections == 5 })
			served(t, v4)
		}
	}
}

// Clients get places in the order of their arrival, and one too many is refused.
func TestQueueIsFirstInFirstOut(t *testing.T) {
	for name, limits := range map[string][2]uint32{"of the service": {1, 0}, "of the backend": {0, 1}} {
		t.Run(name, func(t *testing.T) {
			p := newTarget(t, Options{})
			a := tcpBackend(t, "127.0.0.1", named("a"))
			v4 := limited(onVIP(freeKey(t, "127.96.0.1", vip.TCP), vip.RoundRobin, a), limits[0], 6, limits[1])
			v6 := limited(onVIP(freeKey(t, "::1", vip.TCP), vip.RoundRobin, a), limits[0], 6, limits[1])
			p.must(v4)
			p.must(v6)
			inside, _ := served(t, v4)
			var waiting []*client
			for range 3 {
				waiting = append(waiting, p.waits(t, v4), p.waits(t, v6))
			}
			wantRefused(t, v4.Key)
			expect.Equal(t, p.refusedFor("max_queue"), 1, "refused for the full queue")
			if got := p.Limited(); !p.Full(v4.Service) || len(got) != 1 || !got[0].Full {
				t.Errorf("with clients in the queue: full %v, %+v", p.Full(v4.Service), got)
			}
			for i, next := range waiting {
				inside.Close()
				must.Equal(t, next.line(t), "a")
				if n, most := p.Queue(v4.Service); n != len(waiting)-i-1 || most != 6 {
					t.Errorf("%d of %d wait after client %d", n, most, i)
				}
				inside = next
			}
		})
	}
}

func TestQueueTimeout(t *testing.T) {
	p := newTarget(t, Options{})
	f := limited(onVIP(freeKey(t, "127.96.0.1", vip.TCP), vip.RoundRobin, tcpBackend(t, "127.0.0.1", named("a"))), 1, 10, 0)
	f.Relay.QueueTimeout = 50 * time.Millisecond
	p.must(f)
	inside, _ := served(t, f)
	for range 3 {
		c := dial(t, f.Key)
		c.wantReset(t)
	}
	if n, r := p.refusedFor("queue_timeout"), p.Report().Services[f.Service]; n != 3 || r.Waiting != 0 {
		t.Errorf("%d refused for the time in the queue, %d still wait", n, r.Waiting)
	}
	inside.Close()
	wait.Until(t, "a place", func() bool { return p.Stats().Connections == 0 })
	served(t, f)
}

// A client that waits gets a backend that was added meanwhile, and is refused if none is left.
func TestDrainedWhileWaiting(t *testing.T) {
	p := newTarget(t, Options{})
	a, b := tcpBackend(t, "127.0.0.1", named("a")), tcpBackend(t, "127.0.0.1", named("b"))
	f := onVIP(freeKey(t, "127.96.0.1", vip.TCP), vip.RoundRobin, a, b)
	p.must(limited(weigh(f, b, 0), 0, 10, 1))
	inside, _ := served(t, f)
	waiting := p.waits(t, f)
	p.must(limited(weigh(f, a, 0), 0, 10, 1))
	expect.Equal(t, waiting.line(t), "b", "the client that waited gets")
	inside.echo(t, "an open connection goes on")

	waiting = p.waits(t, f)
	p.must(limited(weigh(weigh(f, a, 0), b, 0), 0, 10, 1))
	waiting.wantReset(t)
	expect.Equal(t, p.refusedFor("no_backend"), 1, "refused without a backend")
	wantRefused(t, f.Key)

	// The end of a frontend ends the wait, and counts no refusal.
	p.must(limited(f, 2, 10, 0))
	waiting = p.waits(t, f)
	before := p.Stats().Unserved + p.Stats().OverLimit
	p.remove(f.Key)
	waiting.wantReset(t)
	if after := p.Stats().Unserved + p.Stats().OverLimit; after != before {
		t.Errorf("%d refusals counted", after-before)
	}
}

// Limits that change apply at once: a lower one ends no connection, a higher one lets clients in.
func TestLimitsChange(t *testing.T) {
	for name, limits := range map[string]func(f *vip.Frontend, n uint32) *vip.Frontend{
		"of the service": func(f *vip.Frontend, n uint32) *vip.Frontend { return limited(f, n, 10, 0) },
		"of the backend": func(f *vip.Frontend, n uint32) *vip.Frontend { return limited(f, 0, 10, n) },
	} {
		t.Run(name, func(t *testing.T) {
			p := newTarget(t, Options{})
			f := onVIP(freeKey(t, "127.96.0.1", vip.TCP), vip.RoundRobin, tcpBackend(t, "127.0.0.1", named("a")))
			p.must(limits(f, 0))
			var open []*client
			for range 3 {
				c, _ := served(t, f)
				open = append(open, c)
			}
			expect.False(t, p.Same(limits(f, 0), limits(f, 1)), "counts as the same, so nothing would change")
			p.must(limits(f, 1))
			first, second := p.waits(t, f), p.waits(t, f)
			for _, c := range open {
				c.echo(t, "an open connection goes on")
			}
			for left := len(open); left > 1; left-- {
				open[left-1].Close()
				wait.Until(t, "one has ended", func() bool { return p.Stats().Connections == int64(left-1+2) })
				if n, _ := p.Queue(f.Service); n != 2 {
					t.Fatalf("%d wait beside %d connections", n, left-1)
				}
			}
			p.must(limits(f, 2))
			expect.Equal(t, first.line(t), "a")
			p.must(limits(f, 0))
			expect.Equal(t, second.line(t), "a")
		})
	}
}

// Clients whose backends are full don't hold up those of another port.
func TestQueueOfTwoPorts(t *testing.T) {
	p := newTarget(t, Options{})
	slow := limited(onVIP(freeKey(t, "127.96.0.1", vip.TCP), vip.RoundRobin, tcpBackend(t, "127.0.0.1", named("slow"))), 0, 10, 1)
	quick := limited(onVIP(freeKey(t, "127.96.0.1", vip.TCP), vip.RoundRobin, tcpBackend(t, "127.0.0.1", named("quick"))), 0, 10, 1)
	p.must(slow)
	p.must(quick)
	served(t, slow)
	inside, _ := served(t, quick)
	p.waits(t, slow)
	next := p.waits(t, quick)
	inside.Close()
	expect.Equal(t, next.line(t), "quick")
}

// Clients wait for a backend that is only full, and not at one that refuses them. They try that one
// when its backoff ends, one client at a time.
func TestQueueBesideRefusingBackends(t *testing.T) {
	p := newTarget(t, Options{})
	full, dead, dying := tcpBackend(t, "127.0.0.1", named("full")), closedPort(t, "127.0.0.2"), closedPort(t, "127.0.0.3")
	f := limited(onVIP(freeKey(t, "127.96.0.1", vip.TCP), vip.RoundRobin, full, dead, dying), 0, 10, 1)
	p.must(f)
	failures := func() (sum uint64) {
		for _, at := range []netip.AddrPort{dead, dying} {
			sum += p.Failures(passiveKey(f.Key, at)).Connects
		}
		return sum
	}
	inside, name := served(t, f)
	must.Equal(t, name, "full")
	type answer struct {
		from *client
		name string
	}
	answers := make(chan answer, 5) // in any order: a client that tries a backend just then misses its turn
	for range 5 {
		c := p.waits(t, f)
		go func() {
			name, _ := c.r.ReadString('\n')
			answers <- answer{c, strings.TrimSpace(name)}
		}()
	}
	before := failures()
	wait.Until(t, "the ejected one is tried again", func() bool { return failures() > before })
	expect.AtMost(t, failures(), 10, "how often the clients tried")
	for range 3 {
		inside.Close()
		next := <-answers
		must.Equal(t, next.name, "full")
		inside = next.from
	}

	// A backend that works again is found without a free place elsewhere.
	tcpBackendAt(t, dead, named("back"))
	expect.Equal(t, (<-answers).name, "back", "name")
}

// The time in the queue is not part of the time in which a client must be connected.
func TestQueueCostsNoConnectTime(t *testing.T) {
	const budget = 50 * time.Millisecond
	p := newTarget(t, Options{ConnectBudget: budget})
	f := limited(onVIP(freeKey(t, "127.96.0.1", vip.TCP), vip.RoundRobin, tcpBackend(t, "127.0.0.1", named("a")), closedPort(t, "127.0.0.2")), 0, 10, 1)
	f.Relay.ConnectTimeout = budget
	p.must(f)
	inside, _ := served(t, f)
	waiting := p.waits(t, f)
	time.Sleep(2 * budget)
	inside.Close()
	expect.Equal(t, waiting.line(t), "a")
}

// counted is a backend that records how many connections it has at most.
func counted(now, most *atomic.Int64) func(*net.TCPConn) {
	return func(c *net.TCPConn) {
		n := now.Add(1)
		for m := most.Load(); n > m && !most.CompareAndSwap(m, n); m = most.Load() {
		}
		fmt.Fprintln(c, "hello")
		_, _ = io.Copy(io.Discard, c)
		now.Add(-1)
	}
}

// Limits hold under load, with a backend that refuses among the others, and all clients are served.
func TestLimitsUnderLoad(t *testing.T) {
	const each, most, clients, rounds = 3, 5, 40, 10
	p := newTarget(t, Options{})
	var now, peak [3]atomic.Int64
	backends := []netip.AddrPort{closedPort(t, "127.0.0.2")}
	for i := range 2 {
		backends = append(backends, tcpBackend(t, "127.0.0.1", counted(&now[i], &peak[i])))
	}
	key := freeKey(t, "127.96.0.1", vip.TCP)
	f := limited(onVIP(key, vip.LeastConnection, backends...), most, clients, each)
	p.must(f)
	var all sync.WaitGroup
	for range clients {
		all.Go(func() {
			for range rounds {
				c, err := net.Dial("tcp", key.AddrPort().String())
				if err != nil {
					t.Error(err)
					return
				}
				_ = c.SetDeadline(time.Now().Add(testTimeout))
				if _, err := io.ReadFull(c, make([]byte, 6)); err != nil {
					t.Errorf("a client isn't served: %v", err)
				}
				c.Close()
			}
		})
	}
	all.Wait()
	for i := range 2 {
		if n := peak[i].Load(); n > each || n == 0 {
			t.Errorf("backend %d had %d connections at once", i, n)
		}
	}
	wait.Until(t, "all have ended", func() bool { return p.Stats().Connections == 0 })
	p.must(limited(f, 1, 0, 0))
	expect.False(t, p.Full(f.Service), "a client counts in its service")
}
