package consulclient

import (
	"bufio"
	"context"
	"errors"
	"io"
	"net"
	"net/http"
	"syscall"
	"testing"

	"github.com/hashicorp/consul/api"
)

func TestPlainErrorsNameNoURL(t *testing.T) {
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	closes := listener.Addr().String()
	go func() {
		for {
			conn, err := listener.Accept()
			if err != nil {
				return
			}
			http.ReadRequest(bufio.NewReader(conn)) // read all of it, because closing with unread data would be a reset
			conn.Close()
		}
	}()
	defer listener.Close()
	for _, test := range []struct {
		what, address string
		cancelled     bool
		is            error
		want          string
	}{
		{what: "nobody listens", address: "127.0.0.1:1", is: syscall.ECONNREFUSED, want: "dial tcp 127.0.0.1:1: connect: connection refused"},
		{what: "no answer", address: closes, is: io.EOF, want: "the connection ended without an answer: EOF"},
		{what: "nobody waits", address: closes, cancelled: true, is: context.Canceled, want: "context canceled"},
	} {
		t.Run(test.what, func(t *testing.T) {
			c, closeIdle, err := New(Config{Address: test.address})
			if err != nil {
				t.Fatal(err)
			}
			defer closeIdle()
			ctx, cancel := context.WithCancel(t.Context())
			defer cancel()
			if test.cancelled {
				cancel()
			}
			_, _, theirs := c.KV().List("app/", (&api.QueryOptions{}).WithContext(ctx))
			_, _, ours := c.Open(ctx, "/v1/kv/app/", nil)
			for _, err := range []error{theirs, ours} {
				got := Plain(err)
				if !errors.Is(got, test.is) || got.Error() != test.want {
					t.Errorf("of %v: %v, want %s", err, got, test.want)
				}
			}
		})
	}
	if other := errors.New("another"); Plain(other) != other || Plain(nil) != nil {
		t.Error("errors of no request are to stay as they are")
	}
}
