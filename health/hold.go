package health

import (
	"time"

	"github.com/ironvip/ironvip/health/probe"
)

// hold finds out that all targets of this host fail at about the same time. The cause then is
// rather this host's network than all targets, so their traffic is held for a while. It is pure:
// the caller gives it the time.
type hold struct {
	lasts   time.Duration              // how long traffic is held
	healthy int                        // targets that are healthy now
	failed  map[probe.Target]time.Time // when healthy targets became unhealthy
	held    map[probe.Target]struct{}  // unhealthy targets with traffic
	until   time.Time                  // the end of the hold; zero: none
}

func newHold(lasts time.Duration) hold {
	return hold{lasts: lasts, failed: map[probe.Target]time.Time{}}
}

// begins records that a target is healthy now.
func (h *hold) begins(t probe.Target) {
	h.healthy++
	h.forget(t)
}

// fails records that a healthy target has become unhealthy.
func (h *hold) fails(t probe.Target, now time.Time) {
	h.healthy--
	h.failed[t] = now
}

// forget drops what is known of a target that is not healthy.
func (h *hold) forget(t probe.Target) {
	delete(h.failed, t)
	delete(h.held, t)
}

// leave records that a healthy target no longer counts.
func (h *hold) leave() { h.healthy-- }

// check begins a hold if no target is healthy any more, and the targets that failed within their
// Window are at two addresses or more: a single backend that fails is no sign of this host's
// network. It returns the targets that are held from now on. It costs O(1) while a target is
// healthy.
func (h *hold) check(now time.Time) (begun []probe.Target) {
	if h.healthy > 0 || !h.until.IsZero() {
		return nil
	}
	several := false
	for t, at := range h.failed {
		if now.Sub(at) > t.Window() {
			delete(h.failed, t)
			continue
		}
		begun = append(begun, t)
		several = several || t.Addr.Addr() != begun[0].Addr.Addr()
	}
	if !several {
		return nil
	}
	h.until, h.held = now.Add(h.lasts), make(map[probe.Target]struct{}, len(begun))
	for _, t := range begun {
		h.held[t] = struct{}{}
	}
	clear(h.failed)
	return begun
}

// holds reports whether the traffic of an unhealthy target is held.
func (h *hold) holds(t probe.Target) bool {
	_, held := h.held[t]
	return held
}

// release ends a hold whose time is over, and returns the targets that were held.
func (h *hold) release(now time.Time) (ended []probe.Target) {
	if h.until.IsZero() || now.Before(h.until) {
		return nil
	}
	for t := range h.held {
		ended = append(ended, t)
	}
	h.until, h.held = time.Time{}, nil
	return ended
}
