package session

import (
	"bufio"
	"context"
	"errors"
	"io"
	"net"
	"net/netip"
	"sync/atomic"
	"time"

	"github.com/ironvip/ironvip/announce"
	"github.com/ironvip/ironvip/announce/bgp/message"
	"github.com/ironvip/ironvip/internal/parallel"
	"github.com/ironvip/ironvip/internal/wake"
)

// notifyTimeout bounds the delivery of a NOTIFICATION.
const notifyTimeout = time.Second

// Settings are the settings of a session.
type Settings struct {
	announce.BGPPeer
	RouterID netip.Addr // of this host
}

// Owner is the peer that a session belongs to.
type Owner interface {
	// Update changes the status.
	Update(change func(*Status))
	// Attributes returns the attributes of a route, and whether the router gets it.
	Attributes(announce.Route) (message.PathAttributes, bool)
	// AttributesChanged returns a channel that receives a value after a change of the attributes.
	AttributesChanged() <-chan struct{}
	// HandOver is called with a session that goes on in the next process. The owner has the connection then.
	HandOver(c net.Conn, kept Kept)
	// KeepsRoutes is called with whether the router keeps the routes if this process ends now.
	KeepsRoutes(keeps bool)
}

// Session is one session. Create it with New and use it for one Run.
type Session struct {
	Settings
	owner     Owner
	routes    LocRIB
	conn      net.Conn
	reader    *bufio.Reader
	restarted bool  // for the OPEN
	resumed   *Kept // nil: a new session

	state   State
	remote  message.Open
	hold    time.Duration // negotiated; 0: none
	upSince time.Time     // zero: was not established

	out       *adjRIBOut // nil before it is established
	unsent    []byte     // messages
	torn      bool       // a write ended in the middle of a message
	refreshed [message.Families]atomic.Bool
	refresh   wake.Signal   // a family is to be sent again
	reading   chan struct{} // closed at the end of the reading goroutine; nil before its start
	readErr   error         // its end
	stopped   atomic.Bool   // it is to end
}

// New returns a session on a connection, which it owns. restarted says that the router may have
// kept the routes of an earlier process.
func New(s Settings, c net.Conn, restarted bool, routes LocRIB, owner Owner) *Session {
	return &Session{Settings: s, owner: owner, routes: routes, conn: c, reader: bufio.NewReaderSize(c, message.MaxSize), restarted: restarted,
		refresh: wake.New()}
}

// NotificationReceived is the end of a session by the router's NOTIFICATION.
type NotificationReceived struct {
	Code, Subcode uint8
	text          string // what it means for this host
}

func (e *NotificationReceived) Error() string { return e.text }

// errRestart ends sessions so that peers with graceful restart keep the routes: a NOTIFICATION
// would make them remove the routes.
var errRestart = context.Canceled

// Run runs the session until it fails or the context ends, and closes the connection. The router is
// notified of a cause of the context that is a *message.Notification. Otherwise this process
// restarts: a router with graceful restart keeps the routes. Run returns how long the session was
// established, 0 if it never was, and why it ended.
func (s *Session) Run(ctx context.Context) (up time.Duration, err error) {
	if s.resumed == nil {
		release := interrupt(ctx, s.conn.SetDeadline)
		err = parallel.Recovered(s.handshake)
		release()
	}
	if err == nil && ctx.Err() == nil {
		release := interrupt(ctx, s.conn.SetWriteDeadline)
		err = parallel.Recovered(func() error { return s.established(ctx) })
		release()
	}
	if ctx.Err() != nil {
		err = context.Cause(ctx)
	}
	var kept Kept
	handOver := false
	if errors.Is(err, ErrHandOver) {
		kept, handOver = s.handOver()
	}
	if handOver {
		s.owner.HandOver(s.conn, kept)
	} else {
		s.close(err)
	}
	if !s.upSince.IsZero() {
		up = max(time.Since(s.upSince), 1)
	}
	return up, err
}

// interrupt ends blocked calls at the end of the context. The returned function waits until no more
// deadline is set.
func interrupt(ctx context.Context, setDeadline func(time.Time) error) (release func()) {
	done := make(chan struct{})
	stop := context.AfterFunc(ctx, func() {
		defer close(done)
		setDeadline(time.Unix(1, 0))
	})
	return func() {
		if !stop() {
			<-done
		}
	}
}

// enter changes the state, and with it the status.
func (s *Session) enter(state State, change func(*Status)) {
	s.state = state
	s.owner.Update(func(st *Status) {
		st.State = state
		if change != nil {
			change(st)
		}
	})
}

// restarts reports whether the router keeps the routes when this process restarts.
func (s *Session) restarts() bool { return s.remote.GracefulRestart }

// close ends the connection, with a NOTIFICATION if err is one.
func (s *Session) close(err error) {
	var n *message.Notification
	var received *NotificationReceived
	switch {
	case errors.As(err, &n):
	case errors.Is(err, errRestart) && !s.restarts():
		n = &message.Notification{Code: message.CodeCease, Subcode: message.CeaseShutdown, Text: "this host restarts"}
	}
	if n != nil || errors.As(err, &received) { // a NOTIFICATION ends graceful restart
		s.owner.KeepsRoutes(false)
	}
	if n != nil && !s.torn {
		s.notify(n)
	}
	s.conn.Close()
	if s.reading != nil {
		<-s.reading
	}
}

// notify sends a NOTIFICATION and waits for the router's end of the connection: Close would reset a
// connection with unread bytes, and the NOTIFICATION could be lost.
func (s *Session) notify(n *message.Notification) {
	s.conn.SetWriteDeadline(time.Now().Add(notifyTimeout))
	if _, err := s.conn.Write(n.Append(nil)); err != nil {
		return
	}
	half, ok := s.conn.(interface{ CloseWrite() error })
	if !ok || half.CloseWrite() != nil {
		return
	}
	if s.reading == nil {
		s.conn.SetReadDeadline(time.Now().Add(notifyTimeout))
		io.Copy(io.Discard, s.conn)
		return
	}
	timer := time.NewTimer(notifyTimeout)
	defer timer.Stop()
	select {
	case <-s.reading:
	case <-timer.C:
	}
}
