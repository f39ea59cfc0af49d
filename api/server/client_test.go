package server

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/netip"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/time/rate"

	"github.com/ironvip/ironvip/internal/connlimit"
	"github.com/ironvip/ironvip/test/bubble"
	"github.com/ironvip/ironvip/test/expect"
	"github.com/ironvip/ironvip/test/must"
	"github.com/ironvip/ironvip/test/scope"
	"github.com/ironvip/ironvip/test/wait"
)

// serveClients is serveOn at an address of this host. GET /hold answers when release is closed.
func serveClients(t *testing.T, o Options, release chan struct{}) (*Server, net.Addr) {
	t.Helper()
	return serveOn(t, "tcp", "127.0.0.1:0", o, func() { <-release })
}

// serveOn serves the answer "ok" until the end of the test. GET /hold calls hold first.
func serveOn(t *testing.T, network, address string, o Options, hold func()) (*Server, net.Addr) {
	t.Helper()
	o.Log = slog.New(slog.DiscardHandler)
	s := New(o)
	s.Handler = s.wrap(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path == "/hold" {
			keep(r.Context())
			hold()
		}
		io.WriteString(w, "ok")
	}))
	l := must.Get(net.Listen(network, address))(t)
	if network == "tcp" {
		s.clientOf = byAddress
	}
	scope.Go(t, func(ctx context.Context) error { return s.Serve(ctx, l, nil) })
	return s, l.Addr()
}

// byAddress makes each loopback address a client. Otherwise, all of a test's are one user of this host.
func byAddress(c net.Conn) connlimit.Client {
	return connlimit.OfAddress(c.RemoteAddr().(*net.TCPAddr).AddrPort().Addr())
}

// callFrom connects from an address of this host.
func callFrom(t *testing.T, from string, to net.Addr) *caller {
	t.Helper()
	c := must.Get((&net.Dialer{LocalAddr: &net.TCPAddr{IP: net.ParseIP(from)}}).Dial("tcp", to.String()))(t)
	t.Cleanup(func() { c.Close() })
	return &caller{c, bufio.NewReader(c)}
}

// A client that has all its connections in use is refused, and others are not.
func TestConnectionsOfOneClient(t *testing.T) {
	release := make(chan struct{})
	s, addr := serveClients(t, Options{Connections: 8, ClientConnections: 4}, release)
	var busy sync.WaitGroup
	for range 4 {
		c := callFrom(t, "127.0.0.1", addr)
		c.send("/hold")
		busy.Go(func() { c.answer(t) })
	}
	wait.Until(t, "four requests are held", func() bool {
		c := callFrom(t, "127.0.0.1", addr)
		c.send("/")
		r, err := http.ReadResponse(c.r, nil)
		if err != nil {
			return false
		}
		body, _ := io.ReadAll(r.Body)
		return r.StatusCode == http.StatusServiceUnavailable && strings.Contains(string(body), "of 127.0.0.1")
	})
	if s.RefusedOfClients.Count() == 0 || s.RefusedConnections.Count() != 0 {
		t.Errorf("%d and %d refused", s.RefusedOfClients.Count(), s.RefusedConnections.Count())
	}
	for range 4 {
		c := callFrom(t, "127.0.0.2", addr)
		c.send("/")
		if r := c.answer(t); r.StatusCode != http.StatusOK {
			t.Errorf("another client: %s", r.Status)
		}
	}
	close(release)
	busy.Wait()
}

