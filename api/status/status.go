// Package status explains what the pipeline's tables hold. Of derives the state of
// one service and the sentences for it from the rows of its tables; NewPlan compares
// two sets of services and lists what a change would do. Both are pure functions.
// The package starts nothing and writes no table; api and the agent call it.
package status

import (
	"fmt"
	"slices"
	"time"

	"github.com/ironvip/ironvip/dns"
	"github.com/ironvip/ironvip/dns/zone"
	"github.com/ironvip/ironvip/internal/table"
	"github.com/ironvip/ironvip/pipeline"
	"github.com/ironvip/ironvip/pipeline/compile"
	"github.com/ironvip/ironvip/plane/reconcile"
	"github.com/ironvip/ironvip/sources"
	"github.com/ironvip/ironvip/vip"
)

// State is the state of a service.
type State string

// The states of a service.
const (
	Healthy   State = "healthy"   // all frontends are applied and every backend takes new connections and has been seen healthy
	Unchecked State = "unchecked" // as healthy, without evidence of the health of some backend
	Elsewhere State = "elsewhere" // served by other nodes only, as configured
	Degraded  State = "degraded"  // clients are served, but not as requested
	Down      State = "down"      // no backend takes new connections, or the dataplane fails
	Pending   State = "pending"   // waits for an address or for the dataplane
	Draining  State = "draining"  // removed; open connections may continue
	Refused   State = "refused"   // it requests something unsupported or taken, and none of it is served
)

// Input is everything that the status of one service depends on.
type Input struct {
	// View has the service, or nil if it is removed, with its backends' overrides and health.
	compile.View
	Key        vip.ServiceKey
	ServiceRev uint64
	Allocation *vip.Allocation    // nil: not allocated yet
	Compiled   *pipeline.Compiled // nil: not compiled yet
	Frontends  []Frontend
	// Rev is the revision of the status: see NewRevisions. The fields may be newer.
	Rev uint64
	// Refused are the problems of the newest input of its source: the service is the last good
	// version. They don't change the state.
	Refused []vip.Problem
	Names   []zone.Name                // the DNS names that it has and wants, the canonical one first
	Left    func(*vip.Frontend) string // see Tables
	Now     time.Time
}

// Frontend is a desired frontend and the result of applying it.
type Frontend struct {
	Frontend vip.Frontend
	Rev      uint64
	Applied  *reconcile.AppliedFrontend // nil: not tried yet
}

// Pending reports whether the dataplane has not tried the newest row yet.
func (f *Frontend) Pending() bool { return f.Applied == nil || f.Applied.Tried.Rev < f.Rev }

// Report is the status of a service.
type Report struct {
	State State
	Ready int // backends that are ready, have a weight and are neither unhealthy nor ejected, on any node
	Total int // backends that the service lists
	// Backups counts the backends of Total that serve only while no other can, and ReadyBackups
	// those of Ready. Both are 0 if all are backups: then each of them serves.
	Backups, ReadyBackups int
	// Unhealthy counts the backends that are ready and have a weight, but are unhealthy at some port
	// at least.
	Unhealthy int
	// Held counts the usable backends that fail their checks and keep their traffic because all checks
	// of this host failed at the same time, at HeldSince. It ends at HeldUntil.
	Held                 int
	HeldSince, HeldUntil vip.Instant
	// Panics states that new connections at some port go to unhealthy backends, too, because too few
	// are healthy; see vip.Service.PanicThreshold.
	Panics   bool
	Ejected  int  // usable backends that the dataplane skips for a while at some port at least
	Leaving  int  // endpoints that drain, over all frontends
	Applied  bool // the dataplane has tried everything of the newest spec
	Problems []vip.Problem
	Uses     Uses     // of the backends; only Of sets it
	Lines    []string // sentences that explain the state, the most important first
}

// Of returns the status of one service. It is pure and costs O(ports x backends) of the service.
func Of(in Input) Report {
	out := compute(&in)
	out.Problems = append(out.Problems, in.Refused...)
	if in.Service != nil {
		out.Uses = UsesOf(&in)
	}
	out.Lines = explain(&in, &out)
	return out
}

// Short returns the report with the first of its Lines only, at less cost than Of.
func Short(in Input) Report {
	out := compute(&in)
	out.Problems = append(out.Problems, in.Refused...)
	out.Lines = []string{headline(&in, &out)}
	return out
}

// Brief returns the report without Refused and Lines, at less cost than Of.
func Brief(in Input) Report { return compute(&in) }

// compute returns the report without the sentences.
func compute(in *Input) Report {
	out := Report{Problems: problemsOf(in)}
	if in.Service != nil {
		out.Total = len(in.Service.Backends)
		for i := range in.Service.Backends {
			b := &in.Service.Backends[i]
			if b.Backup {
				out.Backups++
			}
			switch {
			case in.Usable(b) && in.Ejected(b):
				out.Ejected++
			case in.Usable(b):
				out.Ready++
				if b.Backup {
					out.ReadyBackups++
				}
				out.hold(in.HeldCheck(b))
			case !in.Weightless(b) && in.StateOf(b) == vip.Ready:
				out.Unhealthy++
			}
		}
		if out.Backups == out.Total {
			out.Backups, out.ReadyBackups = 0, 0
		}
		out.Panics = slices.ContainsFunc(in.Frontends, func(f Frontend) bool { return panics(in, &f.Frontend) })
	}
	for i := range in.Frontends {
		for _, e := range in.Frontends[i].Frontend.Backends {
			if e.IsLeaving() {
				out.Leaving++
			}
		}
	}
	out.Applied = isApplied(in)
	out.State = stateOf(in, &out)
	return out
}

