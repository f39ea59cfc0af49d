package reconcile

import (
	"net/netip"
	"time"

	"github.com/ironvip/ironvip/vip"
)

// Connection is one connection, or the session of a UDP client.
type Connection struct {
	Frontend vip.FrontendKey
	Client   netip.AddrPort // as announced by a PROXY header; port 0 in the state StateAffinity
	Backend  netip.AddrPort
	State    string        // as the dataplane names it: "ESTABLISHED"
	Expires  time.Duration // until it ends if nothing is sent; 0: unknown
}

// The states of connections that are not states of TCP.
const (
	// StateAffinity is the record of the backend that a client's next connection goes to.
	StateAffinity = "AFFINITY"
	// StateUDP is the state of each UDP client.
	StateUDP = "UDP"
)
