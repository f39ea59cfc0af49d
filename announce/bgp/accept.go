package bgp

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/netip"
	"os"
	"slices"
	"sync"
	"time"

	"github.com/ironvip/ironvip/announce"
	"github.com/ironvip/ironvip/announce/bgp/session"
	"github.com/ironvip/ironvip/announce/bgp/transport"
	"github.com/ironvip/ironvip/internal/backoff"
	"github.com/ironvip/ironvip/internal/sockopt"
)

// listener accepts the connections of passive peers and of ranges at one endpoint of this host.
type listener struct {
	at    transport.Endpoint
	peers []announce.BGPPeer // they connect to it; guarded by Speaker.mu, as err
	err   error              // why it does not listen
	since time.Time          // of err
	stop  context.CancelFunc
	done  chan struct{}
}

var errNotListening = errors.New("does not listen yet")

// listen starts, replaces and ends listeners according to the settings. Connections that are open are not affected. The
// caller holds s.mu.
func (s *Speaker) listen() {
	wanted := map[transport.Endpoint][]announce.BGPPeer{}
	for _, c := range s.config.Peers {
		if c.Passive {
			at := transport.EndpointOf(&c)
			wanted[at] = append(wanted[at], c)
		}
	}
	for at, l := range s.listeners {
		if slices.EqualFunc(l.peers, wanted[at], sameSession) {
			l.peers = wanted[at] // with other settings of the routes
			continue
		}
		l.stop()
		delete(s.listeners, at)
		if len(wanted[at]) > 0 {
			s.startListener(at, wanted[at], l)
		}
	}
	for at, peers := range wanted {
		if s.listeners[at] == nil {
			s.startListener(at, peers, nil)
		}
	}
}

func (s *Speaker) startListener(at transport.Endpoint, peers []announce.BGPPeer, before *listener) {
	ctx, stop := context.WithCancel(s.ctx)
	l := &listener{at: at, peers: peers, stop: stop, done: make(chan struct{}), err: errNotListening, since: time.Now()}
	s.listeners[at] = l
	s.running.Go(func() {
		defer close(l.done)
		if before != nil { // which has the address
			<-before.done
		}
		retry := backoff.Backoff{Lo: minRetry, Hi: maxRetry}
		for ctx.Err() == nil {
			in, err := transport.Listen(at, peers)
			s.listens(l, err)
			if err == nil {
				retry.Reset()
				err = s.acceptAll(ctx, l, in)
			}
			if err != nil && !backoff.Sleep(ctx, retry.Next()) {
				return
			}
		}
	})
}

// listens shows whether a listener works, in those of its peers that have no connection.
func (s *Speaker) listens(l *listener, err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.listeners[l.at] != l {
		return
	}
	if (err == nil) != (l.err == nil) {
		l.since = time.Now()
	}
	if err != nil && (l.err == nil || l.err.Error() != err.Error()) {
		s.log.Warn("BGP connections are not accepted", "at", l.at.String(), "reason", err)
	}
	was := cmp.Or(l.err, errNotListening)
	l.err = err
	reason := "the router has not connected to " + l.at.String()
	if err != nil {
		reason = err.Error()
	}
	for i := range l.peers {
		if p := s.peers[l.peers[i].Name()]; p != nil {
			p.set(func(x *Session) {
				if x.State == session.Active && (err != nil || x.Reason == "" || x.Reason == was.Error()) {
					x.Reason, x.Hint = reason, ""
				}
			})
		}
	}
}

// acceptAll passes connections on until the socket fails, or has become useless: it is bound to a device that is gone.
func (s *Speaker) acceptAll(ctx context.Context, l *listener, in *net.TCPListener) error {
	defer context.AfterFunc(ctx, func() { in.Close() })()
	defer in.Close()
	index := sockopt.DeviceIndex(l.at.VRF)
	for {
		if l.at.VRF != "" {
			in.SetDeadline(time.Now().Add(sockopt.DeviceCheck))
		}
		conn, err := in.Accept()
		switch {
		case ctx.Err() != nil:
			return nil
		case errors.Is(err, os.ErrDeadlineExceeded) && sockopt.DeviceIndex(l.at.VRF) != index:
			return fmt.Errorf("device %s was removed or created again", l.at.VRF)
		case errors.Is(err, os.ErrDeadlineExceeded):
			continue
		case err != nil:
			return err
		}
		if reason := s.offer(l, conn); reason != "" {
			transport.Reset(conn)
			s.refused.add(s.log, conn.RemoteAddr(), reason)
		}
	}
}

// refusals logs refused connections, at most one line in a while, however many there are.
type refusals struct {
	mu     sync.Mutex
	n      int
	logged time.Time
}

const refusalsEvery = 10 * time.Second

func (r *refusals) add(log *slog.Logger, from net.Addr, reason string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.n++
	if time.Since(r.logged) >= refusalsEvery {
		log.Warn("BGP connection refused", "from", from.String(), "reason", reason, "refused", r.n)
		r.n, r.logged = 0, time.Now()
	}
}

