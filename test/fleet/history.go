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
	Remove   Kind = "remove"   // the service's backend
	SetState Kind = "state"    // of the service's backend, as an operator does
)

// NoBackend is the Value of a service whose backend was removed.
const NoBackend = -1

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
	Value    int // of a Put or Register: which one it is, from 1 on; no other has the same. Of a Remove: NoBackend. Of a SetState: of States
	If       Condition
	Atomic   int // requests of one number are one: all of them happen, or none. 0: it is alone
	From, To time.Duration
	Outcome  Outcome
	VIPs     []netip.Addr // in the answer
	Missing  bool         // of a refused one: it was told that there is no such service
	Answer   string       // for people
}

// Condition is on what terms an Op is asked for. The zero Condition is none.
type Condition struct {
	Absent bool // that there is no such service
	// Value, when not 0, says that the service is as that registration left it, which
	// the agent showed by the time of Seen, with this ETag.
	Value int
	Seen  time.Duration
	ETag  string
}

func (o Op) String() string {
	what := string(o.Kind) + " " + o.Service
	switch o.Kind {
	case Delete, Remove:
	case SetState:
		what += "=" + States[o.Value]
	default:
		what += fmt.Sprintf("=%d", o.Value)
	}
	switch {
	case o.If.Absent:
		what += " if there is none"
	case o.If.Value != 0:
		what += fmt.Sprintf(" if it is %d", o.If.Value)
	}
	if o.Atomic != 0 {
		what += fmt.Sprintf(" in apply %d", o.Atomic)
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
	State int // the backend's in force, of States; 0 without a backend
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
