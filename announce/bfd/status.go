package bfd

import (
	"fmt"
	"time"
)

// State is the state of a session, with the numbers of RFC 5880, 4.1.
type State uint8

// The states of a session.
const (
	AdminDown State = iota
	Down
	Init
	Up
)

var stateWords = [...]string{"admin down", "down", "init", "up"}

func (s State) String() string { return stateWords[s&3] }

// Diag is the reason of the last change to Down, as sent to the peer (RFC 5880, 4.1).
type Diag uint8

// The reasons that this package sends.
const (
	DiagNone      Diag = 0
	DiagExpired   Diag = 1 // no packet within the detection time
	DiagNeighbor  Diag = 3 // the peer signaled down
	DiagAdminDown Diag = 7
)

var diagWords = [...]string{"no diagnostic", "control detection time expired", "echo function failed", "neighbor signaled session down",
	"forwarding plane reset", "path down", "concatenated path down", "administratively down", "reverse concatenated path down"}

func (d Diag) String() string {
	if int(d) < len(diagWords) {
		return diagWords[d]
	}
	return fmt.Sprintf("diagnostic %d", uint8(d))
}

// Status is the state of a session for operators.
type Status struct {
	Key
	State State
	Since time.Time // of the state
	// Failed means that the session was up and went down because of the path or the peer: what the
	// peer announced or receives through this path should no longer be used. A session that was
	// never up, or that the peer has shut down (RFC 5882, 3.2 and 4.2) or has begun anew, has not
	// failed.
	Failed bool
	Reason string        // why it is not up; "" if it is
	Detect time.Duration // the negotiated detection time; 0 if it is not up
	Downs  uint64        // how often it has failed since it was added
}
