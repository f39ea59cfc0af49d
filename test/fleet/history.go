package fleet

import (
	"fmt"
	"net/netip"
	"time"
)

// History is the events of one fleet. Times count from its beginning.
type History struct {
	Ops   []Op
	Views []View
	// Reuse is the cooldown: how long a released address is reserved for its former holder.
	Reuse time.Duration
}

// Kind is the kind of an Op.
type Kind string

// The kinds of requests.
const (
	Put      Kind = "put"
	Delete   Kind = "delete"
	Register Kind = "register" // the service's backend, as the backend itself does
	Remove   Kind = "remove"   // the service's backend
	SetState Kind = "state"    // of the service's backend, as an operator does
)

// NoBackend is the Value of a service whose backend was removed.
const NoBackend = -1

// States are the overrides of a backend. Their indexes are the Values of SetState. An override
// ends after its service was deleted, unless the service was back before its owner has noticed.
var States = []string{"ready", "drain", "maint"}

// Outcome is what is known about the effect of an Op.
type Outcome string

// The outcomes of requests.
const (
	Acknowledged Outcome = "acknowledged"
	Refused      Outcome = "refused" // it has had no effect, and will have none
	Unknown      Outcome = "unknown" // it may have happened, or may happen later
)

// Op is one request to one agent.
type Op struct {
	Agent    Run
	Service  string
	Kind     Kind
	Value    int // of a Put or Register: which one it is, from 1 on; no other has the same. Of a Remove: NoBackend. Of a SetState: of States
	If       Condition
	Atomic   int // requests with the same number are atomic: all of them happen, or none. 0: not atomic
	From, To time.Duration
	Outcome  Outcome
	VIPs     []netip.Addr // the VIPs in the answer
	Missing  bool         // of a refused one: the answer was that the service doesn't exist
	Answer   string       // for display
}

// Condition is the condition of an Op. The zero Condition is none.
type Condition struct {
	Absent bool // the service doesn't exist
	// Value, when not 0, requires that the service is as that registration left it. The agent
	// showed it by the time of Seen, with this ETag.
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

// View is what one agent's API reported about all services. The answer was generated between From
// and To.
type View struct {
	Agent    Run
	From, To time.Duration
	Services map[string]Seen // must not be changed: Views may share it
}

// Seen is one service as an agent's API shows it.
type Seen struct {
	Value int
	State int // the backend's effective state, of States; 0 without a backend
	VIPs  []netip.Addr
}

// End is the final state of a fleet.
type End struct {
	At     time.Duration
	Agents []AgentEnd
	// Leases are those in Consul itself. Holdings are the stored holdings of each service.
	Leases   []Lease
	Holdings map[string][]netip.Addr
	// Wall is the time by the clock of the leases' Until.
	Wall time.Time
}

// AgentEnd is what one agent reports at the end.
type AgentEnd struct {
	View
	Frontends []Frontend
	Leases    []Lease
}

// Frontend is one listener of an agent's dataplane.
type Frontend struct {
	Service string
	Address netip.Addr
	Value   int // the registration of its backends; 0 or less if they take no connections
	Applied bool
}

// Lease is an address that isn't free.
type Lease struct {
	Address netip.Addr
	Service string // the holder; of a cooling lease the last holder
	Cooling bool
	Until   time.Time // of a cooling lease
}
