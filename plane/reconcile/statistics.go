package reconcile

import (
	"context"
	"net/netip"

	"github.com/ironvip/ironvip/vip"
)

// Statistics are the counters of a Plane. Its methods may be called concurrently with each
// other and with the Plane's other methods, which never wait for them.
//
// Counters are the dataplane's own. They restart at 0 when the dataplane creates the frontend or endpoint again, and
// never decrease otherwise.
type Statistics interface {
	// Counted returns the parts of a Traffic that this Plane counts. It is constant.
	Counted() Counted
	// Totals reads the traffic of all frontends for which want returns true. The
	// number of requests to the dataplane does not depend on the number of
	// frontends; time and memory may. A frontend without traffic, or that changes
	// meanwhile, may be missing. want is also called for foreign frontends, and may be called more
	// than once for a key. It must not block.
	Totals(ctx context.Context, want func(vip.FrontendKey) bool) (map[vip.FrontendKey]Traffic, error)
	// Breakdown reads one frontend's traffic with that of its endpoints. It returns
	// false if the dataplane doesn't have the frontend. It costs O(its endpoints).
	Breakdown(ctx context.Context, key vip.FrontendKey) (Breakdown, bool, error)
}

// Counted has the parts of a Traffic that a Plane counts; the others are 0. Every Plane counts Connections, Active and
// bytes.
type Counted struct {
	Packets   bool
	Inactive  bool
	Rates     bool
	Audiences bool // frontends for internal clients by themselves, and not with those for everyone
}

// Traffic is the traffic of a frontend or an endpoint. In is from clients to backends, Out is the reverse. IPVS and
// nftables count bytes of whole IP packets, the userspace proxy bytes of payload.
type Traffic struct {
	// Connections counts the connections assigned to an endpoint. A UDP client's
	// address and port count as one.
	Connections uint64
	// Active is the number of open ones: established TCP connections, and UDP
	// clients that sent something within the timeout.
	Active uint64
	// Inactive is the number of other TCP connections: those being set up,
	// half-closed ones, and those that only wait for a timer.
	Inactive uint64
	In, Out  Volume
	Rates    Rates
	Refused  Refused
}

// Refused counts the new connections that were refused for a limit of their client, see vip.SourceLimits. The userspace proxy
// counts them with its other refusals instead.
type Refused struct {
	Connections uint64 // beyond MaxConnectionsPerSource
	Rate        uint64 // beyond MaxRatePerSource
	SYNs        uint64 // that the host has answered itself, see vip.Settings.SynProxy; clients that exist have connected
}

// Volume is an amount of traffic in one direction.
type Volume struct{ Packets, Bytes uint64 }

// Rates are the dataplane's estimates for the last seconds, per second.
type Rates struct {
	Connections uint64
	In, Out     Volume
}

// Breakdown is a frontend's traffic and that of its current endpoints. The frontend's counters include removed
// endpoints.
type Breakdown struct {
	Traffic
	Endpoints map[netip.AddrPort]Traffic
}

// Add adds u to t.
func (t *Traffic) Add(u Traffic) {
	t.Connections += u.Connections
	t.Active += u.Active
	t.Inactive += u.Inactive
	t.In.add(u.In)
	t.Out.add(u.Out)
	t.Rates.Connections += u.Rates.Connections
	t.Rates.In.add(u.Rates.In)
	t.Rates.Out.add(u.Rates.Out)
	t.Refused.Connections += u.Refused.Connections
	t.Refused.Rate += u.Refused.Rate
	t.Refused.SYNs += u.Refused.SYNs
}

func (v *Volume) add(w Volume) {
	v.Packets += w.Packets
	v.Bytes += w.Bytes
}
