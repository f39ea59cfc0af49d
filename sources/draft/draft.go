// Package draft builds services from what users wrote on a server's objects, for the sources that
// follow a server.
//
// Its inputs are texts of annotations or metadata, and a draft: a spec.Service with backends that
// may be unusable. Its outputs are the values of the texts, and a service of the usable backends
// with the problems of the others. It is pure, and knows no server.
package draft

import (
	"strconv"
	"strings"
	"time"

	"github.com/ironvip/ironvip/vip"
	"github.com/ironvip/ironvip/vip/spec"
	"github.com/ironvip/ironvip/vip/spec/strict"
)

// Text returns a function that sets a field of a D to a text.
func Text[D any](field func(*D) *string) func(*D, string) error {
	return func(d *D, text string) error {
		*field(d) = strings.TrimSpace(text)
		return nil
	}
}

// List returns a function that sets a field of a D to a list.
func List[D any](field func(*D) *[]string) func(*D, string) error {
	return func(d *D, text string) error {
		*field(d) = Split(text)
		return nil
	}
}

// Number returns a function that sets a field of a D to a whole number.
func Number[D any](field func(*D) *int) func(*D, string) error {
	return func(d *D, text string) error {
		n, err := strconv.ParseUint(strings.TrimSpace(text), 10, 31)
		if err != nil {
			return vip.Problem{Message: strict.Quote(text) + " is not a number", Hint: "write a whole number"}
		}
		*field(d) = int(n)
		return nil
	}
}

// Time returns a function that sets a field of a D to a time span.
func Time[D any](field func(*D) **spec.Duration) func(*D, string) error {
	return func(d *D, text string) error {
		span, err := Duration(text)
		if err == nil {
			*field(d) = &span
		}
		return err
	}
}

// HealthCheck returns a function that sets a field of a D to a health check: its type alone, or a
// JSON object with the fields of a service's "health".
func HealthCheck[D any](field func(*D) **spec.HealthCheck) func(*D, string) error {
	return func(d *D, text string) error {
		if text = strings.TrimSpace(text); !strings.HasPrefix(text, "{") {
			*field(d) = &spec.HealthCheck{Type: text}
			return nil
		}
		check, problems := spec.DecodeHealthCheckJSON([]byte(text))
		if len(problems) > 0 {
			p := problems[0]
			if p.Field != "" { // the caller states its own field
				p.Message = p.Field + ": " + p.Message
			}
			return p
		}
		*field(d) = &check
		return nil
	}
}

// Split splits a list at its commas.
func Split(text string) (out []string) {
	for word := range strings.SplitSeq(text, ",") {
		if word = strings.TrimSpace(word); word != "" {
			out = append(out, word)
		}
	}
	return out
}

// Duration parses seconds, or a duration with a unit.
func Duration(text string) (d spec.Duration, err error) {
	if n, err := strconv.ParseUint(text, 10, 31); err == nil {
		return spec.Duration(time.Duration(n) * time.Second), nil
	}
	if d.FromTree(text) != nil {
		return 0, vip.Problem{Message: strict.Quote(text) + " is not a time span", Hint: `write seconds, or a unit with them: "90", "5m"`}
	}
	return d, nil
}

// KeepsFormer adds to the hints of the problems that the service keeps its former settings.
func KeepsFormer(problems []vip.Problem) {
	for i := range problems {
		p := &problems[i]
		p.Hint = strings.TrimPrefix(p.Hint+"; the service keeps its former settings until then", "; ")
	}
}

// maxLeftOut is the maximum number of problems with single backends of one service.
const maxLeftOut = 5

// Fit builds the draft d with its usable backends. It removes the other backends from d, and calls
// leaveOut for the first few of them: with the backend's index in d before the call, the field of
// the backend ("": all of it) and the problem. More is the number of backends without a call.
//
// Rest are the problems that don't concern single backends.
func Fit(d *spec.Service, build func() (vip.Service, []vip.Problem), leaveOut func(i int, field string, p vip.Problem)) (out vip.Service, rest []vip.Problem, more int) {
	index := make([]int, len(d.Backends)) // before the call, of each backend that is left
	for i := range index {
		index[i] = i
	}
	leftOut := 0
	for {
		out, problems := build()
		rest = nil
		bad := map[int]bool{}
		for _, p := range problems {
			at, field, is := backendOf(p.Field)
			switch {
			case !is:
				rest = append(rest, p)
			case !bad[at]:
				bad[at] = true
				if leftOut++; leftOut <= maxLeftOut {
					leaveOut(index[at], field, p)
				}
			}
		}
		if len(bad) == 0 {
			return out, rest, max(0, leftOut-maxLeftOut)
		}
		n := 0
		for i := range index {
			if !bad[i] {
				d.Backends[n], index[n] = d.Backends[i], index[i]
				n++
			}
		}
		d.Backends, index = d.Backends[:n], index[:n]
	}
}

// backendOf splits the field of a problem with a backend: "backends[3].address".
func backendOf(path string) (at int, field string, is bool) {
	rest, is := strings.CutPrefix(path, "backends[")
	number, field, closed := strings.Cut(rest, "]")
	at, err := strconv.Atoi(number)
	return at, strings.TrimPrefix(field, "."), is && closed && err == nil
}
