package allocator

import (
	"fmt"
	"net/netip"
	"slices"

	"github.com/ironvip/ironvip/internal/event"
	"github.com/ironvip/ironvip/internal/hostnet"
	"github.com/ironvip/ironvip/ipam"
	"github.com/ironvip/ironvip/ipam/pool"
	"github.com/ironvip/ironvip/vip"
)

// fatalProblems returns the problems with which an allocator must not run.
func fatalProblems(cfg ipam.Config) []vip.Problem {
	problems := slices.DeleteFunc(pool.Check(cfg.Pools, cfg.PodCIDRs), pool.IsWarning)
	if r := cfg.NodePorts; r.First == 0 || r.Last < r.First {
		problems = append(problems, vip.Problem{
			Code: vip.CodeInvalid, Field: "node_ports", Message: fmt.Sprintf("node ports %s are not a range", r), Hint: `write it as "30000-32767"`,
		})
	}
	return problems
}

// Configure applies a new configuration, unless it returns problems. Leases stay as they are,
// wherever the pools are now.
func (a *Allocator) Configure(cfg ipam.Config) []vip.Problem {
	cfg = cfg.WithDefaults()
	if fatal := fatalProblems(cfg); len(fatal) > 0 {
		return fatal
	}
	a.change(true, func() { a.state.Config = cfg })
	return nil
}

// SetHost reports the host's network.
func (a *Allocator) SetHost(s hostnet.Snapshot) { a.change(false, func() { a.state.Host = s }) }

// SetPodCIDRs reports the ranges that are in use by pods, or by Services that somebody else assigns
// addresses to, according to one source. It replaces what that source reported before.
func (a *Allocator) SetPodCIDRs(source string, prefixes []netip.Prefix) {
	a.change(false, func() {
		if len(prefixes) == 0 {
			delete(a.state.Pods, source)
		} else {
			a.state.Pods[source] = slices.Clone(prefixes)
		}
	})
}

// change changes what the pools are made from, and wakes waiting services if that may concern
// them. It costs O(ranges), and O(leases) if configured.
func (a *Allocator) change(configured bool, do func()) {
	a.write.Lock()
	defer a.write.Unlock()
	a.mu.Lock()
	defer a.mu.Unlock()
	do()
	moved := a.state.Rebuild()
	if configured {
		a.state.Recount()
	}
	a.updateAlarms()
	if configured {
		a.changed.Send()
	}
	if configured || moved {
		a.freed.Send()
		a.wake.Set()
	}
}

// updateAlarms finds what is wrong with the pools, and publishes what has changed. The caller holds both locks, or is alone.
func (a *Allocator) updateAlarms() {
	now := a.state.Alarms()
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

// Pools returns the state of the pools in the order of the configuration, followed by those that
// are no longer in it but still have leases. It costs O(ranges), and a step for each word of 64 addresses with used ones.
func (a *Allocator) Pools() []ipam.PoolStatus {
	a.mu.RLock()
	defer a.mu.RUnlock()
	return a.state.Status(a.alarms)
}
