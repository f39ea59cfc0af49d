package kubernetes

import (
	"cmp"
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"

	"github.com/ironvip/ironvip/internal/parallel"
	"github.com/ironvip/ironvip/sources/publish"
	"github.com/ironvip/ironvip/vip"
)

// round builds what has changed since the last round, or everything for a full list. For this
// method and the methods below that do not lock mu, the caller holds mu.
func (r *run) round() publish.Round {
	again, err := r.look()
	round := publish.Round{Err: err, Again: again, Answered: r.answered}
	r.answered = false
	if r.readAllOnce() { // nothing is published before the full list
		r.place()
		r.plan()
		if round.Full = !r.replaced || r.lost && err == nil; round.Full {
			for key := range r.entries {
				r.dirty[key] = struct{}{}
			}
			r.forget()
			r.replaced, r.lost = true, false
		}
		round.Put, round.Gone = r.build()
		r.tell()
		if round.Reworded = r.reworded; round.Reworded || round.Full {
			round.Problems, r.reworded = r.problems(), false
		}
	}
	round.Incomplete = r.lost
	return round
}

// published reports to the Writer whether the objects are current, and reports the ranges in use.
func (r *run) published() {
	r.mu.Lock()
	r.s.objects.SetInTouch(r.publisher.Fresh())
	r.mu.Unlock()
	r.reportRanges()
}

// readAllOnce reports whether all input of services has been read in this run. A server that fails is waited for if Gateways
// depend on the kind: without it, their services would seem to be gone.
func (r *run) readAllOnce() bool {
	return !slices.ContainsFunc(r.streams, func(s *stream) bool {
		failed := s.err != nil && (s.refused() || !s.ofGateways && time.Since(s.since) >= r.o.timing.gracePeriod)
		return !s.listed && (s.required || s.awaited && !failed)
	})
}

// build builds the services that may have changed.
func (r *run) build() (put []vip.Service, gone []vip.ServiceKey) {
	all := r.buildDirty()
	for i := range all {
		m := &all[i]
		e, key := m.entry, m.entry.key
		switch {
		case m.use:
			put = append(put, m.service)
		case e.used:
			gone = append(gone, r.o.prefix().Name(key))
		}
		e.used = m.use
		switch {
		case m.settings != nil:
			r.s.settings[key] = m.settings
		case e.definition(r.o) == nil:
			delete(r.s.settings, key)
		}
		if !slices.Equal(m.problems, e.problems) {
			e.problems, r.reworded = m.problems, true
			r.s.objects.Describe(key, m.problems)
		}
		if len(m.problems) > 0 {
			r.wrong[key] = struct{}{}
		} else {
			delete(r.wrong, key)
		}
		if e.service == nil && e.listener == nil && len(e.slices) == 0 {
			delete(r.entries, key)
		}
	}
	clear(r.dirty)
	return put, gone
}

// made is the result of building an entry.
type made struct {
	entry *followed
	built
}

// buildDirty builds the services that may have changed, in the order of their keys. It uses all
// processors for many services, such as those of a new list.
func (r *run) buildDirty() []made {
	for key := range r.dirty { // listeners themselves serve nobody
		for listener := range r.gateways.ServedBy(key) {
			r.dirty[listener] = struct{}{}
		}
	}
	out := make([]made, 0, len(r.dirty))
	for _, key := range slices.SortedFunc(maps.Keys(r.dirty), vip.ServiceKey.Compare) {
		out = append(out, made{entry: r.entries[key]})
	}
	parallel.All(len(out), func(i int) bool {
		out[i].built = r.buildOne(out[i].entry)
		return true
	})
	return out
}

// buildOne builds the service of an entry. It has no side effects.
func (r *run) buildOne(e *followed) built {
	in := input{service: e.definition(r.o), nodes: r.nodes, outside: r.s.outside, last: r.s.settings[e.key]}
	switch {
	case in.service == nil:
		return built{}
	case in.service != e.service:
		in.listener = e.listener
		for _, b := range e.listener.Backends {
			if of := r.entries[b.Service]; of != nil && of.service != nil {
				in.backends = append(in.backends, backend{Backend: b, service: of.service, slices: slices.Collect(maps.Values(of.slices))})
			}
		}
	default:
		in.slices = slices.Collect(maps.Values(e.slices))
	}
	return r.o.build(in)
}

// definition returns the Service that the entry's service is built from: one of ours, or that of a listener; nil: none.
func (e *followed) definition(o *Options) *corev1.Service {
	switch {
	case e.service != nil && o.selects(e.service):
		return e.service
	case e.listener != nil:
		return e.listener.Service
	}
	return nil
}

