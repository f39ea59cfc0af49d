package bgp

import (
	"net/netip"
	"time"

	"github.com/ironvip/ironvip/announce/bgp/session"
)

// Session is the state of a peer for operators. It is a copy.
type Session struct {
	Peer    string     // the peer's name: its address, or its interface
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
