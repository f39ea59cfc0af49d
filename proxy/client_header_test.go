package proxy

import (
	"fmt"
	"io"
	"log/slog"
	"maps"
	"net"
	"net/netip"
	"runtime"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/ironvip/ironvip/proxy/proxyproto"
	"github.com/ironvip/ironvip/test/expect"
	"github.com/ironvip/ironvip/test/logbuffer"
	"github.com/ironvip/ironvip/test/must"
	"github.com/ironvip/ironvip/test/wait"
	"github.com/ironvip/ironvip/vip"
)

// headed is a backend that requires a PROXY header. It answers with its name and the header's two
// addresses, then echoes.
func headed(name string) func(*net.TCPConn) {
	return func(c *net.TCPConn) {
		h, err := proxyproto.Read(c)
		if err != nil {
			fmt.Fprintln(c, err)
			return
		}
		named(fmt.Sprintf("%s %s %s", name, h.Source, h.Destination))(c)
	}
}

// sends returns a copy of f with a PROXY header for the backends.
func sends(f *vip.Frontend, v vip.ProxyVersion) *vip.Frontend {
	g := *f
	relay := f.Relay.Get()
	relay.ProxyProtocol = v
	g.Relay = &relay
	return &g
}

// accepts returns a copy of f with balancers in front of it.
func accepts(f *vip.Frontend, balancers ...string) *vip.Frontend {
	g := *f
	relay := f.Relay.Get()
	relay.AcceptProxyFrom = only(f, balancers...).SourceRanges
	g.Relay = &relay
	return &g
}

// header returns a header of version 1.
func header(source, destination string) string {
	h := proxyproto.Header{Source: netip.MustParseAddrPort(source), Destination: netip.MustParseAddrPort(destination)}
	return string(h.Append(nil, proxyproto.V1))
}

// fromBalancer connects from 127.0.0.9, a balancer in these tests, and sends text.
func fromBalancer(t testing.TB, key vip.FrontendKey, text string) *client {
	t.Helper()
	c := dialFrom(t, "127.0.0.9", key)
	must.Get(io.WriteString(c, text))(t)
	return c
}

// The header is sent once, to the backend that answers.
func TestHeaderAfterARetry(t *testing.T) {
	p, key := target(t)
	f := onVIP(key, vip.RoundRobin, closedPort(t, "127.0.0.2"), fullBacklog(t), tcpBackend(t, "127.0.0.3", headed("a")))
	f.Relay = &vip.ProxySettings{ConnectTimeout: 100 * time.Millisecond}
	p.must(sends(f, vip.ProxyV2))
	for range 3 {
		c := dial(t, key)
		expect.Equal(t, c.line(t), fmt.Sprintf("a %s %s", c.LocalAddr(), key.AddrPort()))
		c.echo(t, "nothing before this")
	}
	expect.True(t, p.Stats().Failures != 0, "no backend failed, so nothing was retried")
}

// The header's addresses are those of the client, for the schedulers and the backends. The bytes
// after the header are the client's, whether they arrive together with it or later.
func TestHeaderOfABalancer(t *testing.T) {
	p := newTarget(t, Options{Own: nobody})
	key := freeKey(t, "127.96.0.1", vip.TCP)
	f := accepts(sends(onVIP(key, vip.RoundRobin, tcpBackend(t, "127.0.0.1", headed("a"))), vip.ProxyV2), "127.0.0.8/29")
	p.must(f)
	const want = "a 192.0.2.1:1234 198.51.100.7:443"
	text := header("192.0.2.1:1234", "198.51.100.7:443")
	for _, parts := range [][]string{{text + "hello\n"}, {text, "hello\n"}, {text[:9], text[9:] + "hello\n"}} {
		c := fromBalancer(t, key, parts[0])
		for _, part := range parts[1:] {
			fmt.Fprint(c, part)
		}
		expect.Equal(t, c.line(t), want)
		expect.Equal(t, c.line(t), "hello", "then")
		c.echo(t, "more")
	}

	// Without a client, the balancer itself is the client.
	c := fromBalancer(t, key, "PROXY UNKNOWN\r\n")
	expect.Equal(t, c.line(t), fmt.Sprintf("a %s %s", c.LocalAddr(), key.AddrPort()), "unknown")

	// From other addresses, the bytes of a header are ordinary data.
	other := dial(t, key)
	fmt.Fprint(other, text)
	expect.Equal(t, other.line(t), fmt.Sprintf("a %s %s", other.LocalAddr(), key.AddrPort()), "another client")
	expect.Equal(t, other.line(t)+"\r\n", text, "another client's bytes")

	// A change applies to new connections.
	changed := accepts(f, "127.0.0.1/32")
	expect.False(t, p.Same(f, changed), "counts as the same, so nothing would change")
	p.must(changed)
	c.echo(t, "open connections go on")
	former := dialFrom(t, "127.0.0.9", key)
	expect.Equal(t, former.line(t), fmt.Sprintf("a %s %s", former.LocalAddr(), key.AddrPort()), "a former balancer")
}

