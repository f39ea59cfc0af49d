package session

import (
	"net/netip"
	"time"

	"github.com/ironvip/ironvip/announce/bgp/message"
)

// State is the state of a session (RFC 4271, 8.2.2).
type State uint8

// The states of a session.
const (
	Idle        State = iota // waits for the next attempt
	Connect                  // opens the connection
	Active                   // waits for the router's connection
	OpenSent                 // waits for the router's OPEN
	OpenConfirm              // waits for the router's confirmation
	Established
)

func (s State) String() string {
	return [...]string{"idle", "connect", "active", "open sent", "open confirm", "established"}[s]
}

// Status is the state of a session, and what it has negotiated.
type Status struct {
	State State
	// Lacks is why the established session carries no prefixes of a family; "": it does.
	Lacks [message.Families]string
	// Sending is when everything had been sent for the last time, while something waits for the router to read; zero: nothing
	// waits. In a session that has not sent everything once, it is when that was established.
	Sending time.Time

	RouterID        netip.Addr            // of the router
	HoldTime        time.Duration         // 0: no hold timer
	GracefulRestart bool                  // both sides have it: the router keeps the routes for RestartTime
	RouterRestart   time.Duration         // the router's own restart time; 0 with GracefulRestart: it helps others only
	Prefixes        [message.Families]int // IPv4 and IPv6 prefixes that were sent
}
