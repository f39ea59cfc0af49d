package server

import (
	"sync"
	"time"
)

const (
	// repeatPause is the least time between two log lines of the same failure.
	repeatPause = time.Minute
	// maxRepeats bounds the memory for failures. Callers choose paths. The failures beyond it share a
	// line for each status.
	maxRepeats = 100
)

// repeats limits the log lines of requests that the agent failed to serve. Clients repeat these
// requests, some of them many times in a second, and must not fill the log. The zero value is ready.
type repeats struct {
	mu   sync.Mutex
	seen map[failure]*repeat
}

// failure is what requests with one log line have in common.
type failure struct {
	status       int
	method, path string
}

type repeat struct {
	since    time.Time // of the last line
	unlogged int       // since then
}

// pass reports whether a failure is logged now, with the number of those before it that were not. It
// costs O(1), and O(maxRepeats) if there are that many failures.
func (r *repeats) pass(f failure, now time.Time) (unlogged int, ok bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.seen == nil {
		r.seen = map[failure]*repeat{}
	}
	if r.seen[f] == nil && len(r.seen) >= maxRepeats {
		for other, last := range r.seen {
			if now.Sub(last.since) >= repeatPause {
				delete(r.seen, other)
			}
		}
		if len(r.seen) >= maxRepeats {
			f = failure{status: f.status}
		}
	}
	last := r.seen[f]
	if last != nil && now.Sub(last.since) < repeatPause {
		last.unlogged++
		return 0, false
	}
	if last != nil {
		unlogged = last.unlogged
	}
	r.seen[f] = &repeat{since: now}
	return unlogged, true
}
