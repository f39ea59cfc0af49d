package server

import (
	"bufio"
	"context"
	"io"
	"log/slog"
	"net"
	"net/http"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/ironvip/ironvip/test/bubble"
	"github.com/ironvip/ironvip/test/expect"
	"github.com/ironvip/ironvip/test/must"
)

// lateListener is still accepting a connection when it is closed.
type lateListener struct {
	conn   net.Conn
	closed chan struct{}
}

func (l *lateListener) Accept() (net.Conn, error) {
	<-l.closed
	c := l.conn
	if c == nil {
		return nil, net.ErrClosed
	}
	l.conn = nil
	time.Sleep(10 * time.Millisecond)
	return c, nil
}

func (l *lateListener) Close() error   { close(l.closed); return nil }
func (l *lateListener) Addr() net.Addr { return &net.UnixAddr{} }

// A connection that is being accepted at the stop gets its answer before Serve returns, after which the
// process ends.
func TestConnectionAcceptedAtTheStop(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		s := New(Options{Log: slog.New(slog.DiscardHandler)})
		answered := false
		s.Handler = http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { answered = true })
		near, far := net.Pipe()
		defer near.Close()
		ctx, cancel := context.WithCancel(context.Background())
		ended := make(chan error)
		go func() { ended <- s.Serve(ctx, &lateListener{far, make(chan struct{})}, nil) }()
		cancel()
		go io.WriteString(near, "GET / HTTP/1.1\r\nHost: x\r\n\r\n")
		go http.ReadResponse(bufio.NewReader(near), nil)
		<-ended
		expect.True(t, answered, "Serve returned before the connection had its answer")
	})
}

func TestServeTellsWhyItFailed(t *testing.T) {
	l := must.Get(net.Listen("unix", filepath.Join(t.TempDir(), "sock")))(t)
	l.Close()
	if err := New(Options{Log: slog.New(slog.DiscardHandler)}).Serve(t.Context(), l, nil); err == nil || !strings.Contains(err.Error(), l.Addr().String()) {
		t.Errorf("on a closed listener: %v", err)
	}
}
