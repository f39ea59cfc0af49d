package reconcile

import (
	"context"
	"net/netip"

	"github.com/ironvip/ironvip/vip"
)

// Statistics is the optional interface of a Plane that counts what it carries.
// Its methods may be called at any time and by any goroutine, beside each other
// and the Plane's other methods, which never wait for them.
//
// Counters are the dataplane's own, not accumulated here: they begin at 0 when
// the dataplane makes the frontend or endpoint anew, and only then fall.
type Statistics interface {
	// Counted says what of a Traffic this Plane counts. It never changes.
	Counted() Counted
	// Totals reads the traffic of all frontends that want names, at once. What it
	// asks of the dataplane doesn't depend on how many frontends there are; the
	// time and memory it takes do. A frontend that is changed meanwhile may be
	// missing. The dataplane may have others, of somebody else: want is asked of
	// these, too, and may be asked of any twice. It must not block.
	Totals(ctx context.Context, want func(vip.FrontendKey) bool) (map[vip.FrontendKey]Traffic, error)
	// Breakdown reads one frontend's traffic with that of its endpoints; false
	// when the dataplane doesn't have it. It costs O(its endpoints).
	Breakdown(ctx context.Context, key vip.FrontendKey) (Breakdown, bool, error)
}

// Counted says which parts of a Traffic mean something; the others are 0.
// Connections, Active and bytes are counted by every Plane.
type Counted struct {
	Packets  bool
	Inactive bool
	Rates    bool
}

// Traffic is what has passed a frontend or an endpoint. In is from clients to
// backends, Out is back. Bytes and packets are counted as the dataplane sees
// them: IPVS counts whole IP packets, the userspace proxy their payload.
type Traffic struct {
	// Connections is how many connections were given to an endpoint. A UDP
	// client's address and port count as a connection.
	Connections uint64
	// Active is how many are open: established TCP connections, and UDP clients
	// that were heard of within the timeout.
	Active uint64
	// Inactive is how many more TCP connections are remembered: those being
	// opened, half closed ones, and those that only wait for a timer.
	Inactive uint64
	In, Out  Volume
	Rates    Rates
}

// Volume is an amount of traffic in one direction.
type Volume struct{ Packets, Bytes uint64 }

// Rates are the dataplane's estimates of the last seconds, each a second.
type Rates struct {
	Connections uint64
	In, Out     Volume
}

// Breakdown is a frontend's traffic and that of its present endpoints. The
// frontend's counters hold what endpoints carried that have left since.
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
}

func (v *Volume) add(w Volume) {
	v.Packets += w.Packets
	v.Bytes += w.Bytes
}
