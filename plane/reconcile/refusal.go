package reconcile

import (
	"time"

	"github.com/ironvip/ironvip/vip"
)

// Refusal counts the clients that a dataplane refused for one reason.
type Refusal struct {
	Reason  string // one of few: "capacity"
	Meaning string // of the reason, in a few words
	Count   uint64
	Last    time.Time // of the last one, if any
}

// Failures counts failed connections to a backend.
type Failures struct {
	Connects uint64 // connects that were refused or timed out, and UDP refusals
	Resets   uint64 // connections that the backend reset before its first byte
	// Unanswered are connections that ended without a byte of the backend after their clients had
	// sent something and waited for unusually long, while other backends answered theirs.
	Unanswered uint64
	Retries    uint64 // clients that were sent to another backend after a connect failed or was slow
	Ejections  uint64
	Last       vip.Instant // when a connection last failed; zero: none did
	Reason     string      // why it failed: "connect: connection refused"
}

// Add adds o.
func (f *Failures) Add(o Failures) {
	f.Connects += o.Connects
	f.Resets += o.Resets
	f.Unanswered += o.Unanswered
	f.Retries += o.Retries
	f.Ejections += o.Ejections
	if o.Last.After(f.Last) {
		f.Last, f.Reason = o.Last, o.Reason
	}
}
