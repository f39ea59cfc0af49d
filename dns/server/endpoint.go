package server

import (
	"context"
	"net/netip"
	"sync/atomic"
	"time"

	"github.com/ironvip/ironvip/internal/backoff"
	"github.com/ironvip/ironvip/internal/event"
	"github.com/ironvip/ironvip/internal/parallel"
	"github.com/ironvip/ironvip/internal/sockets"
)

// Bounds of the waits before a retry to listen.
const (
	minRetry = 200 * time.Millisecond
	maxRetry = 5 * time.Second
)

// Kinds of events.
const (
	eventOpen   = "dns_listener_open"
	eventFailed = "dns_listener_failed"
)

// Transport is UDP or TCP.
type Transport uint8

// The transports.
const (
	UDP Transport = iota
	TCP
)

// Transports are all transports.
var Transports = []Transport{UDP, TCP}

// String returns "udp" or "tcp".
func (t Transport) String() string { return [...]string{"udp", "tcp"}[t] }

// endpoint is one address and transport.
type endpoint struct {
	server    *Server
	at        netip.AddrPort
	transport Transport
	// serve opens a socket, calls up, and serves until the context ends or the socket fails. It closes
	// the socket with end.
	serve func(ctx context.Context, e *endpoint, end func(sockets.Socket)) error
	state atomic.Pointer[state]
	tried chan struct{} // closed when the first attempt to open the socket has ended
	ended chan struct{}
}

// state is whether an endpoint is served. It is immutable.
type state struct {
	up  bool
	err error // the last error; nil while it is up, or starts
}

func newEndpoint(s *Server, at netip.AddrPort, t Transport, serve func(context.Context, *endpoint, func(sockets.Socket)) error) *endpoint {
	e := &endpoint{server: s, at: at, transport: t, serve: serve, tried: make(chan struct{}), ended: make(chan struct{})}
	e.state.Store(&state{})
	return e
}

// run serves until the inner context ends. If the outer one has ended too, another process may have
// the socket, which then stays open there.
func (e *endpoint) run(inner, outer context.Context) {
	defer close(e.ended)
	end := func(s sockets.Socket) {
		if outer.Err() != nil {
			e.server.Sockets.Release(s)
		} else {
			e.server.Sockets.Remove(s)
		}
	}
	retry := backoff.Backoff{Lo: minRetry, Hi: maxRetry}
	for inner.Err() == nil {
		err := parallel.Recovered(func() error { return e.serve(inner, e, end) })
		if inner.Err() != nil {
			return
		}
		if e.state.Load().up {
			retry.Reset()
		}
		e.failed(err)
		backoff.Sleep(inner, retry.Next())
	}
}

// up states that the socket is open.
func (e *endpoint) up() {
	former := e.state.Swap(&state{up: true})
	e.attempted()
	if former.err != nil {
		e.server.Log.Info("dns listens again", "at", e.at, "transport", e.transport)
		e.event(eventOpen, "listens again")
	}
}

// failed reports the first failure of a series.
func (e *endpoint) failed(err error) {
	former := e.state.Swap(&state{err: err})
	e.attempted()
	if former.err == nil {
		e.server.Log.Error("dns can't listen; queries are not answered there", "at", e.at, "transport", e.transport, "err", err)
		e.event(eventFailed, err.Error())
	}
}

// attempted notes the end of an attempt. Run alone calls it.
func (e *endpoint) attempted() {
	select {
	case <-e.tried:
	default:
		close(e.tried)
	}
}

func (e *endpoint) event(kind, message string) {
	e.server.Events.Add(event.Event{Kind: kind, Object: e.at.String() + "/" + e.transport.String(), Message: message})
}

// admits returns whether a client may ask at all.
func (e *endpoint) admits(p *policy, client netip.Addr) bool {
	// The kernel drops forged loopback addresses. A program of this host that queries the address has it
	// as its own, too.
	if e.at.Addr().IsLoopback() || client.IsLoopback() || client == e.at.Addr() {
		return true
	}
	for _, allowed := range p.allow {
		if allowed.Contains(client) {
			return true
		}
	}
	return false
}
