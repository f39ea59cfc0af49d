package connect

import (
	"fmt"
	"slices"

	"github.com/ironvip/ironvip/plane/kernel/usage"
	"github.com/ironvip/ironvip/vip"
)

// schedulers are those whose choice needs no numbers of open connections.
var schedulers = []vip.Scheduler{vip.RoundRobin, vip.WeightedRoundRobin, vip.SourceHash, vip.MaglevHash}

// Left returns why f is left to the dataplane, which serves it exactly; "" if it isn't.
func Left(f *vip.Frontend) string {
	family := vip.FamilyOf(f.Key.Addr)
	switch {
	case f.Kind == vip.OnRealServer:
		return "a real server"
	case f.Key.Protocol != vip.TCP && f.Key.Protocol != vip.UDP:
		return fmt.Sprintf("protocol %s", f.Key.Protocol)
	case f.Key.Ranged():
		return "a range of ports"
	case !slices.Contains(schedulers, f.Scheduler):
		return fmt.Sprintf("scheduler %q", f.Scheduler)
	case f.SchedulerPort, f.OnePacket:
		return "scheduler_flags"
	case usage.Forward(f) != vip.ForwardNAT:
		return fmt.Sprintf("forward %q", usage.Forward(f))
	case len(f.SourceRanges) > 0:
		return "source_ranges"
	case f.Relay != nil:
		return "settings of relayed connections"
	case slices.ContainsFunc(f.Backends, func(b vip.Endpoint) bool { return b.MaxConnections > 0 }):
		return "max_connections of a backend"
	case slices.ContainsFunc(f.Backends, func(b vip.Endpoint) bool { return vip.FamilyOf(b.Addr.Addr()) != family || b.Addr.Port() == 0 }):
		return "a backend of another family or without a port"
	}
	return ""
}

// normal returns f as this package programs it.
func normal(f *vip.Frontend) vip.Frontend {
	n := vip.Frontend{Key: f.Key}
	if Left(f) == "" {
		n.Scheduler, n.Affinity = f.Scheduler, f.Affinity
	}
	for _, b := range f.Backends {
		n.Backends = append(n.Backends, vip.Endpoint{Addr: b.Addr, Weight: b.Weight})
	}
	return n
}

// same reports whether two normal forms are equal.
func same(a, b *vip.Frontend) bool {
	return a.Key == b.Key && a.Scheduler == b.Scheduler && a.Affinity == b.Affinity && slices.Equal(a.Backends, b.Backends)
}
