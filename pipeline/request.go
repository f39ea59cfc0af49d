package pipeline

import (
	"slices"

	"github.com/ironvip/ironvip/vip"
)

// sameRequest reports whether two versions of a service request the same from the allocator. If
// they do, an answer without problems remains valid: the allocator doesn't use weights or labels.
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
