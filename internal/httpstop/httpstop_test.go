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

func (p *pipes) Close() error   { close(p.done); return nil }
func (p *pipes) Addr() net.Addr { return &net.UnixAddr{Name: "pipe", Net: "unix"} }

func (p *pipes) dial() net.Conn {
	client, server := net.Pipe()
	p.conns <- server
	return client
}

// A shutdown closes connections that have sent nothing, old and new ones. It lets a request in progress
// end, and answers one that was on its way.
func TestSilentConnectionsDontDelayTheShutdown(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		var silent Silent
		answer := make(chan struct{})
		server := &http.Server{ConnState: silent.Track, Handler: http.HandlerFunc(func(http.ResponseWriter, *http.Request) { <-answer })}
		l := &pipes{make(chan net.Conn), make(chan struct{})}
		ended := make(chan struct{})
		go func() { defer close(ended); _ = server.Serve(l) }()

		old, busy := l.dial(), l.dial()
		if _, err := io.WriteString(busy, "GET / HTTP/1.1\r\nHost: x\r\n\r\n"); err != nil {
			t.Fatal(err)
		}
		synctest.Wait()
		time.Sleep(time.Minute)
		fresh := l.dial()
		silent.Stop()
		late, lateBusy := l.dial(), l.dial()
		for _, c := range []net.Conn{fresh, lateBusy} {
			if _, err := io.WriteString(c, "GET / HTTP/1.1\r\nHost: x\r\n\r\n"); err != nil {
				t.Fatalf("a request that was on its way: %v", err)
			}
		}
		for name, c := range map[string]net.Conn{"old": old, "late": late} {
			if _, err := c.Read(make([]byte, 1)); err != io.EOF {
				t.Errorf("the %s connection: %v, want its end", name, err)
			}
		}
		down := make(chan error, 1)
		go func() { down <- server.Shutdown(context.Background()) }()
		close(answer)
		for name, c := range map[string]net.Conn{"in progress": busy, "on its way": fresh, "of a new connection": lateBusy} {
			if r, err := http.ReadResponse(bufio.NewReader(c), nil); err != nil || r.StatusCode != http.StatusOK {
				t.Errorf("the request %s: %v, %v", name, r, err)
			}
		}
		if err := <-down; err != nil {
			t.Error(err)
		}
		<-ended
	})
}
