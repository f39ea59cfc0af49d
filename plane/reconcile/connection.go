package reconcile

import (
	"context"
	"net/netip"
	"time"

	"github.com/ironvip/ironvip/vip"
)

// ConnectionLister is the optional interface of a Plane that can list single connections. Its method may be called
// concurrently with the Plane's other methods, which never wait for it.
type ConnectionLister interface {
	// ListConnections calls yield for each connection to a frontend for which want returns true, in any order, until
	// yield returns false. Connections that begin or end meanwhile may be missing. It keeps at most the connections of
	// one endpoint in memory. want must not block, and is also called for foreign frontends. A connection to a port of
	// a range may have that single port in its key.
	ListConnections(ctx context.Context, want func(vip.FrontendKey) bool, yield func(Connection) bool) error
}

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
