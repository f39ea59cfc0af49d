package ipam

import (
	"fmt"
	"net/netip"
	"time"

	"github.com/ironvip/ironvip/vip"
)

// Pool is a named set of addresses to give out.
type Pool struct {
	Name       string         // a DNS label, unique
	CIDRs      []netip.Prefix // IPv4, IPv6 or both; masked; used in this order
	Exclude    []netip.Prefix // never given out
	AutoAssign bool           // for services that name no pool; the first such pool is used
}

// PortRange is a range of ports, both ends included.
type PortRange struct{ First, Last uint16 }

func (r PortRange) String() string { return fmt.Sprintf("%d-%d", r.First, r.Last) }

func (r PortRange) size() uint64 { return uint64(r.Last) - uint64(r.First) + 1 }

// Config is what an operator says of addresses. The zero Config has no pools
// and nothing cools down.
type Config struct {
	Pools     []Pool
	PodCIDRs  []netip.Prefix // never given out; no pool may overlap them
	NodePorts PortRange      // zero is DefaultNodePorts
	// ReuseDelay is how long a released resource is kept for its last holder; 0
	// is not at all. DefaultReuseDelay is what a configuration should default to.
	ReuseDelay time.Duration
	// OrphanGrace is how long a lease is kept whose service no source names, once
	// the sources have told their services. Zero is DefaultOrphanGrace.
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

// PoolStatus is how a pool fares. Numbers stop at 2^64-1, which IPv6 reaches.
type PoolStatus struct {
	Pool
	Removed bool   // not in the configuration any more, but addresses of it are held
	Size    uint64 // addresses that the configuration allows to be given out, used or not
	Used    uint64 // held, wherever they are now
	Cooling uint64
	HeldOut uint64 // of Size: not given out because something else has them
	Free    uint64
	Alarms  []vip.Problem // what is wrong and what was held out, sorted
}
