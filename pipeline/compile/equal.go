package compile

import (
	"maps"
	"slices"

	"github.com/ironvip/ironvip/vip"
)

// SameFrontend reports whether a and b request the same from a dataplane, without reflection or
// allocation. It costs O(backends), or O(1) if both have the same slice of backends.
func SameFrontend(a, b vip.Frontend) bool {
	return a.Key == b.Key &&
		a.Kind == b.Kind &&
		a.Service == b.Service &&
		a.Port == b.Port &&
		a.Scheduler == b.Scheduler &&
		a.SchedulerFallback == b.SchedulerFallback &&
		a.SchedulerPort == b.SchedulerPort &&
		a.OnePacket == b.OnePacket &&
		a.Forward == b.Forward &&
		a.Affinity == b.Affinity &&
		a.Masquerade == b.Masquerade &&
		a.DrainTimeout == b.DrainTimeout &&
		a.KeepsOwner == b.KeepsOwner &&
		a.SourceLimits == b.SourceLimits &&
		a.SynProxy == b.SynProxy &&
		vip.SameProxySettings(a.Relay, b.Relay) &&
		slices.Equal(a.SourceRanges, b.SourceRanges) &&
		SameEndpoints(a.Backends, b.Backends)
}

// SameEndpoints reports whether a and b are the same endpoints in the same order, with the same
// weights and deadlines.
func SameEndpoints(a, b []vip.Endpoint) bool {
	if len(a) != len(b) {
		return false
	}
	if len(a) == 0 || &a[0] == &b[0] {
		return true
	}
	return slices.Equal(a, b)
}

// SameAllocation reports whether a and b are equal, including the revision of the service.
func SameAllocation(a, b vip.Allocation) bool {
	return a.Asked == b.Asked &&
		a.ServiceRev == b.ServiceRev &&
		a.Pool == b.Pool &&
		a.Since == b.Since &&
		slices.Equal(a.VIPs, b.VIPs) &&
		a.Reserved == b.Reserved &&
		maps.Equal(a.NodePorts, b.NodePorts) &&
		slices.Equal(a.Problems, b.Problems)
}

// SameService reports whether a and b are equal, including the order of their lists. It costs
// O(ports + backends + labels).
func SameService(a, b vip.Service) bool {
	return a.Key == b.Key &&
		a.Source == b.Source &&
		a.Origin == b.Origin &&
		a.Settings == b.Settings &&
		sameCheck(a.Check, b.Check) &&
		vip.SameProxySettings(a.Relay, b.Relay) &&
		a.Hostnames.Equal(b.Hostnames) &&
		maps.Equal(a.Labels, b.Labels) &&
		slices.Equal(a.VIPs, b.VIPs) &&
		slices.Equal(a.Preferred, b.Preferred) &&
		slices.Equal(a.SourceRanges, b.SourceRanges) &&
		slices.Equal(a.Ports, b.Ports) &&
		slices.Equal(a.Groups, b.Groups) &&
		slices.Equal(a.Backends, b.Backends)
}

func sameCheck(a, b *vip.HealthCheck) bool {
	return a == b || a != nil && b != nil && *a == *b
}

// SameHealth reports whether a and b are equal.
func SameHealth(a, b vip.BackendHealth) bool {
	return a.Backend == b.Backend && slices.Equal(a.Checks, b.Checks)
}
