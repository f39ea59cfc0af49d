package bgp

import (
	"fmt"
	"net/netip"
	"time"

	"github.com/ironvip/ironvip/announce"
	"github.com/ironvip/ironvip/announce/bgp/session"
)

// Session is the state of a peer for operators. It is a copy.
type Session struct {
	Peer    string // the peer's name, see announce.BGPPeer
	Config  announce.BGPPeer
	Address netip.Addr // of the router; invalid while an unnumbered one is unknown
	session.Status
	Since time.Time // since when it is established, or since when it is not
	// Reason is why the session is not established: the error of the last attempt. "" if it is, or
	// if the first attempt is under way.
	Reason      string
	Hint        string // what an operator can do about it, "" if that is not known
	Draining    bool
	Established uint64 // how often the session came up
}

// Range is the state of a range of routers for operators.
type Range struct {
	Name   string
	Reason string    // why its routers can't connect; "": they can
	Since  time.Time // of Reason
}

// Negotiated returns what an established session has negotiated of graceful restart, in words.
func (s *Session) Negotiated() string {
	switch {
	case s.State != session.Established:
		return ""
	case !s.GracefulRestart:
		return "no graceful restart: the router removes the routes while the announcer restarts"
	case s.RouterRestart == 0:
		return fmt.Sprintf("graceful restart: the router keeps the routes for up to %s while the announcer restarts", session.RestartTime)
	}
	return fmt.Sprintf("graceful restart: the router keeps the routes for up to %s while the announcer restarts; its own restart time is %s", session.RestartTime, s.RouterRestart)
}
