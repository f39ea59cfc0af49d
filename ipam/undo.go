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

// undoBackoff is about a service whose leases this host changed and other hosts change back. Hosts
// with different definitions of one service would go on like that forever.
type undoBackoff struct {
	times int
	until time.Time // when this host may change the service's leases again
}

// mayBeUndone notes that this host released what a service had besides what it has now.
func (a *Allocator) mayBeUndone(k vip.ServiceKey) {
	if _, there := a.undone[k]; !there && a.node != "" {
		a.undone[k] = undoBackoff{}
	}
}

// wasUndone notes that another host undid this one's change of what k holds.
func (a *Allocator) wasUndone(k vip.ServiceKey) {
	now, u := a.now(), a.undone[k]
	if now.Sub(u.until) > longestFreeze {
		u.times = 0
	}
	u.until = now.Add(min(shortestFreeze<<min(u.times, 16), longestFreeze))
	u.times++
	a.undone[k] = u
}

// frozenUntil returns until when a service keeps its leases as they are; zero if it need not.
func (a *Allocator) frozenUntil(k vip.ServiceKey, now time.Time) time.Time {
	if u := a.undone[k]; u.until.After(now) {
		return u.until
	}
	return time.Time{}
}
