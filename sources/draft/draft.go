// Package draft builds services from what users wrote on a server's objects, for the sources that
// follow a server.
//
// Its inputs are texts of annotations or metadata, and a draft: a spec.Service with backends that
// may be unusable. Its outputs are the values of the texts, and a service of the usable backends
// with the problems of the others. It is pure, and knows no server.
package draft

import (
	"encoding/json"
	"strconv"
	"strings"
	"time"

	"github.com/ironvip/ironvip/vip"
	"github.com/ironvip/ironvip/vip/spec"
	"github.com/ironvip/ironvip/vip/spec/strict"
)

// Fields are the fields of a service that a text sets, by their names in metadata and annotations:
// "drain-timeout". They are all but ports, backends and groups.
var Fields = func() map[string]*spec.Field {
	out := map[string]*spec.Field{}
	for i := range spec.Fields {
		if f := &spec.Fields[i]; f.Key != "ports" && f.Key != "backends" && f.Key != "groups" && !strings.Contains(f.Key, ".") {
			out[Name(f.Key)] = f
		}
	}
	return out
}()

// Name returns the name of a key in metadata and annotations.
func Name(key string) string { return strings.ReplaceAll(key, "_", "-") }

// Set sets a field of d to a text. Words of a list are separated by commas, a time span is a number of
// seconds or has a unit, and a health check is its type or a JSON object. The error is a vip.Problem
// without a field.
func Set(d *spec.Service, f *spec.Field, text string) error {
	text = strings.TrimSpace(text)
	switch field := f.Of(d).(type) {
	case *string:
		*field = text
	case *[]string:
		*field = Split(text)
	case *int:
		n, err := strconv.ParseUint(text, 10, 31)
		if err != nil {
			return vip.Problem{Message: strict.Quote(text) + " is not a number", Hint: "write a whole number"}
		}
		*field = int(n)
	case *bool:
		if text != "true" && text != "false" {
			return vip.Problem{Message: strict.Quote(text) + " is neither true nor false"}
		}
		*field = text == "true"
	case **spec.Duration:
		span, err := duration(text)
		if err != nil {
			return err
		}
		*field = &span
	case **spec.Affinity:
		if text == "none" {
			break
		}
		timeout, err := duration(text)
		if err != nil {
			return err
		}
		*field = &spec.Affinity{Timeout: &timeout}
	case **spec.HealthCheck:
		check, err := healthCheck(text)
		if err != nil {
			return err
		}
		*field = &check
	case *spec.NodePort:
		return field.FromTree(Number(text))
	case *map[string]string:
		labels := map[string]string{}
		for _, word := range Split(text) {
			name, value, has := strings.Cut(word, "=")
			if _, twice := labels[name]; twice || !has {
				return vip.Problem{Message: strict.Quote(text) + " is no list of labels", Hint: `write "team=shop,tier=front", each name once`}
			}
			labels[name] = value
		}
		*field = labels
	default:
		panic("draft: no text sets " + f.Key)
	}
	return nil
}

func healthCheck(text string) (spec.HealthCheck, error) {
	if !strings.HasPrefix(text, "{") {
		return spec.HealthCheck{Type: text}, nil
	}
	check, problems := spec.DecodeHealthCheckJSON([]byte(text))
	if len(problems) == 0 {
		return check, nil
	}
	p := problems[0]
	if p.Field != "" { // the caller states its own field
		p.Message, p.Field = p.Field+": "+p.Message, ""
	}
	return check, p
}

// Number returns text as a tree value, which is a number if text is one.
func Number(text string) any {
	if _, err := strconv.ParseUint(text, 10, 31); err == nil {
		return json.Number(text)
	}
	return text
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

func duration(text string) (d spec.Duration, err error) {
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
