package balance

import (
	"slices"
	"time"

	"github.com/ironvip/ironvip/plane/reconcile"
	"github.com/ironvip/ironvip/vip"
)

// Report is the state of the proxy, for people and metrics.
type Report struct {
	Capacity Usage
	Refusals []reconcile.Refusal                   // clients refused since the start, for every reason
	Services map[vip.ServiceKey]ServiceReport      // those that have refused clients, are full, or have a queue
	Failures map[vip.PassiveKey]reconcile.Failures // of backends, if there were any
}

// Panics returns how many clients were refused because of a panic since the start, and whether any was in the last
// minute.
func (r *Report) Panics() (clients uint64, now bool) {
	for _, one := range r.Refusals {
		if one.Reason == panicked.String() && one.Count > 0 {
			return one.Count, time.Since(one.Last) < recent
		}
	}
	return 0, false
}

// ownLimits are the reasons that are limits of a service.
var ownLimits = []string{serviceFull.String(), backendsFull.String(), queueFull.String(), queueTimeout.String(), sourceFull.String()}

// Limited returns the services that are full, or have refused clients in the last minute because of their own limits,
// by name.
func (r *Report) Limited() (out []Limited) {
	for key, s := range r.Services {
		l := Limited{Service: key, Full: s.Full}
		for _, one := range s.Refusals {
			if !slices.Contains(ownLimits, one.Reason) {
				continue
			}
			l.Refused += one.Count
			if time.Since(one.Last) < recent {
				l.Reasons = append(l.Reasons, one.Reason)
			}
		}
		if l.Full || len(l.Reasons) > 0 {
			out = append(out, l)
		}
	}
	slices.SortFunc(out, func(a, b Limited) int { return a.Service.Compare(b.Service) })
	return out
}

// Limited is a service that has reached its own limits.
type Limited struct {
	Service vip.ServiceKey
	Reasons []string // of refusals in the last minute
	Refused uint64   // clients since the start
	Full    bool     // the next client has no place; see ServiceReport
}

// ServiceReport is the part of one service.
type ServiceReport struct {
	Refusals      []reconcile.Refusal // for reasons that occurred
	Waiting, Most int                 // clients that wait for a place, and how many may; 0: no queue
	// Full reports whether the next client of a service has no place: its max_connections are open,
	// or clients wait in its queue.
	Full bool
}

// Report returns the state. It costs O(services with limits or refused clients, and backends with failed connections).
func (b *Balancer) Report() Report {
	r := Report{Capacity: b.Usage(), Refusals: b.list(&b.refused, true),
		Services: make(map[vip.ServiceKey]ServiceReport), Failures: b.Passive.Failures()}
	b.mu.Lock()
	defer b.mu.Unlock()
	for s := range b.reported {
		one := ServiceReport{b.list(s.refused.Load(), false), int(s.queue.length.Load()), int(s.relay.Load().MaxQueue), s.isFull()}
		if len(one.Refusals) > 0 || one.Most > 0 || one.Waiting > 0 || one.Full {
			r.Services[s.key] = one
		}
	}
	return r
}
