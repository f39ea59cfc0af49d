package server

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"os"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/ironvip/ironvip/internal/access"
	"github.com/ironvip/ironvip/internal/connlimit"
	"github.com/ironvip/ironvip/test/bubble"
	"github.com/ironvip/ironvip/test/expect"
	"github.com/ironvip/ironvip/test/must"
	"github.com/ironvip/ironvip/test/scope"
	"github.com/ironvip/ironvip/test/wait"
)

// caller is one connection to the server.
type caller struct {
	net.Conn
	r *bufio.Reader
}

func call(t *testing.T, addr net.Addr) *caller {
	t.Helper()
	c := must.Get(net.Dial(addr.Network(), addr.String()))(t)
	t.Cleanup(func() { c.Close() })
	return &caller{c, bufio.NewReader(c)}
}

func (c *caller) send(path string) {
	io.WriteString(c, "GET "+path+" HTTP/1.1\r\nHost: localhost\r\n\r\n")
}

// answer returns the response. It fails the test if the connection has ended.
func (c *caller) answer(t *testing.T) *http.Response {
	t.Helper()
	r := must.Get(http.ReadResponse(c.r, nil))(t)
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

// Connections without a request are replaced, so that callers that do nothing can't keep others
// away. If all have a request, further callers are told to come back, and no more descriptors are
// used.
func TestConnectionsAreBounded(t *testing.T) {
	for name, where := range map[string][2]string{
		"ipv4": {"tcp", "127.0.0.1:0"}, "ipv6": {"tcp", "[::1]:0"}, "unix": {"unix", t.TempDir() + "/s"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel() // a connection may be silent for a second before another one takes its place
			const most = 10
			var holding atomic.Int64
			release := make(chan struct{})
			s, addr := serveOn(t, where[0], where[1], Options{Connections: most}, func() { holding.Add(1); <-release })
			t.Cleanup(func() { close(release) })
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
			expect.Equal(t, s.RefusedConnections.Count(), before+silent+1, "refused")
		})
	}
}

func TestStreamsAreBounded(t *testing.T) {
	s := New(Options{Connections: 6, Log: slog.New(slog.DiscardHandler)})
	ctx := context.WithValue(t.Context(), contextKey{}, &request{})
	var open []func()
	for range 3 {
		done := must.Get(s.OpenStream(ctx))(t)
		open = append(open, done)
	}
	if _, err := s.OpenStream(ctx); err == nil || !strings.Contains(err.Error(), "too many streams") {
		t.Errorf("a fourth stream: %v", err)
	}
	expect.Equal(t, s.RefusedStreams.Count(), 1, "refused")
	open[0]()
	open[0]() // once is enough
	if _, err := s.OpenStream(ctx); err != nil {
		t.Errorf("after one has ended: %v", err)
	}
	if _, err := s.OpenStream(ctx); err == nil {
		t.Error("an end was counted twice")
	}
}

func TestLargeRequestsAreBounded(t *testing.T) {
	s := New(Options{Log: slog.New(slog.DiscardHandler)})
	from := func(uid uint32) (ctx context.Context, end func()) {
		of := &request{peer: clientWith(uid)}
		return context.WithValue(t.Context(), contextKey{}, of), func() { of.done() }
	}
	var ends []func()
	open := func(uid uint32) *Problem {
		ctx, end := from(uid)
		p := s.openLarge(ctx)
		if p == nil {
			ends = append(ends, end)
		}
		return p
	}
	for _, c := range []struct {
		uid     uint32
		refused string
	}{{1, ""}, {1, ""}, {1, "of uid 1"}, {2, ""}, {3, ""}, {4, "too many large requests at one time"}} {
		p := open(c.uid)
		if (p == nil) != (c.refused == "") || p != nil && (p.Status != http.StatusServiceUnavailable || !strings.Contains(p.Detail, c.refused) || p.header.Get("Retry-After") == "") {
			t.Errorf("uid %d: %+v, want %q", c.uid, p, c.refused)
		}
	}
	ends[0]()
	if p := open(1); p != nil {
		t.Errorf("after one has ended: %+v", p)
	}
}

