package ipam

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"

	"github.com/ironvip/ironvip/internal/event"
	"github.com/ironvip/ironvip/internal/hostnet"
	"github.com/ironvip/ironvip/ipam/internal/numbers"
	"github.com/ironvip/ironvip/ipam/internal/pool"
	"github.com/ironvip/ironvip/vip"
)

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
		a.changed.send()
	}
	if configured || !a.guard.Same(former) {
		a.freed.send()
		a.nudge()
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

// Pools returns the state of the pools in the order of the configuration, followed by those that
// are no longer in it but still have leases. It costs O(ranges).
func (a *Allocator) Pools() []PoolStatus {
	a.mu.RLock()
	defer a.mu.RUnlock()
	var out []PoolStatus
	for _, p := range a.pools {
		s := PoolStatus{Pool: p.Config, Alarms: slices.Clone(a.alarms[p.Name])}
		for f, r := range p.Ranges {
			s.Size = numbers.AddSaturating(s.Size, r.Usable.Size())
			s.HeldOut = numbers.AddSaturating(s.HeldOut, r.HeldOut)
			s.Free = numbers.AddSaturating(s.Free, r.Free(a.index.addrs[f]))
		}
		if u := a.index.usage[p.Name]; u != nil {
			s.Used, s.Cooling = u.held, u.cooling
		}
		out = append(out, s)
	}
	var removed []PoolStatus
	for name, u := range a.index.usage {
		if a.pool(name) == nil && u.held+u.cooling > 0 {
			removed = append(removed, PoolStatus{
				Pool: Pool{Name: name}, Removed: true, Used: u.held, Cooling: u.cooling,
				Alarms: []vip.Problem{{
					Code:    pool.CodeNotice,
					Message: fmt.Sprintf("pool %q is not in the configuration any more; %d of its addresses are held and stay", name, u.held),
					Hint:    "bring the pool back, or move its services by naming another pool in them",
				}},
			})
		}
	}
	slices.SortFunc(removed, func(a, b PoolStatus) int { return strings.Compare(a.Name, b.Name) })
	return append(out, removed...)
}