func TestSourceRangesOfABalancer(t *testing.T) {
	p := newTarget(t, Options{Own: nobody})
	key := freeKey(t, "127.96.0.1", vip.TCP)
	p.must(accepts(only(onVIP(key, vip.RoundRobin, tcpBackend(t, "127.0.0.1", named("a"))), "192.0.2.0/24"), "127.0.0.9/32"))
	expect.Equal(t, fromBalancer(t, key, header("192.0.2.1:1", "198.51.100.7:443")).line(t), "a", "a client inside the ranges")
	fromBalancer(t, key, header("203.0.113.1:1", "198.51.100.7:443")).wantReset(t)
	fromBalancer(t, key, "PROXY UNKNOWN\r\n").wantReset(t) // the balancer itself, which is outside
	wantRefused(t, key)                                    // another client outside
	expect.Equal(t, p.Stats().Strangers, 3, "strangers counted")
}

// Affinity and the hashing schedulers use the address in the header.
func TestClientsOfABalancerAreDistinct(t *testing.T) {
	for _, scheduler := range []vip.Scheduler{vip.RoundRobin, vip.SourceHash, vip.MaglevHash} {
		p, key := target(t)
		f := onVIP(key, scheduler, tcpBackend(t, "127.0.0.1", named("a")), tcpBackend(t, "127.0.0.1", named("b")))
		if scheduler == vip.RoundRobin {
			f.Affinity = time.Hour
		}
		p.must(accepts(f, "127.0.0.9/32"))
		of, names := map[int]string{}, map[string]bool{}
		for i := range 20 {
			c := fromBalancer(t, key, header(fmt.Sprintf("192.0.2.%d:1", i), "198.51.100.7:443"))
			of[i] = c.line(t)
			names[of[i]] = true
			c.Close()
		}
		if len(names) != 2 {
			t.Errorf("%s: all clients of the balancer go to %v", scheduler, slicesOf(names))
		}
		for i := range 20 {
			c := fromBalancer(t, key, header(fmt.Sprintf("192.0.2.%d:2", i), "198.51.100.7:443"))
			expect.Equal(t, c.line(t), of[i], "%s: client %d", scheduler, i)
			c.Close()
		}
	}
}

func slicesOf(m map[string]bool) (out []string) {
	for k := range m {
		out = append(out, k)
	}
	return out
}

// badHeaders returns the counts of connections reset for their headers, by reason.
func badHeaders(p *bench) map[string]uint64 {
	out := map[string]uint64{}
	for _, r := range p.Refusals() {
		if strings.HasPrefix(r.Reason, "header_") && r.Count > 0 {
			out[r.Reason] = r.Count
		}
	}
	return out
}

