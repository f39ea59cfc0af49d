package vip

import (
	"cmp"
	"errors"
	"fmt"
	"slices"
	"strings"
)

// Problem is one thing wrong with a piece of input or with a service: where it
// is, what it is and what to do about it. Problems are data (they travel into
// statuses and API answers) and also errors.
type Problem struct {
	Code    string // stable and machine-readable: "unknown_key", "address_taken", "unsupported"
	Place   string // file:line, or the source's name for the place; may be empty
	Service string // ServiceKey.String() of the service concerned; may be empty
	Field   string // path within the service: "ports[0].port"; may be empty
	Message string // what is wrong, lower case, no full stop
	Hint    string // what to do; may be empty
}

// FieldProblem is an error as a problem of the field that it was found in: the
// Problem that it is, or what it says, as an invalid one.
func FieldProblem(field string, err error) Problem {
	var p Problem
	if !errors.As(err, &p) {
		p.Message = err.Error()
	}
	p.Code, p.Field = cmp.Or(p.Code, CodeInvalid), field
	return p
}

// Error returns "place: service "x": field: message", leaving out what is empty.
// The hint is not part of it: printers put it on the same line after "hint:".
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
	CodeUnsupported  = "unsupported"   // the dataplane or this version can't do what is asked
	CodeInvalid      = "invalid"       // a value is out of its bounds or malformed
	CodeUnknownKey   = "unknown_key"   // a key nobody reads
	CodeNameTaken    = "name_taken"    // another source holds the service's name
	CodeAddressTaken = "address_taken" // another service holds the requested address
	CodePortTaken    = "port_taken"    // another service holds the port on a shared address, or the node port
	CodeOutsidePool  = "outside_pool"  // a requested address is in no range of the pool, or excluded
	CodePoolFull     = "pool_full"     // no free address in the pool
	CodeNoPool       = "no_pool"       // no such pool, or none with auto_assign
	CodeOverlap      = "overlap"       // ranges that must be disjoint are not
	CodeStore        = "store"         // a durable store refused a write
	CodeWaiting      = "pending"       // unchanged until the leader or this host handles it, or until an unreadable value is repaired
	CodeDataplane    = "dataplane"     // the dataplane refused a write
	CodeHeldBack     = "held_back"     // what a source would remove is kept for a while, because it is much at once
	CodeContested    = "contested"     // somebody else keeps changing it in the dataplane
)

// Unsupported is the problem of a dataplane or version that can't do what a
// service asks for.
func Unsupported(by, field, feature string) Problem {
	return Problem{Code: CodeUnsupported, Field: field, Message: fmt.Sprintf("%s does not support %s", by, feature)}
}

// HasCode reports whether one of problems has the code.
func HasCode(problems []Problem, code string) bool {
	return slices.ContainsFunc(problems, func(p Problem) bool { return p.Code == code })
}

// OfService returns problems with the service filled in where it is missing. It
// copies them only if one is.
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