// hold counts a held check of a backend, if there is one.
func (s *Report) hold(c *vip.CheckResult) {
	if c == nil {
		return
	}
	if s.Held++; s.Held == 1 || s.HeldSince.After(c.Since) {
		s.HeldSince = c.Since
	}
	if c.HeldUntil.After(s.HeldUntil) {
		s.HeldUntil = c.HeldUntil
	}
}

// panics reports whether a frontend sends clients to unhealthy backends because too few are healthy.
func panics(in *Input, f *vip.Frontend) bool {
	return !f.Key.Whole() && in.Panics(vip.FamilyOf(f.Key.Addr), f.Port)
}

// isFor reports whether a listed backend, on any node, serves the frontend's family and
// port.
func isFor(b *vip.Backend, f *vip.Frontend) bool {
	return vip.FamilyOf(b.Address) == vip.FamilyOf(f.Key.Addr) && b.Serves(f.Port)
}

func isApplied(in *Input) bool {
	return in.Compiled != nil && in.Compiled.ServiceRev >= in.ServiceRev &&
		!slices.ContainsFunc(in.Frontends, func(f Frontend) bool { return f.Pending() })
}

func stateOf(in *Input, s *Report) State {
	if in.Service == nil {
		return Draining
	}
	if in.Allocation == nil || !s.Applied { // otherwise the rows may belong to an earlier version
		return Pending
	}
	if in.Service.NotHere {
		return Elsewhere
	}
	if refused(in) {
		return Refused
	}
	if len(in.Allocation.VIPs) == 0 {
		return Pending
	}
	broken, away := 0, 0
	for i := range in.Frontends {
		f := &in.Frontends[i]
		switch {
		case f.Applied.Problem != nil:
			broken++
		case !f.Frontend.Refuses():
		case servedElsewhere(in, &f.Frontend):
			away++
		default:
			broken++
		}
	}
	elsewhere := in.Compiled.NotHere || away > 0 && away == len(in.Frontends)
	switch {
	case !elsewhere && broken+away == len(in.Frontends):
		return Down
	case broken > 0 || len(s.Problems) > 0:
		return Degraded
	case elsewhere:
		return Elsewhere
	case s.Ready < s.Total, s.Held > 0:
		return Degraded
	case slices.ContainsFunc(in.Service.Backends, func(b vip.Backend) bool { seen, _ := in.Observed(&b); return seen != vip.Healthy }):
		return Unchecked
	}
	return Healthy
}

// servedElsewhere reports whether a frontend without backends leaves its clients to other nodes.
// This is so if its policy is local and a backend of its family and port is ready. The ready
// backend is on another node, because this frontend rejects its clients.
func servedElsewhere(in *Input, f *vip.Frontend) bool {
	if _, policy := policyOf(in.Service, f); policy != vip.Local {
		return false
	}
	return slices.ContainsFunc(in.Service.Backends, func(b vip.Backend) bool {
		return isFor(&b, f) && in.UsableAt(&b, f.Port)
	})
}

// refused reports whether the service was compiled to nothing, or the dataplane supports none of
// it.
func refused(in *Input) bool {
	if in.Compiled.NotHere {
		return false
	}
	if len(in.Compiled.Frontends) == 0 {
		return len(in.Allocation.VIPs) > 0 || vip.HasCode(in.Compiled.Problems, vip.CodeUnsupported)
	}
	for i := range in.Frontends {
		a := in.Frontends[i].Applied
		if a == nil || a.Problem == nil || a.Problem.Code != vip.CodeUnsupported {
			return false
		}
	}
	return len(in.Frontends) > 0
}

// problemsOf returns the problems of the allocator, of compile and of the dataplane.
func problemsOf(in *Input) []vip.Problem {
	var problems []vip.Problem
	switch {
	case in.Compiled != nil: // includes the allocation's
		problems = append(problems, in.Compiled.Problems...)
	case in.Allocation != nil:
		problems = append(problems, vip.OfService(in.Allocation.Problems, in.Key)...)
	}
	for i := range in.Frontends {
		f := &in.Frontends[i]
		// A warning says that the frontend works, although another program keeps changing it: that concerns the dataplane.
		if f.Applied != nil && f.Applied.Problem != nil {
			p := *f.Applied.Problem
			p.Service = in.Key.String()
			if p.Place == "" {
				p.Place = f.Frontend.Key.String()
			}
			problems = append(problems, p)
		}
	}
	for i := range in.Names {
		if in.Names[i].Lost {
			problems = append(problems, nameProblem(in.Service, in.Key, in.Names[0].Name, &in.Names[i]))
		}
	}
	return problems
}

