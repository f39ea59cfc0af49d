package ipam

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"time"

	"github.com/ironvip/ironvip/internal/event"
	"github.com/ironvip/ironvip/internal/hostnet"
	"github.com/ironvip/ironvip/ipam/internal/numbers"
	"github.com/ironvip/ironvip/ipam/internal/pool"
	"github.com/ironvip/ironvip/vip"
)

// Pool is a named set of addresses to allocate from: its Name, CIDRs and Exclude, and AutoAssign.
type Pool = pool.Config

// HeldOut is a part of a pool that is not allocated because something else has it.
type HeldOut = pool.HeldOut

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
	Removed  bool   // no longer in the configuration, but has leases
	Size     uint64 // addresses that the configuration allows, used or not
	Used     uint64 // held, in any range
	Cooling  uint64
	Reserved uint64 // and not held
	HeldOut  uint64 // part of Size that is not allocated because something else has it
	// HeldOutRanges are these addresses and why, with the network and broadcast addresses among them; at most 256.
	HeldOutRanges []HeldOut
	Free          uint64
	Alarms        []vip.Problem // sorted
}

// Configure applies a new configuration, unless it returns problems. Leases stay as they are,
// wherever the pools are now.
func (a *Allocator) Configure(cfg Config) []vip.Problem {
	cfg = cfg.withDefaults()
	if fatal := fatalProblems(cfg); len(fatal) > 0 {
		return fatal
	}
	a.change(true, func() { a.cfg = cfg })
	return nil
}

// SetHost reports the host's network.
func (a *Allocator) SetHost(s hostnet.Snapshot) { a.change(false, func() { a.host = s }) }

// SetPodCIDRs reports the ranges that are in use by pods, or by Services that somebody else assigns
// addresses to, according to one source. It replaces what that source reported before.
func (a *Allocator) SetPodCIDRs(source string, prefixes []netip.Prefix) {
	a.change(false, func() {
		if len(prefixes) == 0 {
			delete(a.pods, source)
		} else {
			a.pods[source] = slices.Clone(prefixes)
		}
	})
}

// change changes what the pools are made from, and wakes waiting services if that may concern
// them. It costs O(ranges).
func (a *Allocator) change(configured bool, do func()) {
	a.write.Lock()
	defer a.write.Unlock()
	a.mu.Lock()
	defer a.mu.Unlock()
	former := a.guard
	do()
	a.rebuild()
	if configured {
		a.changed.Send()
	}
	if configured || !a.guard.Same(former) {
		a.freed.Send()
		a.wake.Set()
	}
}

// rebuild makes the pools and their alarms. The caller holds both locks, or is alone.
func (a *Allocator) rebuild() {
	a.rebuildPools()
	a.updateAlarms()
}

// updateAlarms finds what is wrong with the pools, and publishes what has changed.
func (a *Allocator) updateAlarms() {
	now := make(map[string][]vip.Problem)
	for _, p := range a.pools {
		now[p.Name] = p.Alarms(a.holderOf)
	}
	for name, list := range now {
		for _, p := range list {
			if !slices.Contains(a.alarms[name], p) {
				a.log.Warn("address pool: "+p.Message, "pool", name, "hint", p.Hint)
				a.events.Add(event.Event{Kind: "pool_alarm", Object: name, Message: p.Message})
			}
		}
	}
	for name, list := range a.alarms {
		for _, p := range list {
			if !slices.Contains(now[name], p) {
				a.log.Info("address pool: no longer so: "+p.Message, "pool", name)
				a.events.Add(event.Event{Kind: "pool_alarm_over", Object: name, Message: "no longer so: " + p.Message})
			}
		}
	}
	a.alarms = now
}

// holderOf returns the first holder of an address.
func (a *Allocator) holderOf(addr netip.Addr) (vip.ServiceKey, bool) {
	l, _ := a.lease(Resource{Addr: addr})
	if l.State != Held {
		return vip.ServiceKey{}, false
	}
	return l.Holders[0].Service, true
}

// maxHeldOutRanges bounds the ranges that the state of a pool lists.
const maxHeldOutRanges = 256

// Pools returns the state of the pools in the order of the configuration, followed by those that
// are no longer in it but still have leases. It costs O(ranges).
func (a *Allocator) Pools() []PoolStatus {
	a.mu.RLock()
	defer a.mu.RUnlock()
	var out []PoolStatus
	for _, p := range a.pools {
		s := PoolStatus{Pool: p.Config, Alarms: slices.Clone(a.alarms[p.Name]), HeldOutRanges: p.HeldOut(maxHeldOutRanges)}
		for f, r := range p.Ranges {
			s.Size = numbers.AddSaturating(s.Size, r.Usable.Size())
			s.HeldOut = numbers.AddSaturating(s.HeldOut, r.HeldOut)
			s.Free = numbers.AddSaturating(s.Free, r.Free(a.index.addrs[f]))
		}
		u := a.index.usage[p.Name]
		s.Used, s.Cooling, s.Reserved = u.held, u.cooling, u.reserved
		out = append(out, s)
	}
	var removed []PoolStatus
	for name, u := range a.index.usage {
		if a.pool(name) == nil && u.held+u.cooling+u.reserved > 0 {
			removed = append(removed, PoolStatus{
				Pool: Pool{Name: name}, Removed: true, Used: u.held, Cooling: u.cooling, Reserved: u.reserved,
				Alarms: []vip.Problem{removedNotice(name, u)},
			})
		}
	}
	slices.SortFunc(removed, func(a, b PoolStatus) int { return strings.Compare(a.Name, b.Name) })
	return append(out, removed...)
}

// removedNotice says what the addresses of a removed pool are used for.
func removedNotice(name string, u usage) vip.Problem {
	hint := "add the pool again"
	if u.held > 0 {
		hint += ", or name another pool in its services"
	}
	if u.reserved > 0 {
		hint += ", or end its reservations: ironvip vip release ADDRESS"
	}
	return vip.Problem{
		Code: pool.CodeNotice, Hint: hint,
		Message: fmt.Sprintf("pool %q is not in the configuration any more; of its addresses, %s", name, u),
	}
}
