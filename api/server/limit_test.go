package server

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"io"
	"log/slog"
	"net"
	"net/http"
	"os"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/ironvip/ironvip/test/wait"
)

// serveLimited serves at most a number of connections until the end of the test. GET /hold answers
// when the test ends, other paths at once.
func serveLimited(t *testing.T, network, address string, most int, holding *atomic.Int64) (*Server, net.Addr) {
	t.Helper()
	s := New(Options{Connections: most, Log: slog.New(slog.DiscardHandler)})
	release := make(chan struct{})
	s.Handler = s.wrap(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path == "/hold" {
			holding.Add(1)
			<-release
		}
		io.WriteString(w, "ok")
	}))
	l, err := net.Listen(network, address)
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan error)
	go func() { ended <- s.Serve(ctx, l, nil) }()
	t.Cleanup(func() {
		close(release)
		cancel()
		<-ended
	})
	return s, l.Addr()
}

// caller is one connection to the server.
type caller struct {
	net.Conn
	r *bufio.Reader
}

func call(t *testing.T, addr net.Addr) *caller {
	t.Helper()
	c, err := net.Dial(addr.Network(), addr.String())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { c.Close() })
	return &caller{c, bufio.NewReader(c)}
}

func (c *caller) send(path string) {
	io.WriteString(c, "GET "+path+" HTTP/1.1\r\nHost: localhost\r\n\r\n")
}

// answer returns the response. It fails the test if the connection has ended.
func (c *caller) answer(t *testing.T) *http.Response {
	t.Helper()
	r, err := http.ReadResponse(c.r, nil)
	if err != nil {
		t.Fatal(err)
	}
	body, _ := io.ReadAll(r.Body) // the server resets a caller that goes on sending
	r.Body = io.NopCloser(bytes.NewReader(body))
	return r
}

// ended reports whether the server has answered or ended the connection.
func (c *caller) ended() bool {
	_ = c.SetReadDeadline(time.Now().Add(10 * time.Millisecond))
	_, err := c.r.Peek(1)
	return err == nil || !errors.Is(err, os.ErrDeadlineExceeded)
}

// active returns how many connections have a request.
func active(l *limitedListener) int {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.within.open - l.within.silent.Len()
}

// Connections without a request are replaced, so that callers that do nothing can't keep others
// away. If all have a request, further callers are told to come back, and no more descriptors are
// used.
func TestConnectionsAreBounded(t *testing.T) {
	for name, where := range map[string][2]string{
		"ipv4": {"tcp", "127.0.0.1:0"}, "ipv6": {"tcp", "[::1]:0"}, "unix": {"unix", t.TempDir() + "/s"},
	} {
		t.Run(name, func(t *testing.T) {
			const most = 10
			var holding atomic.Int64
			s, addr := serveLimited(t, where[0], where[1], most, &holding)
			for range 3 * most {
				call(t, addr)
			}
			// Each request takes the place of a silent connection.
			for i := range int64(most) {
				wait.Until(t, "answered beside silent connections", func() bool {
					c := call(t, addr)
					c.send("/hold")
					wait.Until(t, "a result", func() bool { return holding.Load() > i || c.ended() })
					return holding.Load() > i
				})
			}
			before := s.RefusedConnections.Count()
			const silent = 3 * excessConnections // more that do nothing
			for range silent {
				call(t, addr)
			}
			c := call(t, addr)
			c.send("/")
			if r := c.answer(t); r.StatusCode != http.StatusServiceUnavailable || r.Header.Get("Retry-After") != "1" || !r.Close {
				t.Errorf("beyond the limit: %v", r)
			}
			if n := s.RefusedConnections.Count(); n != before+silent+1 {
				t.Errorf("%d refused, want %d", n, before+silent+1)
			}
		})
	}
}

// The limit holds whatever callers do, and each connection is counted once.
func TestConnectionsAreCountedOnce(t *testing.T) {
	s := New(Options{Connections: 2, Log: slog.New(slog.DiscardHandler)})
	l := &limitedListener{s: s, most: 2}
	var all []*limitedConn
	for range 100 {
		near, far := net.Pipe()
		t.Cleanup(func() { near.Close(); far.Close() })
		if c := l.add(near); c != nil {
			l.setState(c, http.StateActive)
			all = append(all, c)
		}
	}
	if len(all) != 2+excessConnections || active(l) != 2 || l.excess.open != excessConnections {
		t.Errorf("%d accepted, %d active, %d beyond the limit", len(all), active(l), l.excess.open)
	}
	for _, c := range all {
		l.setState(c, http.StateIdle)
		c.Close()
		c.Close()
		l.setState(c, http.StateClosed)
	}
	for _, cs := range []*connections{&l.within, &l.excess} {
		if cs.open != 0 || cs.silent.Len() != 0 {
			t.Errorf("%d open, %d silent after all are closed", cs.open, cs.silent.Len())
		}
	}
}

func TestStreamsAreBounded(t *testing.T) {
	s := New(Options{Connections: 6, Log: slog.New(slog.DiscardHandler)})
	var open []func()
	for range 3 {
		done, err := s.OpenStream(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		open = append(open, done)
	}
	if _, err := s.OpenStream(t.Context()); err == nil || !strings.Contains(err.Error(), "too many streams") {
		t.Errorf("a fourth stream: %v", err)
	}
	if n := s.RefusedStreams.Count(); n != 1 {
		t.Errorf("%d refused", n)
	}
	open[0]()
	open[0]() // once is enough
	if _, err := s.OpenStream(t.Context()); err != nil {
		t.Errorf("after one has ended: %v", err)
	}
	if _, err := s.OpenStream(t.Context()); err == nil {
		t.Error("an end was counted twice")
	}
}
