package proxy

import (
	"io"
	"net"
	"testing"
	"time"

	"github.com/ironvip/ironvip/test/wait"
	"github.com/ironvip/ironvip/vip"
)

type family struct{ name, vip, backend string }

var families = []family{{"ipv4", "127.96.0.1", "127.0.0.1"}, {"ipv6", "::1", "::1"}}

// inFamilies runs a subtest for each family.
func inFamilies(t *testing.T, f func(*testing.T, family)) {
	t.Helper()
	for _, one := range families {
		t.Run(one.name, func(t *testing.T) { f(t, one) })
	}
}

// hung neither reads nor writes until the test closes the connection.
func hung(c *net.TCPConn) {
	for control(c, func(int) {}) {
		time.Sleep(10 * time.Millisecond)
	}
}

func TestIdleConnectionIsReset(t *testing.T) {
	inFamilies(t, func(t *testing.T, family family) {
		p := newTarget(t, Options{})
		f := onVIP(freeKey(t, family.vip, vip.TCP), vip.RoundRobin, tcpBackend(t, family.backend, named("a")))
		f.Relay = &vip.ProxySettings{IdleTimeout: 300 * time.Millisecond}
		p.must(f)
		c := dial(t, f.Key)
		c.line(t)
		c.wantReset(t)
		wait.Until(t, "nothing open", func() bool { return p.Stats().Connections == 0 })
	})
}

// The backend never answers. However its client gives up, the connection ends soon.
// Slow: each of eight connections waits for its timeout of 0.3 s.
func TestHalfClosedConnectionIsReset(t *testing.T) {
	for _, family := range families {
		for name, giveUp := range map[string]func(*bench, *client){
			"ends its direction": func(p *bench, c *client) {
				c.Write([]byte("request"))
				c.CloseWrite()
				c.wantReset(p)
			},
			"closes": func(_ *bench, c *client) { c.Write([]byte("request")); c.Close() },
			// The proxy can't pass on the whole request, so it doesn't read the end.
			"closes after a long request": func(p *bench, c *client) {
				p.clog(c.TCPConn, func(c *connection) *direction { return &c.up })
				c.Close()
			},
			"resets after a long request": func(p *bench, c *client) {
				p.clog(c.TCPConn, func(c *connection) *direction { return &c.up })
				reset(c.TCPConn)
			},
		} {
			t.Run(family.name+" "+name, func(t *testing.T) {
				p := newTarget(t, Options{})
				f := onVIP(freeKey(t, family.vip, vip.TCP), vip.RoundRobin, tcpBackend(t, family.backend, hung))
				f.Relay = &vip.ProxySettings{HalfCloseTimeout: 300 * time.Millisecond}
				p.must(f)
				giveUp(p, dial(t, f.Key))
				wait.Until(t, "nothing open", func() bool { return p.Stats().Connections == 0 })
			})
		}
	}
}

// The client never reads, and the backend ends.
func TestUnreadResponseIsReset(t *testing.T) {
	p := newTarget(t, Options{})
	end := make(chan struct{})
	f := onVIP(freeKey(t, "127.96.0.1", vip.TCP), vip.RoundRobin, tcpBackend(t, "127.0.0.1", func(c *net.TCPConn) {
		p.clog(c, func(c *connection) *direction { return &c.down })
		c.CloseWrite()
		<-end
	}))
	t.Cleanup(func() { close(end) })
	f.Relay = &vip.ProxySettings{HalfCloseTimeout: 300 * time.Millisecond}
	p.must(f)
	dial(t, f.Key)
	wait.Until(t, "nothing open", func() bool { return p.Stats().Connections == 0 })
}

// clog sends from one side until the only connection waits for the other side in a direction. The
// peer has received everything then, so that an end or a reset reaches it.
func (b *bench) clog(from *net.TCPConn, way func(*connection) *direction) {
	chunk := make([]byte, 64<<10)
	for wait := 100 * time.Microsecond; ; time.Sleep(wait) {
		if unsent(from) > 0 {
			continue
		}
		if c := b.only(); c != nil && way(c).stuck.Load() {
			return
		}
		_, _ = from.Write(chunk)
	}
}

// only returns the connection if there is exactly one.
func (b *bench) only() (c *connection) {
	b.mu.RLock()
	defer b.mu.RUnlock()
	for _, f := range b.frontends {
		for _, e := range f.Endpoints() {
			for _, l := range e.Links() {
				c, _ = l.(*connection)
			}
		}
	}
	return c
}

// A changed timeout applies to open connections.
func TestTimeoutsOfOpenConnectionsChange(t *testing.T) {
	p := newTarget(t, Options{})
	f := onVIP(freeKey(t, "127.96.0.1", vip.TCP), vip.RoundRobin, tcpBackend(t, "127.0.0.1", named("a")))
	f.Relay = &vip.ProxySettings{HalfCloseTimeout: 300 * time.Millisecond} // the time between visits
	p.must(f)
	c := dial(t, f.Key)
	c.line(t)
	g := weigh(f, f.Backends[0].Addr, 1) // a copy
	g.Relay = &vip.ProxySettings{IdleTimeout: time.Nanosecond, HalfCloseTimeout: 300 * time.Millisecond}
	p.must(g)
	c.wantReset(t)
}

// The decisions at a visit, without waiting for the time.
func TestVisit(t *testing.T) {
	p := newTarget(t, Options{})
	spec := onVIP(freeKey(t, "127.96.0.1", vip.TCP), vip.RoundRobin)
	p.must(spec)
	f := p.frontend(spec.Key)
	open, peer := tcpPair(t)
	ended, other := tcpPair(t)
	other.CloseWrite()
	io.Copy(io.Discard, ended)
	_ = peer
	const second = int64(time.Second)
	for _, x := range []struct {
		name        string
		half        bool
		stuck       bool // the backend accepts no more
		client      *net.TCPConn
		silent      int64 // seconds
		wantExpired bool
		wantNext    int64 // seconds after the last byte
	}{
		{"new", false, false, open, 0, false, 30},
		{"silent", false, false, open, 30, false, 60},
		{"silent for longer", false, false, open, 100, false, 130},
		{"nearly idle for too long", false, false, open, 3590, false, 3600},
		{"idle for too long", false, false, open, 3600, true, 0},
		{"half-closed", true, false, ended, 29, false, 30},
		{"half-closed for too long", true, false, ended, 30, true, 0},
		{"slow backend", false, true, open, 31, false, 61},
		{"hung backend, client still sends", false, true, ended, 29, false, 30},
		{"hung backend, client has ended", false, true, ended, 30, true, 0},
	} {
		c := &connection{f: f, client: bare(t, x.client), server: bare(t, open)}
		c.kept = true // its goroutine would outlive the test
		c.last.Store(1000 * second)
		c.half.Store(x.half)
		c.up.stuck.Store(x.stuck)
		next, expired := c.Visit((1000 + x.silent) * second)
		if expired != x.wantExpired || !expired && next != (1000+x.wantNext)*second {
			t.Errorf("%s: expired %v, next visit after %ds", x.name, expired, next/second-1000)
		}
	}
}
