package takeover

import (
	"context"
	"time"
)

// countsEvery is the interval at which changes of open connections are looked for.
const countsEvery = 200 * time.Millisecond

func opens(counts []Count) []message {
	out := make([]message, len(counts))
	for i := range counts {
		out[i] = message{Open: &counts[i]}
	}
	return out
}

// changes calls report with what has changed in the result of open, which has the backends with
// connections, every 200 ms: first compared with what was reported before, and a last time when ctx has ended. It returns
// with an error of report, too.
func changes(ctx context.Context, reported []Count, open func() []Count, report func([]Count) error) {
	tick := time.NewTicker(countsEvery)
	defer tick.Stop()
	known := make(map[Backend]int64, len(reported))
	for _, c := range reported {
		known[c.Backend] = c.N
	}
	for last := false; ; {
		var changed []Count
		gone := len(known)
		now := make(map[Backend]int64, len(known))
		for _, c := range open() {
			was, there := known[c.Backend]
			if there {
				gone--
			}
			if now[c.Backend] = c.N; was != c.N {
				changed = append(changed, c)
			}
		}
		if gone > 0 {
			for b := range known {
				if _, there := now[b]; !there {
					changed = append(changed, Count{Backend: b})
				}
			}
		}
		known = now
		if report(changed) != nil || last {
			return
		}
		select {
		case <-ctx.Done():
			last = true
		case <-tick.C:
		}
	}
}
