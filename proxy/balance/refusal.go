package balance

import (
	"sync/atomic"
	"time"

	"github.com/ironvip/ironvip/plane/reconcile"
	"github.com/ironvip/ironvip/vip"
)

// Reason is why a client is refused: a TCP connection is reset, a datagram without a session is
// dropped.
type Reason uint8

const (
	OutsideRanges Reason = iota
	noBackend
	Unreachable
	panicked
	HeaderAbsent // closed before the first byte, such as a port check of a balancer
	HeaderTruncated
	HeaderLate
	HeaderTooLong
	HeaderMalformed
	overCapacity
	overReserve
	NoDescriptor
	serviceFull // this one and the following: limits of the service
	backendsFull
	queueFull
	queueTimeout
	sourceFull
	reasons         // the number of reasons
	Admitted Reason = 255
)

// reasonTexts has the label of each reason in metrics, and its meaning for people. docs/proxy.md has
// a row for each.
var reasonTexts = [reasons]struct{ label, meaning string }{
	OutsideRanges:   {"source_ranges", "outside source_ranges"},
	noBackend:       {"no_backend", "no usable backend"},
	Unreachable:     {"unreachable", "no backend accepted the connection"},
	panicked:        {"panic", "a fault of this program, which its log has"},
	HeaderAbsent:    {"header_absent", "closed by the balancer before the PROXY header"},
	HeaderTruncated: {"header_truncated", "closed by the balancer inside the PROXY header"},
	HeaderLate:      {"header_late", "no complete PROXY header in time"},
	HeaderTooLong:   {"header_too_long", "PROXY header too long"},
	HeaderMalformed: {"header_malformed", "no valid PROXY header"},
	overCapacity:    {"capacity", "this host has no descriptor left for clients"},
	overReserve:     {"reserve", "the service holds most descriptors of this host; the rest is reserved for other services"},
	NoDescriptor:    {"descriptors", "the process or the kernel had no descriptor left"},
	serviceFull:     {"max_connections", "the service has max_connections"},
	backendsFull:    {"backend_max_connections", "each usable backend has its max_connections"},
	queueFull:       {"max_queue", "max_queue clients wait for a place"},
	queueTimeout:    {"queue_timeout", "no place within queue_timeout"},
	sourceFull:      {vip.MaxConnectionsPerSource, "the client has max_connections_per_source"},
}

// err returns the reason as an error, or nil if there is none.
func (r Reason) err() error {
	if r == Admitted {
		return nil
	}
	return r
}

// Error implements error.
func (r Reason) Error() string { return reasonTexts[r].meaning }

// String returns the label in metrics.
func (r Reason) String() string { return reasonTexts[r].label }

// limits reports whether the reason is a limit of this host or service. Other reasons are seen
// elsewhere, or intended.
func (r Reason) limits() bool { return r >= overCapacity }

// waits reports whether a queue helps against the reason.
func (r Reason) waits() bool { return r == serviceFull || r == backendsFull }

// refusals counts by reason.
type refusals [reasons]struct {
	n    atomic.Uint64
	last atomic.Int64 // by Balancer.Now
}

func (r *refusals) add(why Reason, now int64) {
	r[why].n.Add(1)
	r[why].last.Store(now)
}

func (r *refusals) count(of ...Reason) (n uint64) {
	for _, why := range of {
		n += r[why].n.Load()
	}
	return n
}

// since reports whether anyone was refused for a reason since a time.
func (r *refusals) since(start int64, of ...Reason) bool {
	for _, why := range of {
		if r[why].n.Load() > 0 && r[why].last.Load() >= start {
			return true
		}
	}
	return false
}

// list returns the refusals by reason; without all, only reasons that occurred. R is nil if nobody was refused.
func (b *Balancer) list(r *refusals, all bool) (out []reconcile.Refusal) {
	if r == nil {
		return nil
	}
	for why := range reasons {
		if n := r[why].n.Load(); n > 0 || all {
			out = append(out, reconcile.Refusal{Reason: why.String(), Meaning: reasonTexts[why].meaning, Count: n,
				Last: b.epoch.Add(time.Duration(r[why].last.Load()))})
		}
	}
	return out
}

// recent is how long a refusal is shown in the status.
const recent = time.Minute
