package probe

import (
	"github.com/ironvip/ironvip/internal/table"
	"github.com/ironvip/ironvip/internal/text"
	"github.com/ironvip/ironvip/vip"
)

// Outcome is the kind of a probe's result, for metrics and for the cause of a health.
type Outcome uint8

// OK passed. Refused was refused by the target's host. TimedOut got no complete answer in time.
// Reset was closed or reset by the target before the answer. Unreachable found no way to the
// target: this can also be a fault of this host's network, but clients' traffic takes the same way.
// BadTLS found no valid certificate or another fault of TLS. BadStatus got another HTTP or gRPC
// status than expected. BadAnswer got an answer that is not the expected one, is too large or can't
// be read. NotServing is the answer of a gRPC health service. Exited is a command that failed.
// Flapping is not the outcome of a probe but the cause of an unhealthy state that lasts longer
// because the target changed often. Local is a fault of this host: no evidence in either direction.
// Starved, NoDescriptors and NoPath are such faults, too: a timeout for which this host gave the agent
// too little time of its processors, a lack of file descriptors, and a path that isn't programmed.
const (
	OK Outcome = iota + 1
	Refused
	TimedOut
	Reset
	Unreachable
	BadTLS
	BadStatus
	BadAnswer
	NotServing
	Exited
	Flapping
	Local
	Starved
	NoDescriptors
	NoPath

	outcomes // number of outcomes, with the zero one
)

var outcomeNames = [outcomes]string{"", "ok", "refused", "timeout", "reset", "unreachable", "tls", "status", "answer", "not_serving", "exit",
	"flapping", "local", "starved", "no_descriptors", "no_path"}

// IsLocal reports whether the outcome is a fault of this host, and no evidence.
func (o Outcome) IsLocal() bool { return o >= Local }

// String returns "ok", "refused", "timeout", "reset", "unreachable", "tls", "status", "answer",
// "not_serving", "exit", "flapping", "local", "starved", "no_descriptors" or "no_path", or "" for the
// zero Outcome.
func (o Outcome) String() string {
	if o >= outcomes {
		return ""
	}
	return outcomeNames[o]
}

// Result is a row of the table: the health of a target. It changes when the health changes or when
// the cause of an unhealthy state becomes another Outcome (seen twice in a row), not at each probe.
type Result struct {
	Target  Target
	Health  vip.Health  // Unknown, Healthy or Unhealthy
	Since   vip.Instant // when Health became this; also for Unknown
	Outcome Outcome     // OK if healthy, else the cause; 0 for Unknown without a result
	Reason  string      // the cause in words, at most 256 bytes; "" if healthy
	InARow  uint32      // probes in a row that led to Health; 0: not known, as of an earlier run
	Origin  Origin      // Own from an Engine
}

// Origin is who has found a health.
type Origin uint8

// Own is this host alone. Fleet are other hosts of the fleet, and this host does not probe the
// target. Agreed are both.
const (
	Own Origin = iota
	Fleet
	Agreed
)

// NewResults returns an empty table for Options.Results.
func NewResults(clock *table.Clock) *table.Table[Target, Result] {
	return table.New(clock, func(r *Result) Target { return r.Target }, nil)
}

// maxReason bounds the text of a reason, in bytes: a target can choose a part of it.
const maxReason = 256

func clip(reason string) string { return text.Clip(reason, maxReason) }
