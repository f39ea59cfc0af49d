package server

import (
	"context"
	"crypto/tls"
	"net"
	"net/http"
	"sync/atomic"
	"time"

	v1 "github.com/ironvip/ironvip/api/v1"
	"github.com/ironvip/ironvip/internal/connlimit"
)

// excessConnections is how many connections beyond the limit of a listener are accepted, only to
// answer that they are too many.
const excessConnections = 8

// Refusals counts refused callers.
type Refusals struct {
	n    atomic.Uint64
	last atomic.Pointer[time.Time]
}

func (r *Refusals) add() {
	now := time.Now()
	r.n.Add(1)
	r.last.Store(&now)
}

// Count returns the number of callers since the start.
func (r *Refusals) Count() uint64 { return r.n.Load() }

// Within reports whether a caller was refused in the last d.
func (r *Refusals) Within(d time.Duration) bool {
	last := r.last.Load()
	return last != nil && time.Since(*last) < d
}

// connections returns the limit of the open connections of one listener.
func (s *Server) connections() *connlimit.Limit {
	return &connlimit.Limit{
		Most: s.Connections, Each: s.ClientConnections, Excess: excessConnections, Who: s.clientOf,
		Refused: func(ofClient bool) {
			if ofClient {
				s.RefusedOfClients.add()
			} else {
				s.RefusedConnections.add()
			}
		},
	}
}

// setState is a ConnState of http.Server. It records which connections have answered their request.
func setState(conn net.Conn, state http.ConnState) {
	if c, ok := plain(conn).(*connlimit.Conn); ok && state == http.StateIdle {
		c.Silent()
	}
}

// keep makes the connection of a request one that no other replaces, until the answer. It is for callers with
// permission only: others would keep callers away with bodies that never come.
func keep(ctx context.Context) {
	if p := requestOf(ctx).peer; p != nil {
		p.conn.Busy()
	}
}

type excessKey struct{}

// withConnection is a ConnContext of http.Server. It records the peer of the connection in the context
// of its requests, and marks the requests of connections beyond a limit.
func withConnection(ctx context.Context, c net.Conn) context.Context {
	limited, ok := plain(c).(*connlimit.Conn)
	if !ok {
		return ctx
	}
	noticeLoss(limited.Conn, lossTimeout)
	if limited.InExcess() {
		ctx = context.WithValue(ctx, excessKey{}, limited)
	}
	if p := newPeer(limited); p != nil {
		ctx = context.WithValue(ctx, peerKey{}, p)
	}
	return ctx
}

// plain returns the connection below TLS.
func plain(c net.Conn) net.Conn {
	if t, is := c.(*tls.Conn); is {
		return t.NetConn()
	}
	return c
}

// excess returns the problem of a request on a connection beyond the limit, or nil. The connection
// is closed after the answer.
func excess(w http.ResponseWriter, r *http.Request) *Problem {
	c, is := r.Context().Value(excessKey{}).(*connlimit.Conn)
	if !is {
		return nil
	}
	w.Header().Set("Connection", "close")
	detail := "too many connections to the API"
	if c.OfLimit {
		detail += " of " + c.Client.String()
	}
	return Refuse(http.StatusServiceUnavailable, v1.CodeOverloaded, detail,
		"try again later; close connections and streams that are not needed").RetryAfter(1)
}
