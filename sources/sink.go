package sources

import (
	"time"

	"github.com/ironvip/ironvip/vip"
)

// sink is the Sink of one run of a source. Calls after the end of the run are ignored. Therefore a
// leftover goroutine of the source can't undo what a later run writes.
type sink struct{ src *supervised }

// end ends the run.
func (s *sink) end() {
	s.src.mu.Lock()
	defer s.src.mu.Unlock()
	if s.src.run == s {
		s.src.run = nil
	}
}

// update runs f with the source locked, resolves the claims that f changed and writes the status.
// It does nothing after the end of the run.
func (s *sink) update(f func(src *supervised)) {
	s.src.mu.Lock()
	defer s.src.mu.Unlock()
	if s.src.run != s {
		return
	}
	f(s.src)
	s.src.commit()
}

// received is update for news from the source itself. It also sets LastSync.
func (s *sink) received(f func(src *supervised)) {
	s.update(func(src *supervised) {
		src.status.LastSync = time.Now().UnixMilli()
		f(src)
	})
}

// Replace implements Sink.
func (s *sink) Replace(services []vip.Service, problems []vip.Problem) {
	s.received(func(src *supervised) {
		src.recovered()
		listed := make(map[vip.ServiceKey]struct{}, len(services))
		for i := range services {
			listed[services[i].Key] = struct{}{}
			src.put(services[i])
		}
		var gone []vip.ServiceKey
		for key := range src.claims.All() {
			if _, still := listed[key]; !still {
				gone = append(gone, key)
			}
		}
		src.remove(gone, true)
		src.setProblems(problems)
		src.listed()
	})
}

// Put implements Sink. If all services are unchanged, the status stays unchanged too.
func (s *sink) Put(services ...vip.Service) (revs []uint64) {
	s.update(func(src *supervised) {
		for i := range services {
			src.put(services[i])
		}
		if len(src.changed) > 0 {
			src.status.LastSync = time.Now().UnixMilli()
		}
		if src.doubted() {
			src.listed()
		}
		src.resolve()
		revs = make([]uint64, len(services))
		for i := range services {
			if row := src.Services.Row(services[i].Key); row != nil && row.Value.Source == src.name {
				revs[i] = row.Rev
			}
		}
	})
	return revs
}

// Delete implements Sink.
func (s *sink) Delete(keys ...vip.ServiceKey) {
	s.received(func(src *supervised) { src.remove(keys, false) })
}

// Problems implements Sink.
func (s *sink) Problems(problems []vip.Problem) {
	s.received(func(src *supervised) { src.setProblems(problems) })
}

// Stale implements Sink.
func (s *sink) Stale(err error) {
	s.update(func(src *supervised) {
		why := reason(err)
		if src.status.Stale != why {
			src.status.Stale = why
			// A reason can count many failures. It then changes each time one of them ends.
			if now := time.Now(); !src.failing || now.Sub(src.logged) >= relogStale {
				src.logged = now
				src.Log.Warn("source is stale", "source", src.name, "err", why)
			}
		}
		if !src.failing {
			src.failing = true
			src.event("source_stale", why+"; its services stay unchanged")
		}
	})
}

// Fresh implements Sink.
func (s *sink) Fresh() { s.received((*supervised).recovered) }
