package probe

import (
	"fmt"
	"slices"
	"time"
)

// A probe that timed out, or a command that failed, proves something only if this process could have seen the answer in time. On
// a saturated host, or with a limited or stopped process, it may not have run when the answer came.
// The engine can't observe that of each probe, so it measures itself: how much later than due its
// turns begin. A probe in progress waits as long for the processor each time that it has to continue.
const (
	// wakes is how often a probe has to continue at most: to connect, two round trips of TLS, to
	// send, to receive in parts, and to report.
	wakes = 8
	// leastDelay is the shortest delay that counts. Timers are late by less on an idle host, and
	// wakes of them are less than half of the shortest timeout.
	leastDelay = 5 * time.Millisecond
	// keptDelays bounds the memory. A process that is late more often within one probe has enough of
	// them left.
	keptDelays = 1024
)

// delays are the latest delays of turns.
type delays struct {
	ring [keptDelays]delay
	n    int // of all that were added
}

type delay struct{ ended, took time.Duration }

// add records that the process continued at ended, later than due.
func (d *delays) add(ended, took time.Duration) {
	if took >= leastDelay {
		d.ring[d.n%keptDelays] = delay{ended, took}
		d.n++
	}
}

// since returns how much of the time from began to now a probe can have lost to delays: the sum of
// the longest ones, as many as it has to continue. It costs O(delays since began).
func (d *delays) since(began, now time.Duration) (lost time.Duration) {
	var longest [wakes]time.Duration // in ascending order
	for i := d.n - 1; i >= max(0, d.n-keptDelays); i-- {
		one := d.ring[i%keptDelays]
		if one.ended <= began {
			break
		}
		took := min(one.took, one.ended-began)
		if took <= longest[0] {
			continue
		}
		at, _ := slices.BinarySearch(longest[:], took)
		copy(longest[:at-1], longest[1:at])
		longest[at-1] = took
	}
	for _, took := range longest {
		lost += took
	}
	return min(lost, now-began)
}

// starved returns why the failure of a probe proves nothing, or "" if it does. A probe that could
// have lost half of its timeout does not. Took is how long the probe took: its timeout, and how much
// later this process noticed that. A command that failed earlier has lost at most the time that it ran.
func (d *delays) starved(began, now, timeout, took time.Duration) string {
	lost := min(max(d.since(began, now), took-timeout), took)
	if 2*lost < timeout {
		return ""
	}
	return fmt.Sprintf("this host gave the agent no processor for up to %s of a timeout of %s", lost.Round(time.Millisecond), timeout)
}
