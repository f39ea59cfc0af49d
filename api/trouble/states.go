package trouble

import (
	"maps"
	"slices"
	"time"

	"github.com/ironvip/ironvip/api/status"
	"github.com/ironvip/ironvip/internal/event"
	"github.com/ironvip/ironvip/internal/text"
	"github.com/ironvip/ironvip/vip"
)

// maxStateEvents bounds the events of one update, so that a failure of everything doesn't remove all
// older events from the log.
const maxStateEvents = 20

// publish adds an event for each service that has become degraded, down or refused, or works again.
// The states without a fault, healthy, unchecked and elsewhere, count as one, and so does a service
// that is new. A pending service keeps the state that it had. It costs O(changed services). The
// caller holds mu.
func (s *Index) publish() {
	added, more := 0, 0
	for _, k := range slices.SortedFunc(maps.Keys(s.changed), vip.ServiceKey.Compare) {
		e, changed := s.stateEvent(k)
		switch {
		case !changed:
		case added < maxStateEvents:
			added++
			s.events.Add(e)
		default:
			more++
		}
	}
	if more > 0 {
		s.events.Add(event.Event{Kind: "services_changed", Message: text.Plural(more, "more service") + " changed state"})
	}
	s.changed = make(map[vip.ServiceKey]struct{}) // a map never gives back its memory
}

// stateEvent returns the event about the state of a changed service, if the state is not the one that
// was published last.
func (s *Index) stateEvent(k vip.ServiceKey) (e event.Event, changed bool) {
	before, wasBad := s.published[k]
	if _, bad := s.services[k]; !bad && !wasBad {
		return e, false // the common case: it came, or changed, and is healthy
	}
	in := s.tables.Input(k, time.Now())
	if in.Service == nil {
		delete(s.published, k)
		return e, false
	}
	report := status.Short(in)
	switch state := report.State; state {
	case status.Pending, status.Draining:
		return e, false
	case status.Degraded, status.Down, status.Refused:
		if state == before {
			return e, false
		}
		s.published[k] = state
		e.Kind = "service_" + string(state)
	default:
		if !wasBad {
			return e, false
		}
		delete(s.published, k)
		e.Kind = "service_healthy"
	}
	e.Service = k.String()
	e.Message = report.Lines[0]
	return e, true
}
