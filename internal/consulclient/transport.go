package consulclient

import (
	"bytes"
	"errors"
	"net"
	"net/http"

	"github.com/ironvip/ironvip/internal/answer"
	"github.com/ironvip/ironvip/internal/tlsfile"
)

// ErrBusy means that the agent accepts no more connections from this host. Its limit per client is
// 200 by default (limits.http_max_conns_per_client).
var ErrBusy = errors.New("consul takes no more connections from this host")

// welcomed is a connection that the agent may refuse. To refuse it, the agent accepts it, answers
// before it receives a request, and closes it. net/http ignores that answer and reports only a
// closed connection.
type welcomed struct {
	net.Conn
	answered bool
}

func (c *welcomed) Read(p []byte) (int, error) {
	n, err := c.Conn.Read(p)
	if first := !c.answered && n > 0; first {
		c.answered = true
		if bytes.HasPrefix(p[:n], []byte("HTTP/1.1 429 ")) && bytes.Contains(p[:n], []byte("too many concurrent connections")) {
			return 0, ErrBusy
		}
	}
	return n, err
}

// roundTripper adds the token to every request and limits the size of every answer.
type roundTripper struct {
	next  http.RoundTripper
	token *token
}

const tokenHeader = "X-Consul-Token"

func (t *roundTripper) RoundTrip(r *http.Request) (*http.Response, error) {
	token, err := t.token.get()
	if err != nil {
		return nil, err
	}
	if r.Header.Get(tokenHeader) != token {
		header := r.Header.Clone()
		header.Set(tokenHeader, token)
		if token == "" {
			header.Del(tokenHeader)
		}
		r = r.WithContext(r.Context()) // a copy: the caller's request must stay as it is
		r.Header = header
	}
	received, err := t.next.RoundTrip(r)
	if err == nil {
		answer.Bound(received, MaxAnswer, true)
	}
	return received, err
}

// token is a fixed token, or that of a file.
type token struct{ fixed, path string }

// get returns the token.
func (t *token) get() (string, error) {
	if t.path == "" {
		return t.fixed, nil
	}
	return tlsfile.Token(t.path)
}
