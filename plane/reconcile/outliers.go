package reconcile

import "github.com/ironvip/ironvip/vip"

// Outliers is the optional interface of a Plane that takes the connections of clients as evidence of
// the health of their backends. Its methods may be called concurrently with all others.
type Outliers interface {
	// Failures returns what was counted of an address of a service since the service has it.
	Failures(vip.PassiveKey) Failures
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
