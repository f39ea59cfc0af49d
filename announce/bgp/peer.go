package bgp

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"sync"
	"time"

	"github.com/ironvip/ironvip/announce"
	"github.com/ironvip/ironvip/announce/bgp/message"
	"github.com/ironvip/ironvip/announce/bgp/session"
	"github.com/ironvip/ironvip/announce/bgp/transport"
	"github.com/ironvip/ironvip/announce/bgp/unnumbered"
	"github.com/ironvip/ironvip/internal/backoff"
	"github.com/ironvip/ironvip/internal/wake"
)

// The pauses between attempts to connect. RFC 4271 suggests 120 s, which would be an outage of its
// own after a router's restart.
const (
	minRetry = 250 * time.Millisecond
	maxRetry = 5 * time.Second
	// stable is how long a session must last until the next failure is retried quickly. A router
	// that ends each session at once (maximum prefixes) must not be flooded.
	stable = 10 * time.Second
)

// dialer opens connections. Tests replace TCP.
type dialer func(ctx context.Context, p *announce.BGPPeer, router netip.Addr) (net.Conn, error)

// peer is one router: it connects or waits for the router's connection, runs the session, and tries again.
type peer struct {
	speaker   *Speaker
	config    announce.BGPPeer
	settings  session.Settings
	previous  *peer                   // with the same name; run waits for its end
	cancel    context.CancelCauseFunc // ends the peer for good
	done      chan struct{}           // closed at the end of run
	inherited *HandedOver             // the session of an earlier process; nil: none
	wake      wake.Signal             // options have changed
	verdict   error                   // the last NOTIFICATION of either side, until something else happens

	// Of a passive peer, see accept.go.
	of      string        // the range that it belongs to, with whose connections the peer ends; "": none
	arrived chan net.Conn // what the router has opened
	turn    sync.Mutex    // held by the connection that has the session

	mu       sync.Mutex
	now      options
	session  Session
	since    time.Time               // when the session of an earlier process was established; zero: it is a new one
	reported string                  // the last reason in the log
	abort    context.CancelCauseFunc // ends the current connection
	asked    *attempt                // the newest connection whose router has not sent its OPEN; nil: none
}

func newPeer(s *Speaker, o options, previous *peer) *peer {
	p := &peer{speaker: s, config: o.BGPPeer, settings: session.Settings{BGPPeer: o.BGPPeer, RouterID: s.config.RouterID}, previous: previous,
		done: make(chan struct{}), arrived: make(chan net.Conn), wake: wake.New(), now: o,
		session: Session{Peer: o.Name(), Address: o.Peer, Since: time.Now()}}
	if o.Passive {
		p.session.State = session.Active
	}
	return p
}

func (p *peer) options() options {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.now
}

func (p *peer) setOptions(o options) {
	p.mu.Lock()
	p.now = o
	p.mu.Unlock()
	p.wake.Set()
}

func (p *peer) status() Session {
	p.mu.Lock()
	defer p.mu.Unlock()
	s := p.session
	s.Draining, s.Config = p.now.draining, p.now.BGPPeer
	return s
}

// endSession ends the current connection, if any.
func (p *peer) endSession(reason error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.abort != nil {
		p.abort(reason)
	}
}

// set changes the session, and reports a change of the state or of the reason. It also reports that the first prefixes, or
// those after a quiet time, were sent.
func (p *peer) set(change func(*Session)) {
	p.mu.Lock()
	before := p.session
	change(&p.session)
	// Attempts that fail don't hide since when there is no session.
	if up := p.session.State == session.Established; up != (before.State == session.Established) {
		p.session.Since = time.Now()
		if up {
			if !p.since.IsZero() {
				p.session.Since, p.since = p.since, time.Time{}
			}
			p.session.Reason, p.session.Hint = "", ""
			p.session.Established++
		}
	}
	s := p.session
	s.Draining = p.now.draining
	p.mu.Unlock()
	switch {
	case s.State != before.State || s.Reason != before.Reason:
		p.speaker.report(p, s)
	case before.Sending.IsZero() || !s.Sending.IsZero():
	case before.Prefixes == [message.Families]int{} || time.Since(before.Sending) > quiet:
		p.speaker.tell(s)
	}
}

// quiet is how long nothing must have been sent before prefixes whose sending is reported, so that a burst is one report.
const quiet = 100 * time.Millisecond

// Update implements session.Owner.
func (p *peer) Update(change func(*session.Status)) {
	p.set(func(s *Session) { change(&s.Status) })
}

