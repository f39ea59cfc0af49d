package httpstop

import (
	"bufio"
	"context"
	"io"
	"net"
	"net/http"
	"testing"
	"testing/synctest"
	"time"

	"github.com/ironvip/ironvip/test/bubble"
	"github.com/ironvip/ironvip/test/expect"
	"github.com/ironvip/ironvip/test/must"
)

// pipes is a listener of connections in memory.
type pipes struct {
	conns chan net.Conn
	done  chan struct{}
}

func (p *pipes) Accept() (net.Conn, error) {
	select {
	case c := <-p.conns:
		return c, nil
	case <-p.done:
		return nil, net.ErrClosed
	}
}

func (p *pipes) Close() error   { return nil }
func (p *pipes) Addr() net.Addr { return &net.UnixAddr{Name: "pipe", Net: "unix"} }

func (p *pipes) dial() net.Conn {
	client, server := net.Pipe()
	p.conns <- server
	return client
}

const request = "GET / HTTP/1.1\r\nHost: x\r\n\r\n"

// A stop closes connections that have sent nothing or are idle. It lets a request in progress end, and
// answers one that is on its way.
func TestStop(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		var conns Conns
		answer := make(chan struct{})
		server := &http.Server{ConnState: conns.Track, Handler: http.HandlerFunc(func(http.ResponseWriter, *http.Request) { <-answer })}
		l := &pipes{make(chan net.Conn), make(chan struct{})}
		ended := make(chan struct{})
		go func() { defer close(ended); _ = server.Serve(l) }()
		send := func(c net.Conn) {
			t.Helper()
			must.Get(io.WriteString(c, request))(t)
		}
		answered := func(name string, c net.Conn) {
			t.Helper()
			if r, err := http.ReadResponse(bufio.NewReader(c), nil); err != nil || r.StatusCode != http.StatusOK {
				t.Errorf("the request %s: %v, %v", name, r, err)
			}
		}

		idle, old, busy := l.dial(), l.dial(), l.dial()
		send(idle)
		answer <- struct{}{}
		answered("before the stop", idle)
		send(busy)
		time.Sleep(time.Minute)
		fresh, silent := l.dial(), l.dial()
		synctest.Wait()
		close(l.done)
		<-ended
		began, stopped := time.Now(), make(chan struct{})
		go func() { defer close(stopped); conns.Stop(context.Background(), server) }()
		synctest.Wait()
		for name, c := range map[string]net.Conn{"old": old, "idle": idle} {
			if _, err := c.Read(make([]byte, 1)); err != io.EOF || time.Since(began) > 0 {
				t.Errorf("the %s connection after %s: %v, want its end", name, time.Since(began), err)
			}
		}
		time.Sleep(Patience / 2)
		send(fresh)
		if _, err := silent.Read(make([]byte, 1)); err != io.EOF || time.Since(began) != Patience {
			t.Errorf("the silent connection after %s: %v, want its end", time.Since(began), err)
		}
		close(answer)
		answered("in progress", busy)
		answered("on its way", fresh)
		<-stopped
		expect.Equal(t, time.Since(began), Patience, "the stop took")
	})
}

// A request that is not answered in time is cut off.
func TestStopHasAnEnd(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		var conns Conns
		answer := make(chan struct{})
		server := &http.Server{ConnState: conns.Track, Handler: http.HandlerFunc(func(http.ResponseWriter, *http.Request) { <-answer })}
		l := &pipes{make(chan net.Conn), make(chan struct{})}
		go server.Serve(l)
		busy := l.dial()
		must.Get(io.WriteString(busy, request))(t)
		synctest.Wait()
		close(l.done)
		ctx, cancel := context.WithTimeout(context.Background(), time.Second)
		defer cancel()
		began := time.Now()
		conns.Stop(ctx, server)
		expect.Equal(t, time.Since(began), time.Second, "the stop took")
		if _, err := busy.Read(make([]byte, 1)); err != io.EOF {
			t.Errorf("the connection: %v, want its end", err)
		}
		close(answer)
	})
}