// offer gives a connection to the peer of its router. It returns why the connection is refused, or "". Nothing has been read from
// it.
func (s *Speaker) offer(l *listener, conn net.Conn) (reason string) {
	router := transport.RouterOf(conn)
	for {
		p, reason := s.peerOf(l, router)
		if p == nil {
			return reason
		}
		if err := transport.Accepted(conn, &p.config); err != nil {
			return err.Error()
		}
		select {
		case p.arrived <- conn:
			return ""
		case <-p.done: // it was one of a range, whose last connection has just ended
		}
	}
}

// peerOf returns the peer of a router that has connected: that of its address, or one of a range.
func (s *Speaker) peerOf(l *listener, router netip.Addr) (*peer, string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.ctx.Err() != nil || s.listeners[l.at] != l {
		return nil, "the listener has ended"
	}
	var c *announce.BGPPeer
	for i := range l.peers {
		switch x := &l.peers[i]; {
		case x.Peer == router:
			return s.peers[x.Name()], ""
		case x.PeerRange.Contains(router.WithZone("")) && (c == nil || c.PeerRange.Bits() < x.PeerRange.Bits()):
			c = x
		}
	}
	if c == nil {
		return nil, "not a configured router"
	}
	one := c.Of(router)
	switch p := s.peers[one.Name()]; {
	case p != nil && p.of != "":
		return p, ""
	case p != nil:
		return nil, "this host connects to the router: it is not passive"
	case s.sessionsOf(c.Name()) >= c.PeerLimit:
		return nil, "peer_limit of " + c.Name() + " reached"
	}
	p := newPeer(s, options{one, s.draining}, nil)
	p.of = c.Name()
	s.peers[one.Name()] = p
	s.start(p)
	return p, ""
}

// sessionsOf returns the number of peers of a range. The caller holds s.mu.
func (s *Speaker) sessionsOf(name string) (n int) {
	for _, p := range s.peers {
		if p.of == name {
			n++
		}
	}
	return n
}

// Ranges returns the state of every range, in the order of the settings.
func (s *Speaker) Ranges() (all []Range) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for i := range s.config.Peers {
		if c := &s.config.Peers[i]; c.PeerRange.IsValid() {
			l := s.listeners[transport.EndpointOf(c)]
			r := Range{Name: c.Name(), Since: l.since}
			if l.err != nil {
				r.Reason = l.err.Error()
			}
			all = append(all, r)
		}
	}
	return all
}

// attempt is a connection that the router has opened.
type attempt struct {
	*session.Session
	from   net.Addr
	ctx    context.Context
	abort  context.CancelCauseFunc
	beside bool // there was a session when it began, whose reason counts more
}

// errNewer ends a connection after which the router has opened another one. The session ends without a NOTIFICATION
// (RFC 4724, 4.2), which could end graceful restart.
var errNewer = errors.New("the router has opened a new connection")

// accept runs the sessions of connections that the router opens, until the context ends; for a router of a range, until it has
// none.
func (p *peer) accept(ctx context.Context) {
	n, ended := 0, make(chan struct{})
	begin := func(x *session.Session, from net.Addr) {
		n++
		a := p.attempt(ctx, x, from)
		go func() {
			p.serve(a)
			ended <- struct{}{}
		}()
	}
	if h := p.inherited; h != nil {
		begin(p.resume(), h.Conn.RemoteAddr())
	}
	for {
		select {
		case conn := <-p.arrived:
			begin(session.New(p.settings, conn, false, p.speaker.routes, p), conn.RemoteAddr())
		case <-ended:
			if n--; n == 0 && p.of != "" {
				p.speaker.forget(p)
				return
			}
		case <-ctx.Done():
			for ; n > 0; n-- {
				<-ended
			}
			return
		}
	}
}

// forget removes a peer of a range.
func (s *Speaker) forget(p *peer) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if name := p.config.Name(); s.peers[name] == p {
		delete(s.peers, name)
		if now := p.status(); now.Established > 0 || now.Reason != "" { // it was listed
			s.tell(now)
		}
	}
}

// attempt returns the attempt of a session. It takes the place of one without an OPEN at once.
func (p *peer) attempt(ctx context.Context, x *session.Session, from net.Addr) *attempt {
	ctx, abort := context.WithCancelCause(ctx)
	a := &attempt{x, from, ctx, abort, !p.turn.TryLock()}
	if !a.beside {
		p.turn.Unlock()
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.asked != nil {
		p.asked.abort(errNewer)
	}
	p.asked = a
	return a
}

// serve runs the session of an attempt. It takes the place of an earlier session when the router's OPEN was accepted: a router
// connects again when it has lost the session, which this host may not know yet. A connection that isn't one of the router's
// BGP does not disturb the session.
func (p *peer) serve(a *attempt) {
	defer a.abort(nil)
	err := a.AwaitOpen(a.ctx)
	p.mu.Lock()
	if p.asked == a {
		p.asked = nil
	}
	if err == nil && p.abort != nil {
		p.abort(errNewer)
	}
	if err == nil {
		p.abort = a.abort
	}
	p.mu.Unlock()
	if err == nil {
		p.turn.Lock()
		_, err = a.Run(a.ctx)
	} else if p.of != "" || a.beside || a.ctx.Err() != nil || !p.turn.TryLock() { // not a router yet, beside its session, or replaced
		if a.ctx.Err() == nil {
			p.speaker.refused.add(p.speaker.log, a.from, err.Error())
		}
		return
	}
	defer p.turn.Unlock()
	p.failed(err)
}
