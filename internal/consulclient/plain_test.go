package consulclient

import (
	"bufio"
	"context"
	"errors"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"syscall"
	"testing"
	"time"

	"github.com/hashicorp/consul/api"

	"github.com/ironvip/ironvip/test/accept"
	"github.com/ironvip/ironvip/test/must"
)

func TestPlainErrorsNameNoURL(t *testing.T) {
	listener := must.Get(net.Listen("tcp", "127.0.0.1:0"))(t)
	closes := listener.Addr().String()
	accept.Each(listener, func(conn net.Conn) {
		http.ReadRequest(bufio.NewReader(conn)) // read all of it, because closing with unread data would be a reset
	})
	defer listener.Close()
	// While its servers have no leader, Consul delays an answer, and then refuses it.
	released := make(chan struct{})
	starting := httptest.NewServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) { <-released }))
	defer starting.Close()
	defer close(released)
	leaderless := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		http.Error(w, "rpc error making call: No cluster leader", http.StatusInternalServerError)
	}))
	defer leaderless.Close()
	silent, refuses := starting.Listener.Addr().String(), leaderless.Listener.Addr().String()
	for _, test := range []struct {
		what, address string
		timeout       time.Duration // 0: none
		cancelled     bool
		is            error // nil: any
		want          string
		hint          bool
	}{
		{what: "nobody listens", address: "127.0.0.1:1", is: syscall.ECONNREFUSED, want: "dial tcp 127.0.0.1:1: connect: connection refused"},
		{what: "no answer", address: closes, is: io.EOF, want: "the connection ended without an answer: EOF"},
		{what: "too late", address: silent, timeout: 50 * time.Millisecond, is: context.DeadlineExceeded, hint: true,
			want: "no answer in time: it is starting, has no leader, or is not reachable"},
		{what: "no leader", address: refuses, hint: true, want: "answers 500: its servers have no leader yet"},
		{what: "nobody waits", address: closes, cancelled: true, is: context.Canceled, want: "context canceled"},
	} {
		t.Run(test.what, func(t *testing.T) {
			c, closeIdle, err := New(Config{Address: test.address})
			must.Succeed(t, err)
			defer closeIdle()
			ctx, cancel := context.WithCancel(t.Context())
			defer cancel()
			if test.cancelled {
				cancel()
			}
			if test.timeout > 0 {
				ctx, cancel = context.WithTimeout(t.Context(), test.timeout)
				defer cancel()
			}
			_, _, err = c.KV().List("app/", (&api.QueryOptions{}).WithContext(ctx))
			got := Plain(err)
			if test.is != nil && !errors.Is(got, test.is) || got.Error() != test.want {
				t.Errorf("of %v: %v, want %s", err, got, test.want)
			}
			if unready := (&NotReadyError{}); errors.As(got, &unready) != test.hint || test.hint && unready.Hint() == "" {
				t.Errorf("of %v: hint %q", err, unready.Hint())
			}
		})
	}
	if other := errors.New("another"); Plain(other) != other || Plain(nil) != nil {
		t.Error("errors of no request are to stay as they are")
	}
}
