package vip

import (
	"cmp"
	"errors"
	"fmt"
	"slices"
	"strings"
)

// Problem describes one error in an input or a service: its place, its cause and a remedy. Problems
// are data (in statuses and API responses) and also errors.
type Problem struct {
	Code    string `json:"code" doc:"stable and machine-readable: \"unknown_key\""`
	Place   string `json:"place,omitempty" doc:"file:line, or the source's name for the place"`
	Service string `json:"service,omitempty" doc:"\"name\" or \"namespace/name\""`
	Field   string `json:"field,omitempty" doc:"path in the body or the service: \"ports[0].port\""`
	Message string `json:"message"` // what is wrong, lower case, no full stop
	Hint    string `json:"hint,omitempty" doc:"what to do about it"`
}

// MaxProblems is how many problems of one input are collected: a body, a service, a file. An input can
// have hundreds of thousands, each larger than the mistake that it describes.
const MaxProblems = 100

// Problems collects the problems of one input: the first MaxProblems, and then one that says that there
// are more.
type Problems struct{ list []Problem }

// Full reports whether Add drops what it is given from now on.
func (c *Problems) Full() bool { return len(c.list) > MaxProblems }

// Add adds problems.
func (c *Problems) Add(problems ...Problem) {
	for _, p := range problems {
		switch {
		case len(c.list) < MaxProblems:
			c.list = append(c.list, p)
		case !c.Full():
			c.list = append(c.list, Problem{Code: CodeInvalid, Place: p.Place, Service: p.Service,
				Message: fmt.Sprintf("has more than %d mistakes, and the others are not listed", MaxProblems), Hint: "repair the listed ones first"})
		}
	}
}

// List returns what was collected.
func (c *Problems) List() []Problem { return c.list }

// FieldProblem returns err as a problem of field. An err that is a Problem keeps its message, hint
// and code; another err becomes an invalid one.
func FieldProblem(field string, err error) Problem {
	var p Problem
	if !errors.As(err, &p) {
		p.Message = err.Error()
	}
	p.Code, p.Field = cmp.Or(p.Code, CodeInvalid), field
	return p
}

// Error returns "place: service "x": field: message" without the parts that are empty. It omits the
// hint: printers put that on the same line after "hint:".
func (p Problem) Error() string {
	var b strings.Builder
	if p.Place != "" {
		b.WriteString(p.Place + ": ")
	}
	if p.Service != "" {
		fmt.Fprintf(&b, "service %q: ", p.Service)
	}
	if p.Field != "" {
		b.WriteString(p.Field + ": ")
	}
	b.WriteString(p.Message)
	return b.String()
}

// The codes of problems that more than one package reports.
const (
	CodeUnsupported  = "unsupported"   // the dataplane or this version does not support the request
	CodeIneffective  = "ineffective"   // a part of the service has no effect here, and the rest is served
	CodeInvalid      = "invalid"       // a value is out of its bounds or malformed
	CodeDeprecated   = "deprecated"    // a field that works and that Kubernetes has deprecated
	CodeUnknownKey   = "unknown_key"   // a key that nothing reads
	CodeNameTaken    = "name_taken"    // another source holds the service's name
	CodeAddressTaken = "address_taken" // another service holds the requested address
	CodePortTaken    = "port_taken"    // another service holds the port on a shared address, or the node port
	CodeOutsidePool  = "outside_pool"  // a requested address is in no range of the pool, or excluded
	CodePoolFull     = "pool_full"     // no free address in the pool
	CodeQuota        = "quota"         // the namespace has as many addresses or services as it may have
	CodeNoPool       = "no_pool"       // pool not found, or none with auto_assign
	CodeOverlap      = "overlap"       // ranges overlap that must be disjoint
	CodeStore        = "store"         // a durable store refused a write
	CodeWaiting      = "pending"       // unchanged until the leader or this host handles it, or until an unreadable value is repaired
	CodeDataplane    = "dataplane"     // the dataplane refused a write
	CodeHeldBack     = "held_back"     // many removals at once, delayed
	CodeContested    = "contested"     // another program keeps changing it in the dataplane
)

// Unsupported returns the problem that a dataplane or version, by, does not support a feature that
// a service requests.
func Unsupported(by, field, feature string) Problem {
	return Problem{Code: CodeUnsupported, Field: field, Message: fmt.Sprintf("%s does not support %s", by, feature)}
}

// HasCode reports whether any of problems has the code.
func HasCode(problems []Problem, code string) bool {
	return slices.ContainsFunc(problems, func(p Problem) bool { return p.Code == code })
}

// OfService returns problems with the service set where it is missing. It copies them only if one
// is missing it.
func OfService(problems []Problem, key ServiceKey) []Problem {
	missing := func(p Problem) bool { return p.Service == "" }
	if !slices.ContainsFunc(problems, missing) {
		return problems
	}
	out := slices.Clone(problems)
	for i := range out {
		if missing(out[i]) {
			out[i].Service = key.String()
		}
	}
	return out
}