// Attributes implements session.Owner.
func (p *peer) Attributes(r announce.Route) (message.PathAttributes, bool) {
	o := p.options()
	return o.path(r)
}

// AttributesChanged implements session.Owner.
func (p *peer) AttributesChanged() <-chan struct{} { return p.wake }

// KeepsRoutes implements session.Owner. A passive peer is not recorded: whether the router has restarted itself, too, which
// forbids the R bit, shows only when this host connects.
func (p *peer) KeepsRoutes(keeps bool) {
	if !p.config.Passive {
		p.speaker.record.set(p.config.Name(), keeps)
	}
}

func (p *peer) run(ctx context.Context) {
	if p.config.Passive {
		p.accept(ctx)
	} else {
		p.connect(ctx)
	}
}

// connect opens connections and runs their sessions until the context ends.
func (p *peer) connect(ctx context.Context) {
	var found *unnumbered.Discovery
	if p.config.Interface != "" {
		found = unnumbered.New(p.config.Interface)
		inner, cancel := context.WithCancel(ctx)
		defer cancel()
		p.speaker.running.Go(func() { found.Run(inner) })
	}
	retry := backoff.Backoff{Lo: minRetry, Hi: maxRetry}
	// restarted is the time until which the router may keep routes of an earlier run. It is zero
	// without an earlier run, and after the first session of this one.
	var restarted time.Time
	if p.speaker.record.has(p.config.Name()) {
		restarted = time.Now().Add(session.RestartTime)
	}
	for ctx.Err() == nil {
		router := p.config.Peer
		if p.inherited != nil {
			router = p.inherited.Router
		} else if found != nil {
			var err error
			if router, err = found.Router(ctx); err != nil { // which has taken its time
				if ctx.Err() == nil {
					p.failed(err)
				}
				continue
			}
		}
		up, err := p.connection(ctx, router, restarted)
		if ctx.Err() != nil {
			return
		}
		// A router without a listener has restarted itself, and waits for this host's routes as if
		// they were new. The R bit would tell it not to wait (RFC 4724, 4.1).
		if up > 0 || errors.Is(err, transport.ErrRefused) {
			restarted = time.Time{}
		}
		p.failed(err)
		if up >= stable {
			retry.Reset()
		}
		if !backoff.Sleep(ctx, retry.Next()) {
			return
		}
	}
}

// failed shows why there is no session. A router that has ended a session refuses connections for a
// while, which must not hide the reason for which it ended the session.
func (p *peer) failed(err error) {
	reason, cause := err.Error(), err
	var sent *message.Notification
	var received *session.NotificationReceived
	switch {
	case errors.As(err, &sent), errors.As(err, &received):
		p.verdict = err
	case p.verdict != nil && (errors.Is(err, transport.ErrRefused) || errors.Is(err, session.ErrNoOpen)):
		reason, cause = fmt.Sprintf("%v (since then: %v)", p.verdict, err), p.verdict
	default:
		p.verdict = nil
	}
	resting := session.Idle
	if p.config.Passive {
		resting = session.Active
	}
	p.set(func(s *Session) { s.State, s.Reason, s.Hint = resting, reason, hint(cause) })
}

// connection opens a connection and runs its session. Until the time restarted, the session is that
// of a restarted process. connection returns how long the session was established, and why it ended.
func (p *peer) connection(ctx context.Context, router netip.Addr, restarted time.Time) (up time.Duration, err error) {
	ctx, abort := context.WithCancelCause(ctx)
	defer abort(nil)
	p.mu.Lock()
	p.abort = abort
	p.mu.Unlock()
	p.set(func(s *Session) { s.State, s.Address = session.Connect, router })
	if p.inherited != nil {
		return p.resume().Run(ctx)
	}
	dialing, cancel := context.WithTimeout(ctx, connectTimeout)
	conn, err := p.speaker.dial(dialing, &p.config, router)
	cancel()
	if err != nil {
		return 0, err
	}
	return session.New(p.settings, conn, time.Now().Before(restarted), p.speaker.routes, p).Run(ctx)
}

// resume returns the session of an earlier process.
func (p *peer) resume() *session.Session {
	h := p.inherited
	p.inherited = nil
	p.mu.Lock()
	p.since = h.Kept.Since
	p.mu.Unlock()
	return session.Resume(p.settings, h.Conn, h.Kept, p.speaker.routes, p)
}
