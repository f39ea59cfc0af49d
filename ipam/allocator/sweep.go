package allocator

import (
	"context"
	"fmt"
	"time"

	"github.com/ironvip/ironvip/internal/event"
	"github.com/ironvip/ironvip/ipam"
	"github.com/ironvip/ironvip/vip"
)

// sweepsPerGrace is how often the sweep looks for orphans during OrphanGrace.
const sweepsPerGrace = 4

// Settled says that every source has reported its services, and gives a function that reports
// whether a source names a service. From here on Run looks for orphans: services that hold leases
// and that no source names. A service that goes must be given to Release. It costs O(leases).
func (a *Allocator) Settled(known func(vip.ServiceKey) bool) {
	a.write.Lock()
	defer a.write.Unlock()
	a.known = known
	for _, l := range a.state.Leases().All() {
		for _, h := range l.Holders {
			a.checkClaimed(h.Service)
		}
	}
	a.wake.Set()
}

// mayRelease returns a function that reports whether this host releases an orphan's lease: one that
// it wrote itself, or, as the leader, one of a host that is gone. While another host may have this one's
// name, nobody releases what was written in that name, and its grace period begins again afterwards.
func (a *Allocator) mayRelease() func(ipam.Holder) bool {
	own, leader := a.ownName == nil || a.ownName(), a.leads()
	return func(h ipam.Holder) bool {
		return own && h.Node == a.state.Node || leader && (h.Node == "" || a.away != nil && a.away(h.Node))
	}
}

// sweep releases orphans that have been orphans for the grace period. An orphan whose own source has
// assigned its resources to other services is released at once. It returns how long to wait for the
// next sweep; 0 is until Settled. It costs O(what unclaimed services hold).
func (a *Allocator) sweep(ctx context.Context, now time.Time) (every time.Duration, err error) {
	a.write.Lock()
	defer a.write.Unlock()
	if a.known == nil {
		return 0, nil
	}
	grace, may := a.state.Config.OrphanGrace, a.mayRelease()
	every = min(max(grace/sweepsPerGrace, time.Second), longestNap)
	reassigned := a.findOrphans(now, may)
	var gone []ipam.Released
	for k, since := range a.orphans {
		if reassigned[k] || now.Sub(since) >= grace {
			gone = append(gone, ipam.Released{Service: k})
		}
	}
	errs := a.release(ctx, gone, may)
	for i := range gone {
		k := gone[i].Service
		if isFenced(errs[i]) {
			continue // the next sweep finds it again
		}
		if errs[i] != nil {
			err = errs[i]
			continue
		}
		delete(a.orphans, k)
		why := fmt.Sprintf("no source has named it for %s", grace)
		if reassigned[k] {
			why = "no source names it, and its own source has assigned that to another service"
		}
		a.log.Warn("leases of a service released", "service", k, "why", why)
		a.events.Add(event.Event{Kind: "lease_orphaned", Service: k.String(), Message: fmt.Sprintf("what %s held is released: %s", k, why)})
	}
	return every, err
}

// findOrphans updates orphans and unclaimed, and returns the orphans with resources that their own
// source has assigned to other services.
func (a *Allocator) findOrphans(now time.Time, may func(ipam.Holder) bool) (reassigned map[vip.ServiceKey]bool) {
	orphans := make(map[vip.ServiceKey]time.Time)
	reassigned = make(map[vip.ServiceKey]bool)
	for k := range a.unclaimed {
		if a.unreadableService != nil && a.unreadableService(k) {
			continue // its grace period begins when the registration is gone
		}
		held, known := false, a.known(k)
		for resource := range a.state.Owned(k) {
			l, _ := a.state.Lease(resource)
			i := l.HeldBy(k)
			if i < 0 {
				continue
			}
			held = true
			h := l.Holders[i]
			if known || !may(h) {
				continue
			}
			if source, claimed := a.claimed[resource]; claimed && source == h.Source {
				reassigned[k] = true
			}
			if _, seen := orphans[k]; seen {
				continue
			}
			since, was := a.orphans[k]
			if !was {
				since = now
				a.log.Warn("lease has no service: no source names it", "service", k, "resource", resource, "released_in", a.state.Config.OrphanGrace)
			}
			orphans[k] = since
		}
		if !held || known {
			delete(a.unclaimed, k)
		}
	}
	if len(a.unclaimed) == 0 { // a map never gives back its memory
		a.unclaimed = make(map[vip.ServiceKey]struct{})
	}
	a.orphans = orphans
	return reassigned
}
