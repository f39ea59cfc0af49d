package ipam

import (
	"fmt"
	"net/netip"
	"slices"
	"time"

	"github.com/ironvip/ironvip/ipam/internal/pool"
	"github.com/ironvip/ironvip/vip"
)

// Pool is a named set of addresses to allocate from: its Name, CIDRs and Exclude, and AutoAssign.
type Pool = pool.Config

// CheckPools returns all problems of pools: of each alone, with each other, and with the ranges of
// pods. An allocator must not run with them unless IsWarning is true for each. A field is written
// "pool[0].cidrs[1]".
func CheckPools(pools []Pool, podCIDRs []netip.Prefix) []vip.Problem {
	return pool.Check(pools, podCIDRs)
}

// IsWarning reports whether the pools are usable despite a problem of CheckPools or an alarm.
func IsWarning(p vip.Problem) bool { return pool.IsWarning(p) }

// PortRange is a range of ports, both ends included.
type PortRange struct{ First, Last uint16 }

func (r PortRange) contains(p uint16) bool { return r.First <= p && p <= r.Last }

func (r PortRange) String() string { return fmt.Sprintf("%d-%d", r.First, r.Last) }

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

// fatalProblems returns the problems with which an allocator must not run.
func fatalProblems(cfg Config) []vip.Problem {
	problems := slices.DeleteFunc(CheckPools(cfg.Pools, cfg.PodCIDRs), IsWarning)
	if r := cfg.NodePorts; r.First == 0 || r.Last < r.First {
		problems = append(problems, vip.Problem{
			Code: vip.CodeInvalid, Field: "node_ports", Message: fmt.Sprintf("node ports %s are not a range", r), Hint: `write it as "30000-32767"`,
		})
	}
	return problems
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
