package sources

import (
	"slices"
	"strconv"
	"strings"

	"github.com/ironvip/ironvip/vip"
)

// RefusedKey identifies a service of a source.
type RefusedKey struct {
	Source  string
	Service vip.ServiceKey
}

// Refused has the problems with the newest input of a source that concern one of its services: those of
// the service, and those of the whole file that it is from. The service is the last good version.
type Refused struct {
	RefusedKey
	Problems []vip.Problem
}

// KeyOfRefused returns the key of a row.
func KeyOfRefused(r *Refused) RefusedKey { return r.RefusedKey }

// SameRefused reports whether two rows are equal.
func SameRefused(a, b Refused) bool {
	return a.RefusedKey == b.RefusedKey && slices.Equal(a.Problems, b.Problems)
}

// refusals are a source's problems by what they concern.
type refusals struct {
	services map[vip.ServiceKey][]vip.Problem
	files    map[string][]vip.Problem // of whole files
}

func refusalsOf(problems []vip.Problem) refusals {
	out := refusals{map[vip.ServiceKey][]vip.Problem{}, map[string][]vip.Problem{}}
	for _, p := range problems {
		switch key, err := vip.ParseServiceKey(p.Service); {
		case p.Service != "" && err == nil:
			out.services[key] = append(out.services[key], p)
		case p.Service == "" && p.Place != "":
			out.files[fileOf(p.Place)] = append(out.files[fileOf(p.Place)], p)
		}
	}
	return out
}

// of returns the problems that concern a service. Origin is the place that it is from; "" if the source
// has no claim of it.
func (r *refusals) of(key vip.ServiceKey, origin string) []vip.Problem {
	own := r.services[key]
	if len(r.files) == 0 || origin == "" {
		return own
	}
	return slices.Concat(own, r.files[fileOf(origin)])
}

// fileOf returns a place without its line.
func fileOf(place string) string {
	if i := strings.LastIndexByte(place, ':'); i >= 0 {
		if _, err := strconv.Atoi(place[i+1:]); err == nil {
			return place[:i]
		}
	}
	return place
}

// refuse replaces the source's rows of refused services. It costs O(problems), and O(claims) if there are
// problems of whole files, or were.
func (src *supervised) refuse(problems []vip.Problem) {
	if src.Refused == nil {
		return
	}
	before := src.refusals
	src.refusals = refusalsOf(problems)
	for _, r := range []refusals{before, src.refusals} {
		for key := range r.services {
			src.refuseOne(key)
		}
	}
	if len(before.files)+len(src.refusals.files) > 0 {
		for key := range src.claims.All() {
			src.refuseOne(key)
		}
	}
}

// refuseOne updates the row of a service of which the claim or the problems have changed.
func (src *supervised) refuseOne(key vip.ServiceKey) {
	var origin string
	if claim := src.claims.Row(key); claim != nil {
		origin = claim.Value.Origin
	}
	row := Refused{RefusedKey{src.name, key}, src.refusals.of(key, origin)}
	if len(row.Problems) > 0 {
		src.Refused.Set(row)
	} else {
		src.Refused.Delete(row.RefusedKey)
	}
}
