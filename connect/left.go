package connect

import (
	"fmt"
	"slices"
	"time"

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
	case f.Key.Whole():
		return "a program of this host"
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

// settingsOf returns how f is served, without its backends. Both are 0 if it is left to the dataplane.
func settingsOf(f *vip.Frontend) (vip.Scheduler, time.Duration) {
	if Left(f) != "" {
		return 0, 0
	}
	return f.Scheduler, f.Affinity
}

// same reports whether two frontends are the same for this package.
func same(a, b *vip.Frontend) bool {
	scheduler, affinity := settingsOf(a)
	other, otherAffinity := settingsOf(b)
	return a.Key == b.Key && (a.Kind == vip.OnHost) == (b.Kind == vip.OnHost) && scheduler == other && affinity == otherAffinity &&
		slices.EqualFunc(a.Backends, b.Backends, func(x, y vip.Endpoint) bool { return x.Addr == y.Addr && x.Weight == y.Weight })
}
