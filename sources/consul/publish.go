package consul

import (
	"fmt"
	"maps"
	"slices"
	"time"

	"github.com/ironvip/ironvip/sources/publish"
	"github.com/ironvip/ironvip/vip"
	"github.com/ironvip/ironvip/vip/spec/strict"
)

// round is what has changed since the last round. While the first queries of an epoch are open, it
// requests another round at the time when to stop waiting for their answers. For this method and
// all below, the caller holds mu.
func (r *run) round() publish.Round {
	put, gone := r.build()
	round := publish.Round{Put: put, Gone: gone, Answered: r.listAnswered, Reworded: r.reworded, Err: r.unreadable()}
	r.listAnswered, r.reworded = false, false
	switch complete := r.epoch.number > 0 && (r.epoch.waiting <= 0 || time.Since(r.epoch.last) >= r.o.timing.firstQuiet); {
	case r.epoch.published:
	case complete:
		round.Full, r.epoch.published = true, true
		round.Put = r.services()
	default:
		round.Incomplete = true
		if r.epoch.number > 0 {
			round.Again = time.Until(r.epoch.last.Add(r.o.timing.firstQuiet))
		}
	}
	if round.Full || round.Reworded {
		round.Problems = r.problems()
	}
	return round
}

// build builds the services that were read.
func (r *run) build() (put []vip.Service, gone []vip.ServiceKey) {
	todo := slices.Sorted(maps.Keys(r.dirty))
	for ; len(todo) > 0; todo = slices.Sorted(maps.Keys(r.dirty)) {
		clear(r.dirty) // entries that lose or get a name are built again
		for _, name := range todo {
			e := r.entries[name]
			if e == nil {
				continue
			}
			before, was := e.service.Key, e.used
			problems := r.buildOne(e)
			if e.used {
				put = append(put, e.service)
			}
			if was && (!e.used || before != e.service.Key) {
				gone = append(gone, before)
			}
			if !slices.Equal(problems, e.problems) {
				e.problems, r.reworded = problems, true
			}
			if len(e.problems) > 0 {
				r.wrong[name] = struct{}{}
			} else {
				delete(r.wrong, name)
			}
			if e.gone {
				delete(r.entries, name)
			}
		}
	}
	if crowded := r.takeTurns(); crowded != r.crowded {
		r.crowded, r.reworded = crowded, true
	}
	// A name that moved from one service to another is not gone.
	gone = slices.DeleteFunc(gone, func(key vip.ServiceKey) bool { return r.holder(key) != nil })
	return put, gone
}

// buildOne builds the service of an entry and decides whether it is in effect.
func (r *run) buildOne(e *entry) []vip.Problem {
	if e.gone {
		r.unclaim(e)
		e.used = false
		return nil
	}
	if e.instances == nil {
		return nil
	}
	b := r.o.build(e.name, e.instances, e.settings)
	if b.good {
		if b.service.Key != e.service.Key {
			r.unclaim(e)
		}
		e.service, e.settings = b.service, b.settings
		r.claim(e)
	}
	// If there is no valid service now, the last valid one stays in effect.
	if e.service.Key == (vip.ServiceKey{}) {
		return b.problems
	}
	winner := r.first(e.service.Key)
	e.used = winner == e.name
	if !e.used {
		b.problems = append(b.problems, vip.Problem{Code: vip.CodeNameTaken, Place: r.o.place(e.name), Service: e.service.Key.String(), Field: metaPrefix + "name",
			Message: fmt.Sprintf("service %s of Consul has the name", strict.Name(winner)), Hint: "give one of them another name"})
	}
	return b.problems
}

// claim records the name that a service claims. If several services claim a name, the first by its
// name in Consul wins on every host.
func (r *run) claim(e *entry) {
	key := e.service.Key
	if key == (vip.ServiceKey{}) {
		return
	}
	if r.claims[key] == nil {
		r.claims[key] = map[string]struct{}{}
	}
	if _, has := r.claims[key][e.name]; !has {
		r.claims[key][e.name] = struct{}{}
		r.lookAgain(key, e.name)
	}
}

func (r *run) unclaim(e *entry) {
	key := e.service.Key
	if _, has := r.claims[key][e.name]; !has {
		return
	}
	if delete(r.claims[key], e.name); len(r.claims[key]) == 0 {
		delete(r.claims, key)
	}
	r.lookAgain(key, e.name)
}

// lookAgain marks the other services that claim a name for another build.
func (r *run) lookAgain(key vip.ServiceKey, but string) {
	for name := range r.claims[key] {
		if name != but {
			r.dirty[name] = struct{}{}
		}
	}
}

// first returns the Consul service that wins a name.
func (r *run) first(key vip.ServiceKey) string {
	var out string
	for name := range r.claims[key] {
		if out == "" || name < out {
			out = name
		}
	}
	return out
}

// holder returns the entry in effect for a name, or nil.
func (r *run) holder(key vip.ServiceKey) *entry {
	if e := r.entries[r.first(key)]; e != nil && e.used {
		return e
	}
	return nil
}

// services returns all services in effect.
func (r *run) services() []vip.Service {
	services := make([]vip.Service, 0, len(r.entries))
	for _, e := range r.entries {
		if e.used {
			services = append(services, e.service)
		}
	}
	return services
}

// problems returns the problems of the source as a whole, then those of the services, sorted by
// name.
func (r *run) problems() []vip.Problem {
	var out []vip.Problem
	if r.crowded {
		out = append(out, vip.Problem{Code: vip.CodeUnsupported, Place: "consul at " + r.o.Title(),
			Message: fmt.Sprintf("it takes too few connections from this host to hold a question for each of %d services: %d take turns, and changes are seen within about %s", len(r.entries), r.o.timing.held, r.o.timing.cycle),
			Hint:    "use the https address of the Consul agent, where a connection holds many questions"})
	}
	if r.blind {
		out = append(out, vip.Problem{Code: vip.CodeInvalid, Place: "consul at " + r.o.Title(),
			Message: "it shows none of these services, and leaves out some that the token may not read",
			Hint:    "give the token service:read for them, and node:read for their nodes"})
	}
	for _, name := range r.missing {
		out = append(out, vip.Problem{Code: vip.CodeInvalid, Place: r.o.place(name), Service: name,
			Message: "is asked for by name, and has no instances in Consul", Hint: "register some, let the token read them, or take the name out of this source"})
	}
	for _, name := range slices.Sorted(maps.Keys(r.wrong)) {
		out = append(out, r.entries[name].problems...)
	}
	return out
}

// takeTurns reports whether there are more services than blocking queries that may be held.
func (r *run) takeTurns() bool { return r.held != nil && len(r.entries) > cap(r.held) }

// unreadable returns why the list or some services can't be read.
func (r *run) unreadable() error {
	if r.listErr != nil || len(r.failing) == 0 {
		return r.listErr
	}
	names := slices.Sorted(maps.Keys(r.failing))
	err := fmt.Errorf("consul at %s: service %s: %w", r.o.Title(), strict.Name(names[0]), r.failing[names[0]])
	if len(names) > 1 {
		err = fmt.Errorf("%w (and %d more)", err, len(names)-1)
	}
	return err
}
