package ipam

import (
	"fmt"
	"net/netip"
	"time"

	"github.com/ironvip/ironvip/vip"
)

// Pool is a named set of addresses to allocate from.
type Pool struct {
	Name       string         // a DNS label, unique
	CIDRs      []netip.Prefix // IPv4, IPv6 or both; masked; used in this order
	Exclude    []netip.Prefix // never allocated
	AutoAssign bool           // for services that name no pool; the first pool that has it is used
}

// PortRange is a range of ports, both ends included.
type PortRange struct{ First, Last uint16 }

func (r PortRange) String() string { return fmt.Sprintf("%d-%d", r.First, r.Last) }

func (r PortRange) size() uint64 { return uint64(r.Last) - uint64(r.First) + 1 }

// Config is the operator's configuration of addresses. The zero Config has no pools and no cooldown.
type Config struct {
	Pools     []Pool
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

func (c Config) withDefaults() Config {
	if c.NodePorts == (PortRange{}) {
		c.NodePorts = DefaultNodePorts
	}
	if c.OrphanGrace <= 0 {
		c.OrphanGrace = DefaultOrphanGrace
	}
	c.ReuseDelay = max(0, c.ReuseDelay)
	return c
}

// PoolStatus is the state of a pool. Numbers stop at 2^64-1, which IPv6 reaches.
type PoolStatus struct {
	Pool
	Removed bool   // no longer in the configuration, but has leases
	Size    uint64 // addresses that the configuration allows, used or not
	Used    uint64 // held, in any range
	Cooling uint64
	HeldOut uint64 // part of Size that is not allocated because something else has it
	Free    uint64
	Alarms  []vip.Problem // sorted
}