// nameProblem says who has a DNS name that the service, which may be nil, wants. First is its
// canonical name.
func nameProblem(s *vip.Service, k vip.ServiceKey, first string, n *zone.Name) vip.Problem {
	p := vip.Problem{Code: vip.CodeNameTaken, Service: k.String(), Field: "name", Hint: "rename one of the two services, or use " + first}
	if s != nil {
		p.Place = s.Origin
	}
	if n.Kind == zone.Hostname {
		p.Field, p.Hint = "hostnames", "remove it from one of the two services"
	}
	switch {
	case n.Undecided:
		who := "a service"
		if n.Winner != (vip.ServiceKey{}) {
			who = "service " + n.Winner.String()
		}
		p.Message = fmt.Sprintf("%s is not answered yet: %s had it before the restart, and not every source has been read", n.Name, who)
		p.Hint = "wait until every source is synced: ironvip source list"
	case n.Winner == vip.ServiceKey{}:
		p.Message, p.Hint = fmt.Sprintf("%s is a name that ironvip needs itself", n.Name), "use another name"
	default:
		p.Message = fmt.Sprintf("%s resolves to service %s, which has the older lease", n.Name, n.Winner)
	}
	return p
}

// Tables are the tables that a status depends on. Overrides, Health, Passive and Refused may be nil.
type Tables struct {
	Clock       *table.Clock // of the tables, for NewRevisions
	Services    table.Reader[vip.ServiceKey, vip.Service]
	Allocations table.Reader[vip.ServiceKey, vip.Allocation]
	Compiled    table.Reader[vip.ServiceKey, pipeline.Compiled]
	Frontends   table.Reader[vip.FrontendKey, vip.Frontend]
	Applied     table.Reader[vip.FrontendKey, reconcile.AppliedFrontend]
	Overrides   table.Reader[vip.OverrideKey, vip.BackendState]
	Health      table.Reader[vip.BackendKey, vip.BackendHealth]
	Passive     table.Reader[vip.PassiveKey, vip.PassiveHealth]
	Refused     table.Reader[sources.RefusedKey, sources.Refused]
	Naming      *dns.Stage                 // nil: services have no names
	Left        func(*vip.Frontend) string // why a frontend isn't balanced at connect(); nil: none is
	// Revisions has the revision of each status; see NewRevisions. It may be nil.
	Revisions table.Reader[vip.ServiceKey, vip.ServiceKey]
}

// Input reads what the status of one service depends on. It does not find the remaining frontends
// of a removed service. They are in the frontends table with its name.
func (t *Tables) Input(key vip.ServiceKey, now time.Time) Input {
	in := Input{View: t.View(), Key: key, Left: t.Left, Now: now}
	if t.Revisions != nil {
		// Before the rest: a revision that is too old costs its readers one check, one that is too new
		// would lose a change.
		if row := t.Revisions.Row(key); row != nil {
			in.Rev = row.Rev
		}
	}
	if s, rev, ok := t.Services.Get(key); ok {
		in.Service, in.ServiceRev, in.Rev = &s, rev, max(in.Rev, rev)
		if t.Refused != nil {
			if row := t.Refused.Row(sources.RefusedKey{Source: s.Source, Service: key}); row != nil {
				in.Refused = row.Value.Problems
			}
		}
	}
	if a, _, ok := t.Allocations.Get(key); ok {
		in.Allocation = &a
	}
	if c, _, ok := t.Compiled.Get(key); ok {
		in.Compiled = &c
		for _, live := range c.Frontends {
			if f, ok := t.Frontend(live.Value.Key); ok {
				in.Frontends = append(in.Frontends, f)
			}
		}
	}
	if t.Naming != nil {
		in.Names = t.Naming.NamesOf(key)
	}
	return in
}

// View returns the view of a service that is still to be set.
func (t *Tables) View() (in compile.View) {
	if t.Overrides != nil {
		in.Override = func(k vip.BackendKey) (vip.State, bool) {
			s, _, ok := t.Overrides.Get(vip.OverrideKey{BackendKey: k})
			return s.State, ok
		}
		in.Regroup = func(k vip.OverrideKey) (uint32, bool) {
			s, _, ok := t.Overrides.Get(k)
			return s.Weight, ok
		}
	}
	if t.Health != nil {
		in.Health = func(k vip.BackendKey) *vip.BackendHealth {
			if row := t.Health.Row(k); row != nil {
				return &row.Value
			}
			return nil
		}
	}
	if t.Passive != nil {
		in.Passive = func(k vip.PassiveKey) *vip.PassiveHealth {
			if row := t.Passive.Row(k); row != nil {
				return &row.Value
			}
			return nil
		}
	}
	return in
}

// Frontend reads one frontend and the result of applying it.
func (t *Tables) Frontend(key vip.FrontendKey) (Frontend, bool) {
	f, rev, ok := t.Frontends.Get(key)
	out := Frontend{Frontend: f, Rev: rev}
	if row := t.Applied.Row(key); row != nil {
		out.Applied = &row.Value
	}
	return out, ok
}