// forget removes the Services that an earlier run read and that this run has not found.
func (r *run) forget() {
	if r.replaced {
		return
	}
	for key := range r.s.objects.All() {
		if e := r.entries[key]; e == nil || e.service == nil {
			r.s.objects.Delete(key)
		}
	}
}

// problems returns the problems of the source as a whole and of its Writer, then those of
// nodes and of Services in the order of their keys.
func (r *run) problems() []vip.Problem {
	out := slices.Concat(r.troubles, *r.s.writing.Load())
	for _, name := range sorted(r.badNodes) {
		out = append(out, *r.badNodes[name])
	}
	for _, key := range slices.SortedFunc(maps.Keys(r.wrong), vip.ServiceKey.Compare) {
		out = append(out, r.entries[key].problems...)
	}
	return out
}

// refused reports whether the server has answered that the objects can't be read.
func (s *stream) refused() bool { return apierrors.IsForbidden(s.err) || s.absent() }

// absent reports whether the server has answered that it does not have the kind.
func (s *stream) absent() bool { return apierrors.IsNotFound(s.err) }

// look returns why the source can't be followed, if a failure has lasted for some time. It also
// records the problems with streams that are not required. The wait is needed because a server that
// has just started may refuse requests that it allows a moment later.
func (r *run) look() (again time.Duration, err error) {
	var troubles []vip.Problem
	for _, s := range r.streams {
		if s.err == nil || s.ofGateways && s.absent() && !s.listed {
			continue
		}
		refused := s.refused()
		until := s.since.Add(r.o.timing.gracePeriod)
		if !s.required && !refused && until.Before(r.back.Add(2*r.o.timing.maxBackoff)) {
			until = r.back.Add(2 * r.o.timing.maxBackoff) // after an outage streams recover in any order
		}
		if left := time.Until(until); left > 0 {
			again = min(left, cmp.Or(again, left))
			continue
		}
		if s.required {
			if err == nil {
				err = s.trouble(r.o.Client.Server())
			}
		} else if err == nil || refused {
			troubles = append(troubles, s.problem(r.o.Client.Server()))
		}
	}
	if !slices.Equal(troubles, r.troubles) {
		r.troubles, r.reworded = troubles, true
	}
	return again, err
}

// trouble returns the problem of a stream as an error with a hint.
func (s *stream) trouble(server string) error {
	p := s.problem(server)
	if p.Hint == "" {
		return fmt.Errorf("%s: %s", p.Place, p.Message)
	}
	return fmt.Errorf("%s: %s (%s)", p.Place, p.Message, p.Hint)
}

// problem returns the failure of a stream as a problem of the source.
func (s *stream) problem(server string) vip.Problem {
	what := s.resource
	if s.gv.Group != "" {
		what += "." + s.gv.Group
	}
	p := vip.Problem{Code: vip.CodeInvalid, Place: "kubernetes at " + server, Message: fmt.Sprintf("%s %s: %s", s.verb, what, s.err)}
	if s.namespace != "" {
		p.Message = fmt.Sprintf("%s %s in namespace %s: %s", s.verb, what, s.namespace, s.err)
	}
	switch {
	case apierrors.IsForbidden(s.err):
		group := cmp.Or(s.gv.Group, "the core group")
		p.Hint = fmt.Sprintf("give its user the rule with %q of %s in configs/kubernetes/clusterrole.yaml: list, watch", s.resource, group)
	case apierrors.IsUnauthorized(s.err):
		p.Hint = "the server doesn't know these credentials: check the user of the kubeconfig, and whether its token or certificate has expired, or isn't valid yet"
	case apierrors.IsNotFound(s.err):
		p.Code, p.Message = vip.CodeUnsupported, fmt.Sprintf("the server has no %s", what)
		if s.required {
			p.Hint = "Kubernetes 1.21 or newer is needed"
		}
	}
	if !s.required {
		p.Message += ": " + s.missing
	}
	return p
}

// reportRanges reports the ranges in use if they have changed. Ranges that this run has not read
// yet are those of the previous run. The caller doesn't hold mu.
func (r *run) reportRanges() {
	if r.o.Ranges == nil {
		return
	}
	r.mu.Lock()
	now := r.s.ranges
	for _, s := range r.streams {
		if s.listed && s.resource == "nodes" {
			r.pods.read(&now[0])
		} else if s.listed && s.resource == "servicecidrs" {
			r.cidrs.read(&now[1])
		}
	}
	r.mu.Unlock()
	if slices.Equal(now[0], r.s.ranges[0]) && slices.Equal(now[1], r.s.ranges[1]) {
		return
	}
	r.s.ranges = now
	all := slices.SortedFunc(slices.Values(slices.Concat(now[0], now[1])), netip.Prefix.Compare)
	r.o.Ranges(slices.Compact(all))
}
