package share

import (
	"maps"
	"net/netip"
	"slices"
	"time"

	"github.com/ironvip/ironvip/vip"
)

// disputeAfter is how long this host must find something else than the fleet before that counts. A
// change reaches all probers and is written within less.
const disputeAfter = 30 * time.Second

// Disputes are targets for which this host's own probes contradict the fleet's verdict, for
// disputeAfter or longer. One of the paths is broken then: this host's, or those of the probers that
// decided.
type Disputes struct {
	Probes int // the targets that this host probes
	// Failing counts those that fail here and are healthy for the fleet.
	Failing int
	// Passing are those that pass here and are unhealthy for the fleet, sorted, and By are the hosts
	// that decided so.
	Passing []netip.AddrPort
	By      []string
}

// disputes reports whether this host's own probes of an item find the opposite of the verdict.
func (it *item) disputes() bool {
	return it.row.known() && it.own.Health != it.row.Health && (it.own.Health == vip.Healthy || it.own.Health == vip.Unhealthy)
}

// Disputes returns where this host disagrees with the fleet. It costs O(disputes). It is the zero value
// while results are not shared, or this host is cut off from the store.
func (s *Share) Disputes() (out Disputes) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if !s.mode.shares() || s.mode.stale {
		return out
	}
	by, now := map[string]struct{}{}, time.Now()
	out.Probes = s.probes
	for it := range s.disputed {
		switch {
		case now.Sub(later(it.evidenceAt(), it.judgedAt)) < disputeAfter:
		case it.own.Health == vip.Unhealthy:
			out.Failing++
		default:
			out.Passing = append(out.Passing, it.target.Addr)
			by[it.row.By] = struct{}{}
		}
	}
	slices.SortFunc(out.Passing, netip.AddrPort.Compare)
	out.By = slices.Sorted(maps.Keys(by))
	return out
}