// A client that sends too many requests is told to come back. Others are answered.
func TestRequestsOfOneClient(t *testing.T) {
	s, addr := serveClients(t, Options{ClientRate: func() int { return 1 }}, nil)
	ask := func(from string) *http.Response {
		c := callFrom(t, from, addr)
		c.send("/")
		return c.answer(t)
	}
	var refused *http.Response
	wait.Until(t, "a client is refused", func() bool {
		refused = ask("127.0.0.1")
		return refused.StatusCode != http.StatusOK
	})
	if refused.StatusCode != http.StatusTooManyRequests || refused.Header.Get("Retry-After") != "1" {
		t.Errorf("%s %v", refused.Status, refused.Header)
	}
	if body, err := io.ReadAll(refused.Body); err != nil || !strings.Contains(string(body), "raise api.rate_limit") {
		t.Errorf("no hint at the limit: %v %s", err, body)
	}
	r := ask("127.0.0.2")
	expect.Equal(t, r.StatusCode, http.StatusOK, "another client: %s", r.Status)
	expect.True(t, s.RefusedRequests.Count() != 0, "not counted")
}

func TestRates(t *testing.T) {
	var all rates[connlimit.Client]
	now := time.Unix(1000, 0)
	allow := func(c connlimit.Client, perSecond int) bool {
		return all.allow(c, rate.Limit(perSecond), perSecond, now)
	}
	one := connlimit.Client{Local: true, UID: 1}
	for i := range 100 {
		must.True(t, allow(one, 100), "refused after %d", i)
	}
	expect.False(t, allow(one, 100), "one too many is allowed")
	expect.True(t, allow(connlimit.Client{Local: true, UID: 2}, 100), "another client is refused")
	if now = now.Add(10 * time.Millisecond); !allow(one, 100) || allow(one, 100) {
		t.Error("not one more after a hundredth of a second")
	}
	if now = now.Add(time.Second); !allow(one, 2) {
		t.Error("refused with another limit")
	}
	allow(one, 2)
	expect.False(t, allow(one, 2), "another limit has no effect")
	// Many clients share one count, until others are silent.
	for i := range 2 * maxRates {
		allow(connlimit.OfAddress(netip.AddrFrom4([4]byte{10, 1, byte(i >> 8), byte(i)})), 100)
	}
	expect.Equal(t, len(all.of), maxRates+1, "clients")
	late := connlimit.OfAddress(netip.MustParseAddr("192.0.2.1"))
	expect.False(t, allow(late, 100), "a client beyond the limit has a count of its own")
	if now = now.Add(2 * time.Second); !allow(late, 100) || len(all.of) != 1 {
		t.Errorf("%d clients after two seconds", len(all.of))
	}
}

// Headers without an end are cut off, and other callers are answered meanwhile.
func TestHeaderFloods(t *testing.T) {
	_, addr := serveClients(t, Options{Connections: 16, ClientConnections: 8}, nil)
	for _, flood := range []string{
		"GET / HTTP/1.1\r\nHost: localhost\r\nX-Long: " + strings.Repeat("x", 2*maxHeaderBytes),
		"GET / HTTP/1.1\r\nHost: localhost\r\n" + strings.Repeat("X-Many: y\r\n", maxHeaderBytes/5),
		"GET /" + strings.Repeat("x", 2*maxHeaderBytes),
	} {
		c := callFrom(t, "127.0.0.1", addr)
		go func() { _, _ = io.WriteString(c, flood) }()
		other := callFrom(t, "127.0.0.1", addr)
		other.send("/")
		if r := other.answer(t); r.StatusCode != http.StatusOK {
			t.Errorf("another caller: %s", r.Status)
		}
		if r := c.answer(t); r.StatusCode != http.StatusRequestHeaderFieldsTooLarge || !r.Close {
			t.Errorf("%.40q: %s", flood, r.Status)
		}
	}
}

// A header that is sent byte by byte ends after the time of a header, whatever comes.
func TestSlowHeader(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		s := New(Options{Log: slog.New(slog.DiscardHandler)})
		l := make(pipes)
		end := scope.Go(t, func(ctx context.Context) error { return s.Serve(ctx, l, nil) })
		near, far := net.Pipe()
		l <- far
		start := time.Now()
		_, err := io.WriteString(near, "GET / HTTP/1.1\r\nX-Slow: ")
		for err == nil && time.Since(start) < time.Minute {
			time.Sleep(time.Second)
			_, err = io.WriteString(near, "x")
		}
		if took := time.Since(start); took < readHeaderTimeout || took > readHeaderTimeout+2*time.Second {
			t.Error(fmt.Sprint("ended after ", took))
		}
		near.Close()
		end()
	})
}