// A header that is absent, wrong or late ends the connection with a reset, and is counted by its
// reason. The log has at most one line a second.
func TestBadHeaders(t *testing.T) {
	var log logbuffer.Buffer
	start := time.Now()
	p := newTarget(t, Options{HeaderTimeout: 200 * time.Millisecond, Log: slog.New(slog.NewTextHandler(&log, nil))})
	key := freeKey(t, "127.96.0.1", vip.TCP)
	p.must(accepts(onVIP(key, vip.RoundRobin, tcpBackend(t, "127.0.0.1", named("a"))), "127.0.0.9/32"))
	v2 := string(proxyproto.Header{}.Append(nil, proxyproto.V2))
	for _, test := range []struct {
		reason, text string
		half         bool // the balancer ends its side
	}{
		{"header_malformed", "GET / HTTP/1.1\r\n\r\n", false},
		{"header_malformed", "PROXY TCP4 a b c d\r\n", false},
		{"header_too_long", "PROXY UNKNOWN " + strings.Repeat("x", 200), false},
		{"header_too_long", v2[:14] + "\xff\xff", false},
		{"header_truncated", "PROXY TCP4 192.0.2.1", true},
		{"header_late", "PROXY TCP4 192.0.2.1", false},
		{"header_late", "", false},
	} {
		before := badHeaders(p)[test.reason]
		c := fromBalancer(t, key, test.text)
		if test.half {
			_ = c.CloseWrite()
		}
		c.wantReset(t)
		if n := badHeaders(p)[test.reason] - before; n != 1 {
			t.Errorf("%q: %d counted as %s: %v", test.text, n, test.reason, badHeaders(p))
		}
	}
	fromBalancer(t, key, "").Close()
	wait.Until(t, "a closed connection is counted", func() bool { return badHeaders(p)["header_absent"] == 1 })
	want := map[string]uint64{"header_absent": 1, "header_malformed": 2, "header_too_long": 2, "header_truncated": 1, "header_late": 2}
	got := badHeaders(p)
	expect.True(t, maps.Equal(got, want), "counted %v, want %v", got, want)
	expect.False(t, strings.Contains(log.String(), "i/o timeout"), "the log names the read:\n%s", log.String())
	if n := strings.Count(log.String(), "msg="); n == 0 || n > 1+int(time.Since(start)/time.Second) {
		t.Errorf("%d lines in the log:\n%s", n, log.String())
	}
	expect.Equal(t, fromBalancer(t, key, header("192.0.2.1:1", "198.51.100.7:443")).line(t), "a", "then a client with a header")
}

// Connections that wait for their header count for the limit, cost one goroutine each, and end with
// their frontend.
func TestWaitingForHeaders(t *testing.T) {
	p := newTarget(t, Options{HeaderTimeout: time.Hour, Files: 1 + 2*20})
	key := freeKey(t, "127.96.0.1", vip.TCP)
	p.must(accepts(onVIP(key, vip.RoundRobin, tcpBackend(t, "127.0.0.1", named("a"))), "127.0.0.9/32"))
	first := fromBalancer(t, key, header("192.0.2.1:1", "198.51.100.7:443")) // starts the listener's goroutine
	first.line(t)
	before := runtime.NumGoroutine()
	var silent []*client
	for range 19 {
		silent = append(silent, fromBalancer(t, key, ""))
	}
	wait.Until(t, "all wait", func() bool { return p.Stats().Connections == 20 })
	expect.AtMost(t, runtime.NumGoroutine()-before, len(silent), "goroutines for connections")
	wantRefusedFrom(t, "127.0.0.9", key)
	expect.Equal(t, p.Stats().OverLimit, 1, "refused for the limit")
	p.remove(key) // waits for all goroutines
	for _, c := range silent {
		c.wantReset(t)
	}
	expect.Empty(t, badHeaders(p), "counted")
}

// After the header, bytes are spliced in both directions, and half-close works.
func TestTransferAfterHeaders(t *testing.T) {
	const size = 32 << 20
	p, key := target(t)
	var received atomic.Int64
	backend := tcpBackend(t, "127.0.0.1", func(c *net.TCPConn) {
		if h, err := proxyproto.Read(c); err != nil || h.Source.Port() != 4321 {
			return
		}
		n, _ := io.Copy(io.Discard, struct{ io.Reader }{c})
		received.Store(n)
		io.Copy(struct{ io.Writer }{c}, io.LimitReader(neverEnding{}, size)) //nolint:errcheck // the client counts
	})
	p.must(accepts(sends(onVIP(key, vip.RoundRobin, backend), vip.ProxyV1), "127.0.0.9/32"))
	c := fromBalancer(t, key, header("192.0.2.1:4321", "198.51.100.7:443"))
	must.Get(io.Copy(struct{ io.Writer }{c}, io.LimitReader(neverEnding{}, size)))(t)
	must.Succeed(t, c.CloseWrite())
	n, err := io.Copy(io.Discard, c)
	if n != size || err != nil || received.Load() != size {
		t.Errorf("%d bytes there, %d back, %v; want %d", received.Load(), n, err, size)
	}
	if p.pipes.held() > 0 || len(p.pipes.idle) == 0 {
		t.Error("no pipe was used")
	}
	// Headers are not traffic of the client.
	expect.Equal(t, p.frontend(key).Traffic().In.Bytes, size, "bytes counted")
}
