package hook

import (
	"fmt"
	"maps"
	"slices"
	"time"

	"github.com/ironvip/ironvip/internal/metric"
	"github.com/ironvip/ironvip/internal/text"
	"github.com/ironvip/ironvip/vip"
)

// stats are what has become of the documents of a hook in this run of the agent.
type stats struct {
	delivered, failed uint64
	since             time.Time // of err: the first failure of a series
	err               error     // of the last attempt
	full              losses    // because the queue was full
	rejected          losses    // by the webhook
}

// losses are documents that a hook has not got.
type losses struct {
	count uint64
	last  time.Time
}

// tried notes the result of an attempt, and returns that of the one before.
func (s *stats) tried(err error, now time.Time) (before error) {
	before, s.err = s.err, err
	switch {
	case err == nil:
		s.delivered++
		return before
	case before == nil:
		s.since = now
	}
	s.failed++
	return before
}

// lossShown is how long the status shows a lost document.
const lossShown = time.Hour

// add notes a lost document, and reports whether it is the first one in a while.
func (l *losses) add(now time.Time) (first bool) {
	first = now.Sub(l.last) > lossShown
	l.count++
	l.last = now
	return first
}

// problem returns the losses, or nil if there were none within the last hour.
func (l *losses) problem(hook, why, hint string) []vip.Problem {
	if l.count == 0 || time.Since(l.last) >= lossShown {
		return nil
	}
	return []vip.Problem{{Code: vip.CodeInvalid, Message: fmt.Sprintf("hook %s has lost %s because %s, the last one at %s", hook, text.Plural(int(l.count), "event"), why, l.last.UTC().Format(time.RFC3339)), Hint: hint}}
}

// each calls f for each hook, by name.
func (h *Hooks) each(f func(name string, queued int, s *stats)) {
	h.mu.Lock()
	defer h.mu.Unlock()
	for _, name := range slices.Sorted(maps.Keys(h.hooks)) {
		x := h.hooks[name]
		f(name, x.queue.Len(), &x.stats)
	}
}

// Problems returns the hooks that fail, and those that have lost events within the last hour.
func (h *Hooks) Problems() (out []vip.Problem) {
	h.each(func(name string, queued int, s *stats) {
		if s.err != nil {
			out = append(out, vip.Problem{Code: vip.CodeInvalid, Message: fmt.Sprintf("hook %s fails since %s, %s: %v", name, s.since.UTC().Format(time.RFC3339), text.Plural(queued, "queued event"), s.err),
				Hint: "the agent's log has the output of the program, or the answer of the webhook"})
		}
		out = append(out, s.full.problem(name, "its queue was full", "make its receiver faster, or its patterns narrower")...)
		out = append(out, s.rejected.problem(name, "its webhook rejected them", "the agent's log has its answers")...)
	})
	return out
}

// Metrics are the metrics of hooks.
var Metrics = metric.NewGroup("Hooks", "hook_")

var (
	familyQueued    = Metrics.Gauge("queued_events", "Events that wait for a hook.", "hook")
	familyDelivered = Metrics.Counter("delivered_total", "Events that a webhook accepted, or a program with exit status 0.", "hook")
	familyFailed    = Metrics.Counter("failures_total", "Failed requests and runs of programs.", "hook")
	familyDropped   = Metrics.Counter("dropped_total", "Events dropped because the queue was full.", "hook")
	familyRejected  = Metrics.Counter("rejected_total", "Events dropped after ten rejections by the webhook.", "hook")
)

// Collect is the collector of the metrics.
func (h *Hooks) Collect(w *metric.Writer) {
	h.each(func(name string, queued int, s *stats) {
		w.Add(familyQueued, float64(queued), name)
		w.Add(familyDelivered, float64(s.delivered), name)
		w.Add(familyFailed, float64(s.failed), name)
		w.Add(familyDropped, float64(s.full.count), name)
		w.Add(familyRejected, float64(s.rejected.count), name)
	})
}
