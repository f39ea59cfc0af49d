package fleet

import (
	"fmt"
	"net/netip"
	"time"
)

// History is what happened to one fleet. Times count from its beginning.
type History struct {
	Ops   []Op
	Views []View
	// Reuse is how long a released address rests before another service may have
	// it.
	Reuse time.Duration
}

// Kind is what an Op asks for.
type Kind string

// What an Op may ask for.
const (
	Put      Kind = "put"
	Delete   Kind = "delete"
	Register Kind = "register" // the service's backend, as the backend itself does
	SetState Kind = "state"    // of the service's backend, as an operator does
)

// States are what an operator may say of a backend; their places are the Values of
// SetState. What was said stays, also while the service is deleted.
var States = []string{"ready", "drain", "maint"}

// Outcome is what is known of an Op.
type Outcome string

// What may be known of an Op.
const (
	Acknowledged Outcome = "acknowledged"
	Refused      Outcome = "refused" // nothing of it has happened, nor ever will
	Unknown      Outcome = "unknown" // it may have happened, or happen later
)

// Op is one request to one agent.
type Op struct {
	Agent    Run
	Service  string
	Kind     Kind
	Value    int // of a Put or Register: which one it is; no other has the same, and none has 0. Of a SetState: of States
	From, To time.Duration
	Outcome  Outcome
	VIPs     []netip.Addr // in the answer
	Answer   string       // for people
}

func (o Op) String() string {
	what := string(o.Kind) + " " + o.Service
	switch o.Kind {
	case Delete:
	case SetState:
		what += "=" + States[o.Value]
	default:
		what += fmt.Sprintf("=%d", o.Value)
	}
	return fmt.Sprintf("%s by %s at %s to %s: %s %s", what, o.Agent, at(o.From), at(o.To), o.Outcome, o.Answer)
}

func at(d time.Duration) string { return d.Round(time.Millisecond).String() }

// Run is an agent between two starts.
type Run struct {
	Agent  string
	Number int
}

func (r Run) String() string { return fmt.Sprintf("%s.%d", r.Agent, r.Number) }

// View is what one agent's API said of all services. The answer was made between
// From and To.
type View struct {
	Agent    Run
	From, To time.Duration
	Services map[string]Seen // must not be changed: Views may share it
}

// Seen is one service as an agent's API shows it.
type Seen struct {
	Value int
	State int // the backend's in force, of States
	VIPs  []netip.Addr
}

// End is the state of a fleet in which nothing happens any more.
type End struct {
	At     time.Duration
	Agents []AgentEnd
	// Leases are those in Consul itself, and Holdings what it says that each
	// service holds.
	Leases   []Lease
	Holdings map[string][]netip.Addr
	// Wall is the time by the clock to which the leases' Until belongs.
	Wall time.Time
}

// AgentEnd is what one agent says at the end.
type AgentEnd struct {
	View
	Frontends []Frontend
	Leases    []Lease
}

// Frontend is one listener of an agent's dataplane.
type Frontend struct {
	Service string
	Address netip.Addr
	Value   int // which registration its backends are of; 0 or less if they take nobody
	Applied bool
}

// Lease is an address that isn't free.
type Lease struct {
	Address netip.Addr
	Service string // the holder; of a cooling lease the last one
	Cooling bool
	Until   time.Time // of a cooling lease
}
