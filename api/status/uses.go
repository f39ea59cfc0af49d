package status

import (
	"net/netip"

	"github.com/ironvip/ironvip/vip"
)

// Uses is how the frontends of a service use its backends.
type Uses struct {
	Backends []Use          // of each listed backend, in the service's order
	Removed  []vip.Endpoint // those that drain and that the service no longer lists, each once
}

// Use is how frontends use one backend.
type Use struct {
	TakesNew bool // some frontend sends new connections to it; ejections have no effect
	// Percent is how much of its weight it has during its slow start, the least of all frontends; 0:
	// it has its whole weight.
	Percent   int
	LeavingAt vip.Instant // when its last connections are closed; zero if it doesn't drain
}

// UsesOf returns how the frontends use the backends. It costs O(backends + endpoints).
func UsesOf(in *Input) Uses {
	out := Uses{Backends: make([]Use, len(in.Service.Backends))}
	at := make(map[netip.AddrPort]int, len(in.Service.Backends)) // port 0: of all ports of the address
	for i, b := range in.Service.Backends {
		at[netip.AddrPortFrom(b.Address, b.Port)] = i
	}
	removed := map[netip.AddrPort]int{}
	for i := range in.Frontends {
		for _, e := range in.Frontends[i].Frontend.Backends {
			own, listed := at[e.Addr]
			if listed {
				out.Backends[own].add(&e)
			}
			if bare, has := at[netip.AddrPortFrom(e.Addr.Addr(), 0)]; has && e.Addr.Port() != 0 {
				out.Backends[bare].add(&e)
				listed = true
			}
			if listed || !e.IsLeaving() {
				continue
			}
			if j, known := removed[e.Addr]; !known {
				removed[e.Addr] = len(out.Removed)
				out.Removed = append(out.Removed, e)
			} else if e.Leaving.After(out.Removed[j].Leaving) {
				out.Removed[j].Leaving = e.Leaving
			}
		}
	}
	return out
}

// add adds one of the backend's endpoints.
func (u *Use) add(e *vip.Endpoint) {
	u.TakesNew = u.TakesNew || e.Weight > 0
	if percent := int(e.Step) * 100 / vip.SlowStartSteps; percent > 0 && (u.Percent == 0 || percent < u.Percent) {
		u.Percent = percent
	}
	if e.Leaving.After(u.LeavingAt) {
		u.LeavingAt = e.Leaving
	}
}
