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

	"github.com/ironvip/ironvip/test/expect"
	"github.com/ironvip/ironvip/test/must"
	"github.com/ironvip/ironvip/test/scope"
)

// The caller of a request is the user at the other end of the unix socket, or the address of a TCP
// connection.
func TestCaller(t *testing.T) {
	s := New(Options{Log: slog.New(slog.DiscardHandler)})
	s.Engine.GET("/caller", func(c *gin.Context) { c.String(http.StatusOK, Caller(c.Request.Context())) })
	socket := filepath.Join(t.TempDir(), "sock")
	unixSocket := must.Get(net.Listen("unix", socket))(t)
	tcp := must.Get(net.Listen("tcp", "127.0.0.1:0"))(t)
	me := must.Get(user.Current())(t)
	for want, l := range map[string]net.Listener{me.Username: unixSocket, "tcp 127.0.0.1": tcp} {
		end := scope.Go(t, func(ctx context.Context) error { return s.Serve(ctx, l, nil) })
		transport := &http.Transport{DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
			return new(net.Dialer).DialContext(ctx, l.Addr().Network(), l.Addr().String())
		}}
		resp := must.Get((&http.Client{Transport: transport}).Get("http://localhost/caller"))(t)
		got, err := io.ReadAll(resp.Body)
		resp.Body.Close()
		if err != nil || string(got) != want {
			t.Errorf("%q, %v; want %q", got, err, want)
		}
		transport.CloseIdleConnections()
		end()
	}
	expect.Equal(t, Caller(context.WithValue(t.Context(), contextKey{}, &request{})), "", "without a connection")
}
