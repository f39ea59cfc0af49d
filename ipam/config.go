package ipam

import (
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"time"

	"github.com/ironvip/ironvip/vip"
)

// PortRange is a range of ports, both ends included.
type PortRange struct{ First, Last uint16 }

// Contains reports whether a port is in the range.
func (r PortRange) Contains(p uint16) bool { return r.First <= p && p <= r.Last }

// String returns "30000-32767".
func (r PortRange) String() string { return fmt.Sprintf("%d-%d", r.First, r.Last) }

// Config is the operator's configuration of addresses. The zero Config has no pools and no cooldown.
type Config struct {
	Pools     []Pool
	Quotas    []Quota        // one for a namespace
	PodCIDRs  []netip.Prefix // never allocated; no pool may overlap them
	NodePorts PortRange      // zero: DefaultNodePorts
	// ReuseDelay is how long a released resource is kept for its last holder. Zero is no time, so
	// a configuration should default to DefaultReuseDelay.
	ReuseDelay time.Duration
	// OrphanGrace is how long the leases of an orphan are kept, from when all sources have reported
	// their services. Zero: DefaultOrphanGrace.
	OrphanGrace time.Duration
}

// DefaultNodePorts is the range that Kubernetes uses.
var DefaultNodePorts = PortRange{First: 30000, Last: 32767}

// The defaults of a Config's times.
const (
	DefaultReuseDelay  = 5 * time.Minute
	DefaultOrphanGrace = 5 * time.Minute
)

// WithDefaults returns the configuration with defaults in place of what is zero.
func (c Config) WithDefaults() Config {
	if c.NodePorts == (PortRange{}) {
		c.NodePorts = DefaultNodePorts
	}
	if c.OrphanGrace <= 0 {
		c.OrphanGrace = DefaultOrphanGrace
	}
	c.ReuseDelay = max(0, c.ReuseDelay)
	return c
}

// Pool is a named set of addresses to allocate from.
type Pool struct {
	Name       string         // a DNS label, unique
	CIDRs      []netip.Prefix // IPv4, IPv6 or both; masked; used in this order
	Exclude    []netip.Prefix // never allocated
	AutoAssign bool           // for services that name no pool; the first pool that has it is used
	Namespaces []string       // of services that may have its addresses; none: all. Held addresses stay
}

// Serves reports whether services of a namespace may have addresses of the pool.
func (p *Pool) Serves(namespace string) bool {
	return len(p.Namespaces) == 0 || slices.Contains(p.Namespaces, namespace)
}

// Quota bounds what the services of a namespace may hold. Held addresses stay.
type Quota struct {
	Namespace string
	Addresses uint64 // over all pools, shared ones once
	Services  int    // with addresses
}

// HeldOut is a part of a pool that is not allocated because something else has it.
type HeldOut struct {
	Prefix netip.Prefix
	Reason Reason
	Detail string // "this host's own address on eth0"
}

// Reason is why a part of a pool is held out.
type Reason string

// The reasons.
const (
	OwnAddress Reason = "own_address" // the host has the address
	Gateway    Reason = "gateway"     // of the host
	SubnetEnd  Reason = "subnet_end"  // network or broadcast address of a subnet of the host
	Overlap    Reason = "overlap"     // the configuration or a source says that the range is in use
)

// PoolStatus is the state of a pool. Numbers stop at 2^64-1, which IPv6 reaches.
type PoolStatus struct {
	Pool
	Removed  bool              // no longer in the configuration, but has leases
	Size     uint64            // addresses that the configuration allows, used or not
	Used     uint64            // held, in any range
	UsedBy   map[string]uint64 // how much of Used each namespace has
	Cooling  uint64
	Reserved uint64 // and not held
	Outside  uint64 // held, and in no pool any more
	HeldOut  uint64 // part of Size that is not allocated because something else has it
	// HeldOutRanges are these addresses and why; at most 256.
	HeldOutRanges []HeldOut
	Free          uint64
	Alarms        []vip.Problem // sorted
}

// Released is a service that gives up everything it holds.
type Released struct {
	Service  vip.ServiceKey
	Cooldown time.Duration
}

// Reserving says what to reserve: an address, or any free one of a pool.
type Reserving struct {
	Addr   netip.Addr     // invalid: one of Pool
	Pool   string         // without Addr
	Family vip.Family     // of the address from Pool; zero: the pool's, IPv4 if it has both
	For    vip.ServiceKey // zero: for any service that requests the address by its number
}

// ErrNotReserved says that an address has no lease to remove a reservation from.
var ErrNotReserved = errors.New("not reserved")
