package control

import (
	"time"

	"github.com/ironvip/ironvip/vip"
	"github.com/ironvip/ironvip/vip/compile"
	"github.com/ironvip/ironvip/vip/reconcile"
	"github.com/ironvip/ironvip/vip/table"
)

// State is how a service fares, in a word.
type State string

// The states of a service.
const (
	Healthy  State = "healthy"  // all of it is programmed and every backend takes new connections
	Degraded State = "degraded" // clients are served, but something is not as asked
	Down     State = "down"     // programmed, but no backend takes new connections; or the dataplane fails
	Pending  State = "pending"  // on its way: waits for an address, or for the dataplane
	Draining State = "draining" // removed; open connections may still go on
	Refused  State = "refused"  // it asks for something it can't have, and none of it is served
)

// StatusInput is everything the status of one service depends on.
type StatusInput struct {
	Key        vip.ServiceKey
	Service    *vip.Service // nil: removed
	ServiceRev uint64
	Allocation *vip.Allocation // nil: not answered yet
	Compiled   *Compiled       // nil: not compiled yet
	Frontends  []FrontendStatus
	Override   func(vip.BackendKey) (vip.State, bool) // the operator's words; may be nil
	Now        time.Time
}

// FrontendStatus is a frontend as it is wanted and as the dataplane has it.
type FrontendStatus struct {
	Frontend vip.Frontend
	Rev      uint64
	Applied  *reconcile.Applied // nil: not tried yet
}

// pending reports whether the dataplane has yet to try the newest row.
func (f *FrontendStatus) pending() bool { return f.Applied == nil || f.Applied.Rev < f.Rev }

// ServiceStatus says how a service fares.
type ServiceStatus struct {
	State    State
	Ready    int  // backends that take new connections
	Total    int  // backends that the service lists
	Leaving  int  // endpoints that drain, over all frontends
	Applied  bool // the dataplane has tried everything of the newest spec
	Problems []vip.Problem
	Lines    []string // sentences that explain the state, the most important first
}

// Status derives how one service fares. It is pure and costs O(one service).
func Status(in StatusInput) ServiceStatus {
	out := ServiceStatus{Problems: problemsOf(&in)}
	if in.Service != nil {
		out.Total = len(in.Service.Backends)
		for i := range in.Service.Backends {
			if usable(&in, &in.Service.Backends[i]) {
				out.Ready++
			}
		}
	}
	for i := range in.Frontends {
		for _, e := range in.Frontends[i].Frontend.Backends {
			if isLeaving(e) {
				out.Leaving++
			}
		}
	}
	out.Applied = isApplied(&in)
	out.State = stateOf(&in, &out)
	out.Lines = explain(&in, &out)
	return out
}

// usable reports whether a listed backend takes new connections.
func usable(in *StatusInput, b *vip.Backend) bool {
	return b.Weight > 0 && compile.EffectiveState(in.Key, b, in.Override) == vip.Ready
}

func isApplied(in *StatusInput) bool {
	if in.Compiled == nil || in.Compiled.ServiceRev < in.ServiceRev {
		return false
	}
	for i := range in.Frontends {
		if in.Frontends[i].pending() {
			return false
		}
	}
	return true
}

func stateOf(in *StatusInput, s *ServiceStatus) State {
	if in.Service == nil {
		return Draining
	}
	if in.Allocation == nil || in.Compiled == nil {
		return Pending
	}
	if refused(in) {
		return Refused
	}
	if len(in.Allocation.VIPs) == 0 || !s.Applied {
		return Pending
	}
	failed, empty := 0, 0
	for i := range in.Frontends {
		if in.Frontends[i].Applied.Problem != nil {
			failed++
		} else if !in.Frontends[i].Frontend.Usable() {
			empty++
		}
	}
	switch {
	case failed+empty == len(in.Frontends):
		return Down
	case failed+empty > 0 || s.Ready < s.Total || len(s.Problems) > 0:
		return Degraded
	}
	return Healthy
}

// refused reports whether the service was compiled to nothing, or the dataplane
// supports none of it.
func refused(in *StatusInput) bool {
	if len(in.Compiled.Frontends) == 0 {
		return len(in.Allocation.VIPs) > 0 || hasCode(in.Compiled.Problems, vip.CodeUnsupported)
	}
	for i := range in.Frontends {
		a := in.Frontends[i].Applied
		if a == nil || a.Problem == nil || a.Problem.Code != vip.CodeUnsupported {
			return false
		}
	}
	return len(in.Frontends) > 0
}

// problemsOf returns everything that is wrong with the service, from the
// allocator, compile and the dataplane.
func problemsOf(in *StatusInput) []vip.Problem {
	var problems []vip.Problem
	switch {
	case in.Compiled != nil: // holds the allocation's, too
		problems = append(problems, in.Compiled.Problems...)
	case in.Allocation != nil:
		problems = append(problems, named(in.Allocation.Problems, in.Key)...)
	}
	for i := range in.Frontends {
		f := &in.Frontends[i]
		if f.Applied != nil && f.Applied.Problem != nil {
			p := *f.Applied.Problem
			p.Service = in.Key.String()
			if p.Place == "" {
				p.Place = f.Frontend.Key.String()
			}
			problems = append(problems, p)
		}
	}
	return problems
}

// Tables are the tables that a status is read from. States may be nil.
type Tables struct {
	Services    table.Reader[vip.ServiceKey, vip.Service]
	Allocations table.Reader[vip.ServiceKey, vip.Allocation]
	Compiled    table.Reader[vip.ServiceKey, Compiled]
	Frontends   table.Reader[vip.FrontendKey, vip.Frontend]
	Applied     table.Reader[vip.FrontendKey, reconcile.Applied]
	States      table.Reader[vip.BackendKey, vip.State]
}

// StatusInput reads what Status needs of one service. Frontends that a removed
// service left behind are not found this way: they are in the frontends table
// under its name.
func (t *Tables) StatusInput(key vip.ServiceKey, now time.Time) StatusInput {
	in := StatusInput{Key: key, Now: now}
	if s, rev, ok := t.Services.Get(key); ok {
		in.Service, in.ServiceRev = &s, rev
	}
	if a, _, ok := t.Allocations.Get(key); ok {
		in.Allocation = &a
	}
	if c, _, ok := t.Compiled.Get(key); ok {
		in.Compiled = &c
		for _, k := range c.Frontends {
			if f, ok := t.Frontend(k); ok {
				in.Frontends = append(in.Frontends, f)
			}
		}
	}
	if t.States != nil {
		in.Override = func(k vip.BackendKey) (vip.State, bool) {
			s, _, ok := t.States.Get(k)
			return s, ok
		}
	}
	return in
}

// Frontend reads one frontend and what the dataplane made of it.
func (t *Tables) Frontend(key vip.FrontendKey) (FrontendStatus, bool) {
	f, rev, ok := t.Frontends.Get(key)
	out := FrontendStatus{Frontend: f, Rev: rev}
	if a, _, tried := t.Applied.Get(key); tried {
		out.Applied = &a
	}
	return out, ok
}
