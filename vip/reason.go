package vip

import (
	"fmt"
	"time"
	"unique"
)

// Reason explains why a source took a backend out of use. It is one pointer to an interned value.
// It is therefore small in a row, and equal reasons compare equal with ==. The zero value is no
// reason.
type Reason struct{ handle unique.Handle[reason] }

type reason struct {
	text string
	// For a missed heartbeat: the last heartbeat and the TTL. Text computes the silence from the
	// current time.
	last Instant
	ttl  time.Duration
}

// ReasonText returns the reason with a fixed text; an empty text is no reason.
func ReasonText(text string) Reason {
	if text == "" {
		return Reason{}
	}
	return Reason{unique.Make(reason{text: text})}
}

// NoHeartbeat returns the reason for a backend without a heartbeat since last, which is longer ago
// than ttl.
func NoHeartbeat(last Instant, ttl time.Duration) Reason {
	return Reason{unique.Make(reason{last: last, ttl: ttl})}
}

// Equal is ==, for packages that compare with reflection.
func (r Reason) Equal(other Reason) bool { return r == other }

// Text returns the reason as of now: "Consul check critical: web", "no heartbeat for 12s (ttl
// 10s)"; "" for no reason.
func (r Reason) Text(now time.Time) string {
	if r == (Reason{}) {
		return ""
	}
	why := r.handle.Value()
	if why.ttl == 0 {
		return why.text
	}
	silent := max(InstantOf(now).Sub(why.last).Truncate(time.Second), why.ttl)
	return fmt.Sprintf("no heartbeat for %s (ttl %s)", silent, why.ttl)
}
