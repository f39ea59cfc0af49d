package l2

import (
	"context"
	"time"

	"github.com/ironvip/ironvip/internal/backoff"
)

// repairs is when the tables are written again. A program that changes them again and again is met
// with growing pauses.
type repairs struct {
	pause  backoff.Backoff
	last   time.Time
	at     time.Time // the next one; zero: none is needed
	why    damage
	failed bool // reported as failed
}

// quiet is the time without a repair after which the next one is made at once.
const quiet = time.Minute

// restore writes the tables again if they may differ from the gate's state.
func (s *Speaker) restore(ctx context.Context, now time.Time, d damage) {
	r := &s.repairs
	r.why = max(r.why, d)
	if r.why == intact {
		r.at = time.Time{}
		return
	}
	if r.at.IsZero() {
		r.at = now
		if !r.last.IsZero() && now.Sub(r.last) < quiet {
			r.at = now.Add(r.pause.Next())
		} else {
			r.pause.Reset()
		}
	}
	if now.Before(r.at) {
		return
	}
	why := r.why
	r.last, r.at, r.why = now, time.Time{}, intact
	s.mu.Lock()
	defer s.mu.Unlock()
	err := s.gate.Rebuild(ctx, s.config.guarded(s.state.Own), interfaces(s.state))
	switch {
	case err != nil:
		r.at, r.why = now.Add(r.pause.Next()), why
		if !r.failed {
			r.failed = true
			s.report(Report{State: GateFailed, Reason: err.Error()})
		}
	case why == foreign || r.failed:
		r.failed = false
		reason := "another program changed or deleted the tables"
		if why != foreign {
			reason = "the tables can be written again"
		}
		s.report(Report{State: GateRestored, Reason: reason})
	}
}
