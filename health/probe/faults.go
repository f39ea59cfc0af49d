package probe

import (
	"log/slog"
	"time"

	"github.com/ironvip/ironvip/vip"
)

const (
	// faultPause is the least time between two records of faults of this host.
	faultPause = time.Minute
	// faultQuiet is how long after the last fault another one begins a new series.
	faultQuiet = time.Minute
)

// Fault is a series of probes that proved nothing because of this host, or of probes that started
// late. It ends when a minute has passed since the last one.
type Fault struct {
	Probes      uint64
	Since, Last vip.Instant
	Reason      string // of the last one
}

// faults are the latest series of each kind. They log at most once a minute.
type faults struct {
	of       [outcomes]series // by the local outcomes
	late     [lanes]series
	unlogged int
	target   Target
	reason   string
	next     time.Duration
}

// series is a Fault with the monotonic time of the last probe.
type series struct {
	Fault
	last time.Duration
}

func (s *series) add(reason string, now time.Duration, wall vip.Instant) {
	if s.Probes > 0 && now-s.last > faultQuiet {
		s.Fault = Fault{}
	}
	if s.Probes++; s.Probes == 1 {
		s.Since = wall
	}
	s.last, s.Last, s.Reason = now, wall, reason
}

// current returns the series if it has not ended.
func (s *series) current(now time.Duration) Fault {
	if s.Probes == 0 || now-s.last > faultQuiet {
		return Fault{}
	}
	return s.Fault
}

// add collects a fault.
func (f *faults) add(t Target, o Outcome, reason string, now time.Duration, wall vip.Instant) {
	f.of[o].add(reason, now, wall)
	f.unlogged++
	f.target, f.reason = t, reason
}

// write logs the number of faults and the newest one if it is time.
func (f *faults) write(log *slog.Logger, now time.Duration) {
	if f.unlogged > 0 && now >= f.next {
		log.Warn("health probes proved nothing: fault of this host", "probes", f.unlogged, "target", f.target.String(), "err", f.reason)
		f.unlogged, f.next = 0, now+faultPause
	}
}
