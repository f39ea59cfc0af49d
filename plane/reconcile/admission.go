package reconcile

import (
	"time"

	"github.com/ironvip/ironvip/vip"
)

// Admission is the optional interface of a Plane that refuses clients itself. Its methods may be
// called concurrently with all others.
type Admission interface {
	// Refusals returns the clients refused since the start, for every reason that the Plane has.
	Refusals() []Refusal
	// ServiceRefusals returns those of one service, only for reasons that occurred.
	ServiceRefusals(vip.ServiceKey) []Refusal
	// Queue returns how many clients of a service wait for a place, and how many may; 0: no queue.
	Queue(vip.ServiceKey) (waiting, most int)
	// Full reports whether the next client of a service has no place: its max_connections are open,
	// or clients wait in its queue.
	Full(vip.ServiceKey) bool
}

// Refusal counts the clients that were refused for one reason.
type Refusal struct {
	Reason  string // one of few: "capacity"
	Meaning string // of the reason, in a few words
	Count   uint64
	Last    time.Time // of the last one, if any
}
