// Package server receives DNS queries by UDP and TCP and sends the answers of an Answerer.
//
// Its inputs are the addresses to listen on, the prefixes of clients, the addresses of the host, and what
// an Answerer returns. Its outputs are replies, the state of each address (Listeners, Problems), and
// Counters. It owns its sockets. An address at which it can't listen is tried again, and affects nothing
// else. It reads no tables and knows nothing of names.
//
// Source code organization:
//
//	server.go    the server, its settings, and its addresses
//	endpoint.go  one address and transport: opens it, serves it, retries
//	udp.go       the loop of a UDP socket
//	tcp.go       connections and their limits
//	turn.go      one connection of an address works at a time
//	limit.go     the limit of replies for each prefix of clients
//	counters.go  what metrics read
//
// # Clients
//
// Every program on this host may ask at each address. Other clients get replies at addresses other than
// loopback if they are in Allow. There, each /24 or /56 gets a limited number of replies by UDP in a
// second: the source of a datagram can be forged, and a server without a limit sends its replies to the
// victim. The memory and connections of each client are bounded, and an address takes at most one
// processor for each transport.
package server

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/netip"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"

	"github.com/ironvip/ironvip/dns/zone"
	"github.com/ironvip/ironvip/internal/connlimit"
	"github.com/ironvip/ironvip/internal/event"
	"github.com/ironvip/ironvip/internal/parallel"
	"github.com/ironvip/ironvip/internal/sockets"
	"github.com/ironvip/ironvip/internal/wake"
	"github.com/ironvip/ironvip/vip"
)

// Answerer answers queries. *dns.Stage implements it.
type Answerer interface {
	// Answer returns the reply to a query, or nothing if no reply must be sent. It may be called
	// concurrently, doesn't keep the query, and doesn't block.
	Answer(query []byte, tcp bool) ([]byte, zone.Outcome)
}

// Settings are what the user configures.
type Settings struct {
	Listen []netip.AddrPort // addresses of this host, none of them a wildcard; empty: nothing is served
	Allow  []netip.Prefix   // clients of addresses other than loopback
	// RateLimit is the number of replies by UDP per second for each /24 or /56 of clients of addresses
	// other than loopback. 0 or less: no limit.
	RateLimit int
}

// Options are what a Server needs. Answerer is required.
type Options struct {
	Settings
	Answerer Answerer
	Sockets  *sockets.Set // opens the listeners; nil: a set that has inherited none
	// HasAddr reports whether this host has an address. A socket stays open without its address, and serves
	// it again later. Nil: it has all of them.
	HasAddr func(netip.Addr) bool
	// Moved returns a channel that delivers after a change of the host's addresses. Nil: Run looks at them
	// every lookTime only, as it always does, because a change can be missed.
	Moved func() <-chan struct{}
	// Took gets the time from the receipt of each query to its reply. Nil: nobody wants it.
	Took   func(time.Duration)
	Events *event.Log
	Log    *slog.Logger // nil: discards
}

// Server listens and answers. Create it with New, and call Run in a goroutine.
type Server struct {
	Options  // Settings as in New; see Reconfigure
	counters Counters
	policy   atomic.Pointer[policy]
	changed  wake.Signal   // has room for one: wanted has changed
	tried    chan struct{} // see Tried
	// idleTime, messageTime and stopTime, unless a test that doesn't concern them makes them endless.
	idle, message, stop time.Duration
	clientOf            func(net.Conn) connlimit.Client // nil: the client of a connection, other than in tests

	mu        sync.Mutex
	wanted    []netip.AddrPort
	listening map[netip.AddrPort]*listener // only Run changes the map
}

// listener is an address to listen on.
type listener struct {
	udp, tcp *endpoint
	absent   atomic.Bool // the host doesn't have the address
	cancel   context.CancelFunc
}

// policy is what applies to clients of addresses other than loopback. It is immutable.
type policy struct {
	allow []netip.Prefix
	limit *limiter // nil: no limit
}

// New returns a Server that does nothing until Run.
func New(o Options) *Server {
	o.Log = cmp.Or(o.Log, slog.New(slog.DiscardHandler))
	o.Sockets = cmp.Or(o.Sockets, &sockets.Set{})
	if o.HasAddr == nil {
		o.HasAddr = func(netip.Addr) bool { return true }
	}
	if o.Moved == nil {
		o.Moved = func() <-chan struct{} { return nil }
	}
	if o.Took == nil {
		o.Took = func(time.Duration) {}
	}
	s := &Server{Options: o, changed: wake.New(), tried: make(chan struct{}), idle: idleTime, message: messageTime, stop: stopTime,
		listening: make(map[netip.AddrPort]*listener)}
	s.Reconfigure(o.Settings)
	return s
}

// Reconfigure replaces the settings. Sockets of addresses that remain stay open, so that no query is
// lost. It returns at once; Run opens and closes the others.
func (s *Server) Reconfigure(settings Settings) {
	p := &policy{allow: slices.Clone(settings.Allow)}
	if former := s.policy.Load(); former != nil && former.limit != nil && former.limit.rate == settings.RateLimit {
		p.limit = former.limit // with the replies that were counted
	} else if settings.RateLimit > 0 {
		p.limit = newLimiter(settings.RateLimit)
	}
	s.policy.Store(p)
	s.mu.Lock()
	s.wanted = slices.Clone(settings.Listen)
	s.mu.Unlock()
	s.changed.Set()
}