// A caller without permission keeps no connection with a body that never comes: another one replaces it, and it is
// answered soon. The connection of a permitted request stays until its answer.
func TestRefusedBodiesKeepNoConnection(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		const most = 4
		s := New(Options{Connections: most, Log: slog.New(slog.DiscardHandler), Policy: func() *access.Policy {
			return &access.Policy{Tokens: func(string) (access.Caller, error) {
				return access.Caller{Name: "token deploy", Grant: access.Grant{Role: access.Viewer}}, nil
			}}
		}})
		release := make(chan struct{})
		for path, need := range map[string]access.Need{"/permitted": access.View, "/public": access.Public} {
			Handle(s, Route{Method: http.MethodPost, Path: path, ID: path, Early: true, Need: need, Body: struct{}{}, BodyOptional: true}, func(context.Context, *struct{ RawBody []byte }) (*struct{}, error) {
				if need == access.View {
					<-release
				}
				return nil, nil
			})
		}
		s.clientOf = byAddress
		l := make(pipes)
		defer scope.Go(t, func(ctx context.Context) error { return s.Serve(ctx, l, nil) })()
		connect := func() *caller {
			near, far := net.Pipe()
			t.Cleanup(func() { near.Close() })
			l <- remote{far}
			return &caller{near, bufio.NewReader(near)}
		}
		post := func(c *caller, path, header string) {
			must.Get(io.WriteString(c, "POST "+path+" HTTP/1.1\r\nHost: localhost\r\n"+header+"\r\n"))(t)
		}
		replaced := func(c *caller) bool { _, err := c.r.Peek(1); return errors.Is(err, io.EOF) }

		held := connect()
		post(held, "/permitted", "Authorization: Bearer x\r\nContent-Length: 0\r\n")
		var refused []*caller
		for range most - 1 {
			refused = append(refused, connect())
		}
		time.Sleep(time.Second / 2)
		for i, path := range []string{"/permitted", "/public", "/absent"} {
			post(refused[i], path, "Content-Length: 1000\r\n")
		}
		sent := time.Now()
		time.Sleep(time.Second / 2) // their bodies may still come
		other := connect()
		other.send("/")
		expect.Equal(t, other.answer(t).StatusCode, http.StatusNotFound, "another caller")
		expect.True(t, replaced(refused[0]), "a refused body keeps its connection")
		for i, status := range []int{http.StatusRequestTimeout, http.StatusNotFound} {
			expect.Equal(t, refused[i+1].answer(t).StatusCode, status)
			expect.Equal(t, time.Since(sent), time.Second, "the time until an answer")
		}
		close(release)
		expect.Equal(t, held.answer(t).StatusCode, http.StatusNoContent, "the permitted request")
		time.Sleep(time.Second)
		before := time.Now()
		for range most { // the refused ones have ended
			connect()
		}
		expect.True(t, replaced(other) && replaced(held) && time.Now().Equal(before), "an answered connection isn't replaced")
	})
}

// clientWith returns the peer of a client.
func clientWith(uid uint32) *peer {
	return &peer{client: connlimit.Client{Local: true, UID: uid}, who: func() string { return "tcp 127.0.0.1" }}
}

// remote is a connection of a client of another host.
type remote struct{ net.Conn }

func (remote) RemoteAddr() net.Addr { return &net.TCPAddr{IP: net.IPv4(192, 0, 2, 1), Port: 1} }

// A token has no more streams from many addresses than from one, and neither has a client with many tokens. Callers that
// have none are told apart by where they are.
func TestStreamsOfOneToken(t *testing.T) {
	s := New(Options{Connections: 16, Log: slog.New(slog.DiscardHandler)}) // 8 streams, 6 of one client
	open := func(uid uint32, name string) (func(), error) {
		return s.OpenStream(context.WithValue(t.Context(), contextKey{}, &request{peer: clientWith(uid), caller: access.Caller{Name: name}}))
	}
	var ends []func()
	refused := func(uid uint32, name string) string {
		end, err := open(uid, name)
		if err != nil {
			return err.Error()
		}
		ends = append(ends, end)
		return ""
	}
	for i := range uint32(6) {
		expect.Equal(t, refused(i%2, "token a"), "")
	}
	expect.Equal(t, refused(2, "token a"), "too many streams of token a")
	expect.Equal(t, refused(2, "token b"), "", "another token")
	expect.Equal(t, refused(2, "tcp 127.0.0.1"), "", "without a token")
	expect.Equal(t, refused(3, "token c"), "too many streams")
	for _, end := range ends {
		end()
		end()
	}
	for i := range 6 {
		expect.Equal(t, refused(1, fmt.Sprint("token ", i)), "")
	}
	expect.Equal(t, refused(1, "token 7"), "too many streams of uid 1")
	ends[len(ends)-1]()
	for i := range uint32(3) {
		expect.Equal(t, refused(10+i, "tcp 127.0.0.1"), "", "one address that several users have")
	}
	expect.Equal(t, [2]uint64{s.RefusedStreamsOfClients.Count(), s.RefusedStreams.Count()}, [2]uint64{2, 1}, "refused of clients, of all")
}
