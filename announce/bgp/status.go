package bgp

import (
	"net/netip"
	"time"
)

// State is the state of a session (RFC 4271, 8.2.2). Active doesn't occur: this speaker doesn't
// listen.
type State uint8

// The states of a session.
const (
	Idle        State = iota // waits for the next attempt
	Connect                  // opens the connection
	OpenSent                 // waits for the router's OPEN
	OpenConfirm              // waits for the router's confirmation
	Established
)

func (s State) String() string {
	return [...]string{"idle", "connect", "open sent", "open confirm", "established"}[s]
}

// Session is the state of a peer for operators. It is a copy.
type Session struct {
	Peer    string     // the peer's name: its address, or its interface
	Address netip.Addr // of the router; invalid while an unnumbered one is unknown
	ASN     uint32     // of the router, as configured
	State   State
	Since   time.Time // since when it is established, or since when it is not
	// Reason is why the session is not established: the error of the last attempt. "" if it is, or
	// if the first attempt is under way.
	Reason string
	// Warning is what the established session can't do, such as a family that the router lacks.
	Warning string

	RouterID        netip.Addr    // of the router
	HoldTime        time.Duration // negotiated; 0: no hold timer
	GracefulRestart bool          // both sides have it
	Prefixes        [2]int        // announced IPv4 and IPv6 prefixes
	Draining        bool
	Established     uint64 // how often the session came up
}