// Run serves until the context ends and returns its error. When it returns, every socket is closed in
// this process, and every connection has ended; queries under way were answered. Clients wait for another
// process that has the sockets.
func (s *Server) Run(ctx context.Context) error {
	running, ctx := parallel.NewGroup(ctx)
	running.Go(func() error { return s.loop(ctx, running) })
	return running.Wait()
}

func (s *Server) loop(ctx context.Context, running parallel.Group) error {
	tick := time.NewTicker(lookTime)
	defer tick.Stop()
	for first := true; ; {
		moved := s.Moved() // before looking
		s.look()
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-moved:
		case <-tick.C:
		case <-s.changed: // at once after New
			s.follow(ctx, running)
			if first {
				s.awaitAttempts(running)
				first = false
			}
		}
	}
}

// Tried is closed when Run has tried once to open each socket that was configured at its start: each is
// up or has an error. It has then claimed those that the last process left.
func (s *Server) Tried() <-chan struct{} { return s.tried }

// awaitAttempts closes tried after the first attempt at each present socket.
func (s *Server) awaitAttempts(running parallel.Group) {
	s.mu.Lock()
	var endpoints []*endpoint
	for _, l := range s.listening {
		endpoints = append(endpoints, l.udp, l.tcp)
	}
	s.mu.Unlock()
	running.Go(func() error {
		for _, e := range endpoints {
			select {
			case <-e.tried:
			case <-e.ended: // its address was removed
			}
		}
		close(s.tried)
		return nil
	})
}

// follow starts and ends listeners so that they are those that are wanted.
func (s *Server) follow(ctx context.Context, running parallel.Group) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for at, l := range s.listening {
		if !slices.Contains(s.wanted, at) {
			l.cancel()
			<-l.udp.ended // the next listener may want the port
			<-l.tcp.ended
			delete(s.listening, at)
		}
	}
	for _, at := range s.wanted {
		if s.listening[at] != nil {
			continue
		}
		inner, cancel := context.WithCancel(ctx)
		l := &listener{cancel: cancel}
		l.udp = newEndpoint(s, at, UDP, s.serveUDP)
		l.tcp = newEndpoint(s, at, TCP, s.serveTCP)
		s.listening[at] = l
		for _, e := range []*endpoint{l.udp, l.tcp} {
			running.Run(inner, func(inner context.Context) { e.run(inner, ctx) })
		}
	}
}

// lookTime is the time between two looks at the host's addresses without a reported change.
const lookTime = 5 * time.Second

// errAbsent is why a socket that is open gets no queries.
var errAbsent = errors.New("no interface of this host has the address")

// look notes which addresses the host has.
func (s *Server) look() {
	for at, l := range s.listening {
		absent := !s.HasAddr(at.Addr())
		if l.absent.Swap(absent) == absent || !l.open() {
			continue
		}
		if absent {
			s.Log.Error("dns has lost an address; queries are not answered there until an interface has it again", "at", at)
			s.Events.Add(event.Event{Kind: eventFailed, Object: at.String(), Message: errAbsent.Error()})
		} else {
			s.Log.Info("dns has an address again", "at", at)
			s.Events.Add(event.Event{Kind: eventOpen, Object: at.String(), Message: "an interface has the address again"})
		}
	}
}

// open reports whether both sockets are open.
func (l *listener) open() bool { return l.udp.state.Load().up && l.tcp.state.Load().up }

// Listener is the state of an address.
type Listener struct {
	Addr netip.AddrPort
	Up   bool  // queries are received by UDP and TCP
	Err  error // why not; nil while it starts
}

// Listeners returns the state of each address that is configured, in order.
func (s *Server) Listeners() []Listener {
	s.mu.Lock()
	defer s.mu.Unlock()
	out := make([]Listener, 0, len(s.wanted))
	for _, at := range s.wanted {
		l := Listener{Addr: at}
		if now := s.listening[at]; now != nil {
			l.Up = now.open()
			l.Err = cmp.Or(now.udp.state.Load().err, now.tcp.state.Load().err)
			if l.Up && now.absent.Load() {
				l.Up, l.Err = false, errAbsent
			}
		}
		out = append(out, l)
	}
	slices.SortFunc(out, func(a, b Listener) int { return a.Addr.Compare(b.Addr) })
	return out
}

// Problems returns the addresses at which listening fails at present.
func (s *Server) Problems() []vip.Problem {
	var out []vip.Problem
	for _, l := range s.Listeners() {
		if l.Err == nil {
			continue
		}
		p := vip.Problem{Code: vip.CodeDataplane, Place: l.Addr.String(), Field: "dns.listen", Message: fmt.Sprintf("DNS queries are not answered at %s: %v", l.Addr, l.Err)}
		switch {
		case errors.Is(l.Err, unix.EADDRINUSE):
			p.Code = vip.CodePortTaken
			p.Hint = fmt.Sprintf("find who listens there (ss -lntup 'sport = :%d'), or choose another port", l.Addr.Port())
		case errors.Is(l.Err, unix.EADDRNOTAVAIL), errors.Is(l.Err, errAbsent):
			p.Hint = fmt.Sprintf("add %s to a link of this host, or remove it from listen", l.Addr.Addr())
		case errors.Is(l.Err, unix.EACCES):
			p.Hint = "grant CAP_NET_BIND_SERVICE, or choose a port above 1023"
		}
		out = append(out, p)
	}
	return out
}

// Counters returns the counters of the server, which are shared and change.
func (s *Server) Counters() *Counters { return &s.counters }