// pipes is a net.Listener without a network, so that it works with fake time.
type pipes chan net.Conn

func (p pipes) Accept() (net.Conn, error) {
	if c, open := <-p; open {
		return c, nil
	}
	return nil, net.ErrClosed
}
func (p pipes) Close() error   { close(p); return nil }
func (p pipes) Addr() net.Addr { return &net.UnixAddr{} }

// The limit of requests is read for each request, so that a reload changes it.
func TestRateChanges(t *testing.T) {
	var most atomic.Int64
	most.Store(1)
	_, addr := serveClients(t, Options{ClientRate: func() int { return int(most.Load()) }}, nil)
	status := func() int {
		c := callFrom(t, "127.0.0.1", addr)
		c.send("/")
		return c.answer(t).StatusCode
	}
	wait.Until(t, "the client is refused", func() bool { return status() == http.StatusTooManyRequests })
	most.Store(1 << 20)
	wait.Until(t, "the client is answered", func() bool { return status() == http.StatusOK })
	for i := range 20 {
		must.Equal(t, status(), http.StatusOK, "request %d", i)
	}
}

// A client that opens streams without an end leaves some to others, and is told to come back.
func TestStreamsOfOneClient(t *testing.T) {
	s := New(Options{Connections: 16, Log: slog.New(slog.DiscardHandler)}) // 8 streams, 6 of one client
	release := make(chan struct{})
	s.Handler = s.wrap(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		keep(r.Context())
		done, err := s.OpenStream(r.Context())
		if err != nil {
			w.Header().Set("Retry-After", "5")
			http.Error(w, err.Error(), http.StatusServiceUnavailable)
			return
		}
		defer done()
		w.WriteHeader(http.StatusOK)
		http.NewResponseController(w).Flush()
		select {
		case <-release:
		case <-r.Context().Done():
		}
	}))
	l := must.Get(net.Listen("tcp", "127.0.0.1:0"))(t)
	s.clientOf = byAddress
	scope.Go(t, func(ctx context.Context) error { return s.Serve(ctx, l, nil) })
	t.Cleanup(func() { close(release) })
	// open returns the status of a new stream.
	open := func(from string) (*caller, int) {
		t.Helper()
		c := callFrom(t, from, l.Addr())
		c.send("/")
		r := must.Get(http.ReadResponse(c.r, nil))(t)
		if r.StatusCode != http.StatusOK {
			c.Close()
		}
		return c, r.StatusCode
	}
	var mine []*caller
	for i := range 6 {
		c, status := open("127.0.0.1")
		must.Equal(t, status, http.StatusOK, "stream %d", i)
		mine = append(mine, c)
	}
	for range 100 {
		if _, status := open("127.0.0.1"); status != http.StatusServiceUnavailable {
			t.Fatalf("a seventh stream of one client: %d", status)
		}
	}
	if n := s.RefusedStreamsOfClients.Count(); n != 100 || s.RefusedStreams.Count() != 0 {
		t.Errorf("%d refused of clients, %d of all", n, s.RefusedStreams.Count())
	}
	for i := range 2 {
		if _, status := open("127.0.0.2"); status != http.StatusOK {
			t.Errorf("stream %d of another client: %d", i, status)
		}
	}
	if _, status := open("127.0.0.3"); status != http.StatusServiceUnavailable || s.RefusedStreams.Count() != 1 {
		t.Errorf("a ninth stream: %d, %d refused", status, s.RefusedStreams.Count())
	}
	mine[0].Close()
	wait.Until(t, "a stream that its client has ended makes room", func() bool {
		_, status := open("127.0.0.3")
		return status == http.StatusOK
	})
}
