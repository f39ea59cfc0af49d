package session

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"time"

	"github.com/ironvip/ironvip/announce/bgp/message"
	"github.com/ironvip/ironvip/announce/bgp/transport"
	"github.com/ironvip/ironvip/internal/parallel"
)

const (
	// openTimeout bounds the wait for the router's OPEN. RFC 4271 suggests 4 minutes; routers
	// answer at once, or not at all.
	openTimeout = 30 * time.Second
	// holdTime is what this host proposes (RFC 4271, section 10), and minHoldTime what it accepts (4.2).
	holdTime    = 90 * time.Second
	minHoldTime = 3 * time.Second
	// RestartTime is how long routers keep the routes while this process restarts (RFC 4724).
	RestartTime = 120 * time.Second
)

// AwaitOpen receives the router's OPEN, before this host sends its own and before Run, on a connection that the router
// has opened. So a connection that is not one of BGP, or of another router, has no effect. After an error the connection is
// closed, as at the end of the context.
func (s *Session) AwaitOpen(ctx context.Context) error {
	if s.resumed != nil {
		return nil
	}
	s.conn.SetReadDeadline(time.Now().Add(openTimeout))
	release := interrupt(ctx, s.conn.SetReadDeadline)
	err := parallel.Recovered(s.readOpen)
	release()
	if ctx.Err() != nil {
		err = context.Cause(ctx)
	}
	if err == nil {
		return nil
	}
	var n *message.Notification
	if !errors.As(err, &n) { // A flood of such connections must leave nothing behind, so nothing waits for the other side.
		transport.Reset(s.conn)
		return err
	}
	s.conn.SetWriteDeadline(time.Now().Add(notifyTimeout))
	s.conn.Write(n.Append(nil))
	s.conn.Close()
	return err
}

// readOpen receives the router's OPEN and compares it with the settings.
func (s *Session) readOpen() error {
	typ, body, err := s.read()
	if err != nil {
		return s.broken(err)
	}
	if typ != message.TypeOpen {
		return &message.Notification{Code: message.CodeFSM, Subcode: message.FSMOpenSent, Text: fmt.Sprintf("the router sent %s instead of OPEN", typ)}
	}
	if s.remote, err = message.ParseOpen(body); err != nil {
		return err
	}
	return s.check(&s.remote)
}

// handshake exchanges OPEN and KEEPALIVE messages. AwaitOpen may have received the router's OPEN.
func (s *Session) handshake() error {
	ours := message.Open{ASN: s.LocalASN, HoldTime: holdTime, RouterID: s.RouterID, Capabilities: message.Capabilities{
		Families: [message.Families]bool{true, true}, RouteRefresh: true, ExtendedNextHop: true,
		GracefulRestart: true, RestartTime: RestartTime, Restarted: s.restarted}}
	s.conn.SetDeadline(time.Now().Add(openTimeout))
	if _, err := s.conn.Write(ours.Append(nil)); err != nil {
		return s.broken(err)
	}
	s.enter(OpenSent, nil)
	if !s.remote.RouterID.IsValid() {
		if err := s.readOpen(); err != nil {
			return err
		}
	}
	s.hold = min(holdTime, s.remote.HoldTime)
	if _, err := s.conn.Write(message.AppendKeepalive(nil)); err != nil {
		return s.broken(err)
	}
	s.enter(OpenConfirm, nil)
	typ, _, err := s.read()
	if err != nil {
		return s.broken(err)
	}
	if typ != message.TypeKeepalive {
		return &message.Notification{Code: message.CodeFSM, Subcode: message.FSMOpenConfirm, Text: fmt.Sprintf("the router sent %s instead of KEEPALIVE", typ)}
	}
	s.conn.SetDeadline(time.Time{})
	return nil
}

// check compares the router's OPEN with the settings (RFC 4271, 6.2).
func (s *Settings) check(o *message.Open) error {
	switch {
	case o.ASN != s.ASN:
		return &message.Notification{Code: message.CodeOpen, Subcode: message.OpenBadPeerAS,
			Text: fmt.Sprintf("ASN wrong: the router has ASN %d, the configuration has %d", o.ASN, s.ASN)}
	case o.RouterID.IsUnspecified() || s.IBGP() && o.RouterID == s.RouterID: // RFC 6286, 2.2
		return &message.Notification{Code: message.CodeOpen, Subcode: message.OpenBadIdentifier,
			Text: "router ID wrong: the router has this host's router ID, or 0.0.0.0"}
	case o.HoldTime != 0 && o.HoldTime < minHoldTime:
		return &message.Notification{Code: message.CodeOpen, Subcode: message.OpenHoldTime}
	}
	return nil
}

// lacks returns what the router or this host lacks for each family; "": nothing.
func (s *Session) lacks(nextHop [message.Families]netip.Addr) (why [message.Families]string) {
	for f := range message.Families {
		switch {
		case !s.remote.Families[f]:
			why[f] = fmt.Sprintf("%s prefixes are not announced: the router has not enabled %s unicast for this session", f, f)
		case !nextHop[f].IsValid():
			why[f] = fmt.Sprintf("%s prefixes are not announced: the interface of the session has no %s address for the next hop", f, f)
		}
	}
	return why
}
