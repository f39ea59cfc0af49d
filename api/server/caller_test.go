package server

import (
	"context"
	"io"
	"log/slog"
	"net"
	"net/http"
	"os/user"
	"path/filepath"
	"testing"

	"github.com/gin-gonic/gin"
)

// The caller of a request is the user at the other end of the unix socket, or the address of a TCP
// connection.
func TestCaller(t *testing.T) {
	s := New(Options{Log: slog.New(slog.DiscardHandler)})
	s.Engine.GET("/caller", func(c *gin.Context) { c.String(http.StatusOK, Caller(c.Request.Context())) })
	socket := filepath.Join(t.TempDir(), "sock")
	unixSocket, err := net.Listen("unix", socket)
	if err != nil {
		t.Fatal(err)
	}
	tcp, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	me, err := user.Current()
	if err != nil {
		t.Fatal(err)
	}
	for want, l := range map[string]net.Listener{me.Username: unixSocket, "tcp 127.0.0.1": tcp} {
		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan struct{})
		go func() { defer close(done); _ = s.Serve(ctx, l, nil) }()
		transport := &http.Transport{DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
			return new(net.Dialer).DialContext(ctx, l.Addr().Network(), l.Addr().String())
		}}
		resp, err := (&http.Client{Transport: transport}).Get("http://localhost/caller")
		if err != nil {
			t.Fatal(err)
		}
		got, err := io.ReadAll(resp.Body)
		resp.Body.Close()
		if err != nil || string(got) != want {
			t.Errorf("%q, %v; want %q", got, err, want)
		}
		transport.CloseIdleConnections()
		cancel()
		<-done
	}
	if got := Caller(context.WithValue(t.Context(), contextKey{}, &request{})); got != "" {
		t.Errorf("without a connection: %q", got)
	}
}
