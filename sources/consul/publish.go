package consul

import (
	"context"
	"fmt"
	"maps"
	"reflect"
	"slices"
	"time"

	"github.com/ironvip/ironvip/internal/backoff"
	"github.com/ironvip/ironvip/vip"
)

// tell passes on what has changed. After services it rests for a pace: so each is
// told of at most that often, with its newest state.
func (r *run) tell(ctx context.Context) {
	quiet := time.NewTimer(time.Hour)
	defer quiet.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-r.wake:
		case <-quiet.C:
		}
		at, waits, told := r.flush()
		if waits {
			quiet.Reset(time.Until(at))
		}
		if told {
			backoff.Sleep(ctx, r.o.timing.pace)
		}
	}
}

// flush tells what there is to tell, and reports whether that was services. While
// the first questions of an epoch are open, it returns until when to wait for
// their answers.
func (r *run) flush() (at time.Time, waits, told bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	put, gone := r.settle()
	switch complete := r.epoch.number > 0 && (r.epoch.waiting <= 0 || time.Since(r.epoch.last) >= r.o.timing.firstQuiet); {
	case complete && !r.epoch.told:
		r.replace()
		told = true
	case !r.replaced: // nothing may be said before the full list
	default:
		if len(put) > 0 {
			r.out.Put(put...)
			told = true
		}
		if len(gone) > 0 && r.epoch.told { // else the full list will tell
			r.out.Delete(gone...)
		}
		if r.reworded {
			r.out.Problems(r.problems())
			r.reworded = false
		}
	}
	r.tellStale()
	return r.epoch.last.Add(r.o.timing.firstQuiet), r.epoch.number > 0 && !r.epoch.told, told
}

// settle makes services of what was read. The caller holds mu.
func (r *run) settle() (put []vip.Service, gone []vip.ServiceKey) {
	todo := slices.Sorted(maps.Keys(r.dirty))
	for ; len(todo) > 0; todo = slices.Sorted(maps.Keys(r.dirty)) {
		clear(r.dirty) // who loses a name, or gets it, is looked at again
		for _, name := range todo {
			e := r.entries[name]
			if e == nil {
				continue
			}
			before, was := e.service, e.inForce
			problems := r.settleOne(e)
			if e.inForce && (!was || !reflect.DeepEqual(before, e.service)) {
				put = append(put, e.service)
			}
			if was && (!e.inForce || before.Key != e.service.Key) {
				gone = append(gone, before.Key)
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
	if bound := r.limit(); bound != r.limited {
		r.limited, r.reworded = bound, true
	}
	// A name that one service left and another took is not gone.
	gone = slices.DeleteFunc(gone, func(key vip.ServiceKey) bool { return r.holder(key) != nil })
	return put, gone
}

// settleOne makes the service of an entry, and decides whether it is in force.
func (r *run) settleOne(e *entry) []vip.Problem {
	if e.gone {
		r.unclaim(e)
		e.inForce = false
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
	// With nothing good now, what was good stays.
	if e.service.Key == (vip.ServiceKey{}) {
		return b.problems
	}
	winner := r.first(e.service.Key)
	e.inForce = winner == e.name
	if !e.inForce {
		b.problems = append(b.problems, vip.Problem{Code: vip.CodeNameTaken, Place: r.o.place(e.name), Service: e.service.Key.String(), Field: metaPrefix + "name",
			Message: fmt.Sprintf("service %s of Consul has the name", winner), Hint: "give one of them another name"})
	}
	return b.problems
}

// claim notes which name a service wants. Of several that want one, the first in
// the order of their names in Consul has it, on every host.
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

// lookAgain has the others who want a name looked at again.
func (r *run) lookAgain(key vip.ServiceKey, but string) {
	for name := range r.claims[key] {
		if name != but {
			r.dirty[name] = struct{}{}
		}
	}
}

// first returns who of those that want a name has it.
func (r *run) first(key vip.ServiceKey) string {
	var out string
	for name := range r.claims[key] {
		if out == "" || name < out {
			out = name
		}
	}
	return out
}

// holder returns the entry that is in force under a name, nil for none.
func (r *run) holder(key vip.ServiceKey) *entry {
	if e := r.entries[r.first(key)]; e != nil && e.inForce {
		return e
	}
	return nil
}

// replace tells the full list. The caller holds mu.
func (r *run) replace() {
	services := make([]vip.Service, 0, len(r.entries))
	for _, e := range r.entries {
		if e.inForce {
			services = append(services, e.service)
		}
	}
	r.out.Replace(services, r.problems())
	r.replaced, r.epoch.told, r.reworded, r.stale = true, true, false, ""
}

// problems are those of all services, in the order of their names, and those of
// the source as a whole.
func (r *run) problems() []vip.Problem {
	var out []vip.Problem
	if r.limited > 0 {
		out = append(out, vip.Problem{Code: vip.CodeUnsupported, Place: "consul at " + r.o.Title(),
			Message: fmt.Sprintf("it takes too few connections from this host to hold a question for each of %d services: %d take turns, and changes are seen within about %s", len(r.entries), r.limited, r.o.timing.cycle),
			Hint:    "raise limits.http_max_conns_per_client of the Consul agent, or use its https address, where a connection holds many questions"})
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

// limit returns how many questions may be held, 0 where all may.
func (r *run) limit() int {
	if bound := r.slots.bound(); bound > 0 && bound < len(r.entries) {
		return bound
	}
	return 0
}

// tellStale tells whether all can be read. The caller holds mu.
func (r *run) tellStale() {
	err := r.listErr
	if err == nil && len(r.failing) > 0 {
		names := slices.Sorted(maps.Keys(r.failing))
		err = fmt.Errorf("consul at %s: service %s: %w", r.o.Title(), names[0], r.failing[names[0]])
		if len(names) > 1 {
			err = fmt.Errorf("%w (and %d services more)", err, len(names)-1)
		}
	}
	switch {
	case err != nil && err.Error() != r.stale:
		r.stale = err.Error()
		r.out.Stale(err)
	case err == nil && r.epoch.told && (r.stale != "" || r.heard):
		r.stale, r.heard = "", false
		r.out.Fresh()
	}
}
