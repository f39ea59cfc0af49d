package proxy

import (
	"context"
	"errors"
	"fmt"
	"sync/atomic"
	"time"

	"github.com/ironvip/ironvip/plane/reconcile"
	"github.com/ironvip/ironvip/proxy/loop"
	"github.com/ironvip/ironvip/vip"
)

// reason is why a client is refused: a TCP connection is reset, a datagram without a session is
// dropped.
type reason uint8

const (
	outsideRanges reason = iota
	noBackend
	unreachable
	panicked
	headerAbsent // closed before the first byte, such as a port check of a balancer
	headerTruncated
	headerLate
	headerTooLong
	headerMalformed
	headerChecksum
	overCapacity
	overReserve
	noDescriptor
	serviceFull // this one and the following: limits of the service
	backendsFull
	queueFull
	queueTimeout
	reasons         // the number of reasons
	admitted reason = 255
)

// reasonTexts has the label of each reason in metrics, and its meaning for people. docs/proxy.md has
// a row for each.
var reasonTexts = [reasons]struct{ label, meaning string }{
	outsideRanges:   {"source_ranges", "outside source_ranges"},
	noBackend:       {"no_backend", "no usable backend"},
	unreachable:     {"unreachable", "no backend accepted the connection"},
	panicked:        {"panic", "a fault of this program, which its log has"},
	headerAbsent:    {"header_absent", "closed by the balancer before the PROXY header"},
	headerTruncated: {"header_truncated", "closed by the balancer inside the PROXY header"},
	headerLate:      {"header_late", "no complete PROXY header in time"},
	headerTooLong:   {"header_too_long", "PROXY header too long"},
	headerMalformed: {"header_malformed", "no valid PROXY header"},
	headerChecksum:  {"header_checksum", "PROXY header with a wrong checksum"},
	overCapacity:    {"capacity", "this host has no descriptor left for clients"},
	overReserve:     {"reserve", "the service holds most descriptors of this host; the rest is reserved for other services"},
	noDescriptor:    {"descriptors", "the process or the kernel had no descriptor left"},
	serviceFull:     {"max_connections", "the service has max_connections"},
	backendsFull:    {"backend_max_connections", "each usable backend has its max_connections"},
	queueFull:       {"max_queue", "max_queue clients wait for a place"},
	queueTimeout:    {"queue_timeout", "no place within queue_timeout"},
}

// err returns the reason as an error, or nil if there is none.
func (r reason) err() error {
	if r == admitted {
		return nil
	}
	return r
}

// Error implements error.
func (r reason) Error() string { return reasonTexts[r].meaning }

// reasonOf returns why a client is refused after an error of attempt.connect. It returns admitted
// if that is this host's intention: the frontend was closed.
func reasonOf(err error) reason {
	var why reason
	switch {
	case errors.As(err, &why):
		return why
	case loop.LacksDescriptor(err):
		return noDescriptor
	case errors.Is(err, context.Canceled):
		return admitted
	}
	return unreachable
}

// String returns the label in metrics.
func (r reason) String() string { return reasonTexts[r].label }

// limits reports whether the reason is a limit of this host or service. Other reasons are seen
// elsewhere, or intended.
func (r reason) limits() bool { return r >= overCapacity }

// waits reports whether a queue helps against the reason.
func (r reason) waits() bool { return r == serviceFull || r == backendsFull }

// refusals counts by reason.
type refusals [reasons]struct {
	n    atomic.Uint64
	last atomic.Int64 // by Target.now
}

func (r *refusals) add(why reason, now int64) {
	r[why].n.Add(1)
	r[why].last.Store(now)
}

func (r *refusals) count(of ...reason) (n uint64) {
	for _, why := range of {
		n += r[why].n.Load()
	}
	return n
}

// since reports whether anyone was refused for a reason since a time.
func (r *refusals) since(start int64, of ...reason) bool {
	for _, why := range of {
		if r[why].n.Load() > 0 && r[why].last.Load() >= start {
			return true
		}
	}
	return false
}

// list returns the refusals by reason; without all, only reasons that occurred.
func (t *Target) list(r *refusals, all bool) (out []reconcile.Refusal) {
	for why := range reasons {
		if n := r[why].n.Load(); n > 0 || all {
			out = append(out, reconcile.Refusal{Reason: why.String(), Meaning: reasonTexts[why].meaning, Count: n,
				Last: t.epoch.Add(time.Duration(r[why].last.Load()))})
		}
	}
	return out
}

// recent is how long a refusal is shown in the status.
const recent = time.Minute

// Capacity returns the state of the descriptors for traffic. It costs O(1) if capacity isn't short,
// else O(services).
func (t *Target) Capacity() Capacity {
	out := Capacity{Files: t.capacity.most.Load(), Used: t.capacity.used.Load(),
		Connections: t.capacity.connections.Load(), Sessions: t.capacity.sessions.Load()}
	start := t.now() - int64(recent)
	switch {
	case t.refused.since(start, overCapacity, noDescriptor):
		out.Exhausted = true
	case t.refused.since(start, overReserve):
		out.Reserved = true
	case out.Used < out.Files/4*3:
		return out
	}
	out.Refused = t.refused.count(overCapacity, overReserve, noDescriptor)
	out.Largest, out.LargestFiles = t.largest()
	return out
}

// Capacity is how much of the descriptors for traffic is used. A TCP connection uses two, a UDP
// session one.
type Capacity struct {
	Files, Used           int64
	Connections, Sessions int64
	Exhausted             bool // in the last minute, clients were refused that any service may serve
	Reserved              bool // the same, but only clients of the largest services

	// The following are set if capacity is short.
	Refused      uint64         // clients refused for lack of capacity since the start
	Largest      vip.ServiceKey // the service that holds the most
	LargestFiles int64
}

// Short reports whether less than a quarter is left, or clients were refused in the last minute.
func (c Capacity) Short() bool { return c.Largest != vip.ServiceKey{} }

// String returns "12 connections and 3 sessions use 27 of 1888 descriptors".
func (c Capacity) String() string {
	return fmt.Sprintf("%d connections and %d sessions use %d of %d descriptors", c.Connections, c.Sessions, c.Used, c.Files)
}
