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

// refuse replaces the source's rows of refused services. It costs O(problems), and O(claims) if the
// problems of whole files change.
func (src *supervised) refuse(problems []vip.Problem) {
	if src.Refused == nil {
		return
	}
	before, now := src.refusals, refusalsOf(problems)
	src.refusals = now
	concerned := changedKeys(before.services, now.services)
	if files := changedKeys(before.files, now.files); len(files) > 0 {
		for key, claim := range src.claims.All() {
			if _, changed := files[fileOf(claim.Origin)]; changed {
				concerned[key] = struct{}{}
			}
		}
	}
	for key := range concerned {
		src.refuseOne(key)
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

// changedKeys returns the keys that have other problems.
func changedKeys[K comparable](before, now map[K][]vip.Problem) map[K]struct{} {
	out := make(map[K]struct{})
	for k, problems := range now {
		if !slices.Equal(before[k], problems) {
			out[k] = struct{}{}
		}
	}
	for k := range before {
		if now[k] == nil {
			out[k] = struct{}{}
		}
	}
	return out
}
