package ipam

import (
	"cmp"
	"fmt"
	"net/netip"
	"slices"

	"github.com/ironvip/ironvip/vip"
)

// Resource is what can be leased: an address or a node port.
type Resource struct {
	Addr     netip.Addr   // set for an address
	NodePort uint16       // set for a node port
	Protocol vip.Protocol // set for a node port
}

// String returns "192.0.2.10" or "node port 30080/tcp".
func (r Resource) String() string {
	if r.Addr.IsValid() {
		return r.Addr.String()
	}
	return fmt.Sprintf("node port %d/%s", r.NodePort, r.Protocol)
}

// Compare orders addresses, then node ports by number and protocol.
func (r Resource) Compare(o Resource) int {
	if r.Addr.IsValid() != o.Addr.IsValid() {
		return -r.Addr.Compare(o.Addr) // an invalid address is below all others
	}
	return cmp.Or(r.Addr.Compare(o.Addr), cmp.Compare(r.NodePort, o.NodePort), cmp.Compare(r.Protocol, o.Protocol))
}

// Lease is one resource that is assigned to services. A lease is durable before it is visible.
type Lease struct {
	Resource Resource
	Pool     string
	State    LeaseState
	ShareKey string
	Holders  []Holder    // oldest first; of a cooling lease, the last holder; of a reserved one, the service it is for, if any
	Since    vip.Instant // when the first holder got it; of a reserved lease, when it was reserved
	Until    vip.Instant // of a cooling lease: when any service may have it
	// Reservation keeps an address after its holders; nil: it cools down then. It is shared:
	// nobody may change it.
	Reservation *Reservation
	Reason      string // of a blocked lease: what the store has instead, and where
}

// Reservation is an operator's mark on an address: nobody else gets the address, while it is held
// and afterwards, until the operator removes the mark.
type Reservation struct {
	For   vip.ServiceKey // zero: for any service that requests the address by its number
	Since vip.Instant
}

// Holder is one service's share of a lease. An address with several holders has a share key.
type Holder struct {
	Service vip.ServiceKey
	Source  string      // the source of the service
	Port    vip.PortKey // of a node port: the service port it belongs to, or vip.HealthPortKey
	// Ports are the ports of the service on a shared address, sorted. No other holder may have a
	// port that overlaps them. It is empty on an address that can't be shared.
	Ports []vip.PortKey
	// Node is the host that last wrote this holder; "" if the store is one host's alone.
	Node string
}

// LeaseState is the state of a lease. The zero LeaseState is none.
type LeaseState uint8

const (
	// Held leases have holders.
	Held LeaseState = iota + 1
	// Cooling leases wait until Until before any service but their last holder may have them.
	Cooling
	// Blocked marks a resource for which the store has something that it can't read and never
	// overwrites, so that nobody gets the resource. It has a Reason. Its Holders are the services
	// that, according to the store, hold the resource, with their names only; it counts among
	// what those services hold.
	Blocked
	// Reserved leases have a Reservation and are not held. Their only holder is the service that
	// they are for; they have none if they are for no service.
	Reserved
)

var leaseStates = [...]string{"", Held: "held", Cooling: "cooling", Blocked: "blocked", Reserved: "reserved"}

// String returns "held", "cooling", "blocked" or "reserved", and "" for none.
func (s LeaseState) String() string { return leaseStates[s] }

// Equal reports whether two leases have equal contents.
func (l Lease) Equal(m Lease) bool {
	return l.Resource == m.Resource && l.Pool == m.Pool && l.State == m.State && l.ShareKey == m.ShareKey &&
		l.Since == m.Since && l.Until == m.Until && l.Reason == m.Reason && slices.EqualFunc(l.Holders, m.Holders, Holder.Equal) &&
		(l.Reservation == m.Reservation || l.Reservation != nil && m.Reservation != nil && *l.Reservation == *m.Reservation)
}

// Equal reports whether two holders have equal contents.
func (h Holder) Equal(g Holder) bool {
	return h.Service == g.Service && h.Source == g.Source && h.Port == g.Port && h.Node == g.Node && slices.Equal(h.Ports, g.Ports)
}

// HeldBy returns the index of a service among the holders of a held lease, or -1.
func (l Lease) HeldBy(k vip.ServiceKey) int {
	if l.State != Held {
		return -1
	}
	return slices.IndexFunc(l.Holders, func(h Holder) bool { return h.Service == k })
}

// KeptFor reports whether nobody holds the lease and the service may have it at any time: it cools
// down for the service or is reserved for it.
func (l Lease) KeptFor(k vip.ServiceKey) bool {
	return (l.State == Cooling || l.State == Reserved) && len(l.Holders) > 0 && l.Holders[0].Service == k
}

// Unheld returns the lease of an address that has a Reservation as nobody holds it. Last is the last holder; it
// may be nil.
func (l Lease) Unheld(last *Holder) *Lease {
	l.State, l.ShareKey, l.Since, l.Until, l.Holders = Reserved, "", l.Reservation.Since, 0, nil
	if k := l.Reservation.For; k != (vip.ServiceKey{}) {
		h := Holder{Service: k}
		if last != nil && last.Service == k {
			h.Source, h.Node = last.Source, last.Node
		}
		l.Holders = []Holder{h}
	}
	return &l
}

// HolderOf returns a service's entry in a lease of any state, or nil.
func (l *Lease) HolderOf(k vip.ServiceKey) *Holder {
	if i := slices.IndexFunc(l.Holders, func(h Holder) bool { return h.Service == k }); i >= 0 {
		return &l.Holders[i]
	}
	return nil
}
