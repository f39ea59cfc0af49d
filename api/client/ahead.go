package client

import (
	"context"
	"net/http"
	"net/url"
	"strings"
)

// begun is a request that was sent before its document is needed. A goroutine reads the document, so
// that the time limit measures the agent alone: neither the caller's work on another document
// nor an agent that ends the response for a slow reader makes the request fail.
type begun[T any] struct {
	cancel   context.CancelFunc
	answered chan struct{} // closed when the header is set
	header   http.Header   // of the response; nil if there is an error
	done     chan struct{} // closed when out and err are set
	out      T
	err      error
}

// begin sends a request and reads its document in the background. The caller calls result, or drop, at the end.
func begin[T any](ctx context.Context, c *Client, q call) *begun[T] {
	b := &begun[T]{answered: make(chan struct{}), done: make(chan struct{})}
	ctx, b.cancel = context.WithTimeoutCause(ctx, c.timeout+q.wait, errTimeout)
	go func() {
		defer close(b.done)
		defer b.cancel()
		resp, err := c.send(ctx, q)
		if err == nil {
			b.header = resp.Header
		}
		close(b.answered)
		if b.err = err; err == nil {
			b.err = c.decode(ctx, q, resp, &b.out)
		}
	}()
	return b
}

// result waits for the document.
func (b *begun[T]) result() (T, error) {
	<-b.done
	return b.out, b.err
}

// drop ends the request if its document isn't needed any more. It does nothing for nil.
func (b *begun[T]) drop() {
	if b == nil {
		return
	}
	b.cancel()
	<-b.done
}

// nextPage waits for the response's header and returns the cursor in its link to the next page, which
// comes before the page itself, or "".
func (b *begun[T]) nextPage() string {
	<-b.answered
	for _, link := range b.header.Values("Link") {
		target, parameters, _ := strings.Cut(link, ">")
		if strings.TrimSpace(strings.TrimLeft(parameters, ";")) != `rel="next"` {
			continue
		}
		if u, err := url.Parse(strings.TrimPrefix(target, "<")); err == nil {
			return u.Query().Get("cursor")
		}
	}
	return ""
}
