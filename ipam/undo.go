package ipam

import (
	"time"

	"github.com/ironvip/ironvip/vip"
)

// A host that finds its changes undone leaves the service alone, each time for twice as long,
// between these bounds.
const (
	shortestFreeze = 2 * time.Second
	longestFreeze  = 10 * time.Minute
)

// undoBackoff is about a service with leases that this host changes and other hosts change back. Hosts
// with different definitions of one service would go on like that forever.
type undoBackoff struct {
	times int
	until time.Time // when this host may change the service's leases again
}

// undone has the services of this host's releases and of changes that were undone.
// The caller holds Allocator.write.
type undone map[vip.ServiceKey]undoBackoff

// released notes that this host released what a service had besides what it has now.
func (u undone) released(k vip.ServiceKey) {
	if _, there := u[k]; !there {
		u[k] = undoBackoff{}
	}
}

func (u undone) wasReleased(k vip.ServiceKey) bool {
	_, there := u[k]
	return there
}

// again notes that another host undid this one's change of what k holds.
func (u undone) again(k vip.ServiceKey, now time.Time) {
	b := u[k]
	if now.Sub(b.until) > longestFreeze {
		b.times = 0
	}
	b.until = now.Add(min(shortestFreeze<<min(b.times, 16), longestFreeze))
	b.times++
	u[k] = b
}

// frozenUntil returns until when a service keeps its leases as they are; zero if it need not.
func (u undone) frozenUntil(k vip.ServiceKey, now time.Time) time.Time {
	if b := u[k]; b.until.After(now) {
		return b.until
	}
	return time.Time{}
}
