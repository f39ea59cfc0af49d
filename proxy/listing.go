package proxy

import (
	"context"
	"time"

	"github.com/ironvip/ironvip/plane/reconcile"
	"github.com/ironvip/ironvip/vip"
)

// ListConnections implements reconcile.ConnectionLister. It costs O(frontends and endpoints, and
// the connections of those that are wanted).
func (t *Target) ListConnections(ctx context.Context, want func(vip.FrontendKey) bool, yield func(reconcile.Connection) bool) error {
	for _, key := range t.Keys() {
		if !want(key) {
			continue
		}
		if more, err := t.ListFrontend(ctx, key, yield); !more || err != nil {
			return err
		}
	}
	return nil
}

// ListFrontend calls yield for each connection of a frontend, until it returns false. It also returns whether yield
// wants more.
func (t *Target) ListFrontend(ctx context.Context, key vip.FrontendKey, yield func(reconcile.Connection) bool) (more bool, err error) {
	f := t.frontend(key)
	if f == nil {
		return true, nil
	}
	for _, e := range f.Endpoints() {
		if err := ctx.Err(); err != nil {
			return false, err
		}
		for _, l := range e.Links() {
			c := l.Describe(t.balance.Now())
			c.Frontend, c.Backend = key, e.Addr
			if !yield(c) {
				return false, nil
			}
		}
	}
	return true, nil
}

// until returns how long a timeout after last still takes; 0: there is no timeout.
func until(timeout time.Duration, last, now int64) time.Duration {
	if timeout <= 0 {
		return 0
	}
	return max(timeout-time.Duration(max(now-last, 0)), time.Second) // it may have been used since now was read
}

// Describe implements balance.Link.
func (c *connection) Describe(now int64) reconcile.Connection {
	relay := c.f.Settings()
	out := reconcile.Connection{Client: c.attempt.Client, State: "ESTABLISHED", Expires: until(relay.IdleTimeout, c.last.Load(), now)}
	if c.half.Load() {
		out.State, out.Expires = "HALF_CLOSED", until(relay.HalfCloseTimeout, c.last.Load(), now)
	}
	return out
}

// Describe implements balance.Link.
func (s *session) Describe(now int64) reconcile.Connection {
	return reconcile.Connection{Client: s.client.addr, State: reconcile.StateUDP, Expires: until(s.listener.idle(), s.used.Load(), now)}
}

// Describe implements balance.Link.
func (d *dialing) Describe(int64) reconcile.Connection {
	return reconcile.Connection{Client: d.c.attempt.Client, State: "CONNECTING"}
}
