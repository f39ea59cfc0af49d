package pipeline

import (
	"slices"

	"github.com/ironvip/ironvip/vip"
)

// sameRequest reports whether two forms of a service ask the allocator for the
// same. While they do, an answer without problems holds: a new weight or label
// is no question to the allocator.
func sameRequest(a, b *vip.Service) bool {
	return a.Source == b.Source &&
		a.Pool == b.Pool &&
		a.ShareKey == b.ShareKey &&
		a.Families == b.Families &&
		a.Assigned == b.Assigned &&
		a.HealthPort == b.HealthPort &&
		a.DrainTimeout == b.DrainTimeout &&
		slices.Equal(a.VIPs, b.VIPs) &&
		slices.Equal(a.Ports, b.Ports)
}
