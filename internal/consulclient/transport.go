package consulclient

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"strings"
	"sync"
	"time"
)

// ErrBusy says that the agent takes no more connections from this host: it has a
// limit for each client, of 200 by default (limits.http_max_conns_per_client).
var ErrBusy = errors.New("consul takes no more connections from this host")

// welcomed is a connection that may be refused: the agent takes it, answers
// before anything was asked, and closes it. To net/http that is an answer to
// nobody, and a connection like any other that has ended.
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

// roundTripper gives every request its token, and every answer an end.
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
	r = r.Clone(r.Context())
	r.Header.Del(tokenHeader)
	if token != "" {
		r.Header.Set(tokenHeader, token)
	}
	answer, err := t.next.RoundTrip(r)
	if err == nil {
		answer.Body = &bounded{ReadCloser: answer.Body, left: MaxAnswer}
	}
	return answer, err
}

// tokenAge is how old what is known of a token file may be.
const tokenAge = time.Second

// token is the token as its file has it now.
type token struct {
	fixed, path string

	mu      sync.Mutex
	checked time.Time
	read    os.FileInfo // the file as it was when its token was read
	value   string
	err     error
}

func (t *token) get() (string, error) {
	if t.path == "" {
		return t.fixed, nil
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	if now := time.Now(); t.checked.IsZero() || now.Sub(t.checked) >= tokenAge {
		t.checked = now
		t.refresh()
	}
	return t.value, t.err
}

// refresh reads the file if it is another than before. A file that can't be
// read fails requests: without its token, Consul would answer as to anybody,
// which may be with nothing at all.
func (t *token) refresh() {
	info, err := os.Stat(t.path)
	if err != nil {
		t.read, t.err = nil, err
		return
	}
	if t.err == nil && t.read != nil && os.SameFile(info, t.read) && info.ModTime().Equal(t.read.ModTime()) && info.Size() == t.read.Size() {
		return
	}
	data, err := os.ReadFile(t.path)
	t.read, t.value, t.err = info, strings.TrimSpace(string(data)), err
	if err == nil && t.value == "" {
		t.err = fmt.Errorf("%s is empty: it should hold a token", t.path)
	}
}

// bounded is a body that fails where it has no end.
type bounded struct {
	io.ReadCloser
	left int64
}

func (b *bounded) Read(p []byte) (int, error) {
	if b.left <= 0 {
		return 0, fmt.Errorf("consul's answer is longer than %d MiB", MaxAnswer>>20)
	}
	n, err := b.ReadCloser.Read(p[:min(int64(len(p)), b.left)])
	b.left -= int64(n)
	return n, err
}
