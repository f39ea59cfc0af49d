package status

import (
	"context"
	"errors"
	"fmt"
	"iter"
	"log/slog"
	"slices"

	v1 "github.com/ironvip/ironvip/api/v1"
	"github.com/ironvip/ironvip/configs"
	"github.com/ironvip/ironvip/dns/zone"
	"github.com/ironvip/ironvip/internal/hostnet"
	"github.com/ironvip/ironvip/internal/table"
	"github.com/ironvip/ironvip/internal/tomlfile"
	"github.com/ironvip/ironvip/ipam"
	"github.com/ironvip/ironvip/ipam/allocator"
	"github.com/ironvip/ironvip/ipam/memstore"
	"github.com/ironvip/ironvip/ipam/pool"
	"github.com/ironvip/ironvip/pipeline/compile"
	"github.com/ironvip/ironvip/sources/static"
	"github.com/ironvip/ironvip/vip"
	"github.com/ironvip/ironvip/vip/spec/strict"
)

// Proposal is a configuration with its services, and the state of the host that it is for. Without
// that state, as offline, the host has no leases and no services.
type Proposal struct {
	Config   *configs.Config
	Services []vip.Service // of the sources that have files

	Present []Planned             // the services of these sources that are in effect
	Others  []Planned             // services of other sources
	Leases  iter.Seq[*ipam.Lease] // nil: none
	Host    *hostnet.Snapshot     // nil: unknown
	Mode    string                // the dataplane in use, if the configuration leaves it open; "": unknown
}

// Plan returns what the proposal would change, and what is wrong with it: what the allocator would
// not grant, what the dataplane does not support, and names that two services want. It changes
// nothing and costs O(leases + services). The error is the allocator's.
func (p *Proposal) Plan(ctx context.Context) (v1.Plan, error) {
	allocator, err := p.allocator(ctx)
	if err != nil {
		return v1.Plan{}, err
	}
	granted := allocator.Preview(p.Services)
	after := make([]Planned, len(p.Services))
	for i := range after {
		after[i] = Planned{Service: p.Services[i], Allocation: granted[i]}
	}
	mode := p.Config.Dataplane.Mode
	if mode == configs.ModeAuto {
		mode = p.Mode
	}
	out := NewPlan(p.Present, after, On{Mode: mode, Node: compile.Node{Name: p.Config.Node.Name, Zone: p.Config.Node.Zone,
		RealServer: p.Config.Dataplane.Role == configs.RoleRealServer}})
	if lost := p.lostNames(after); p.Config.DNS.On() {
		out.Problems = append(out.Problems, lost...)
	} else {
		out.Warnings = append(out.Warnings, lost...)
	}
	out.Warnings = append(out.Warnings, p.pools(allocator)...)
	static.Locate(out.Problems)
	static.Locate(out.Warnings)
	tomlfile.SortProblems(out.Problems)
	tomlfile.SortProblems(out.Warnings)
	return out, nil
}

// allocator returns one with the present leases and the pools of the proposal. It writes nothing.
func (p *Proposal) allocator(ctx context.Context) (*allocator.Allocator, error) {
	store := memstore.New()
	if p.Leases != nil {
		var ops []ipam.Op
		for lease := range p.Leases {
			ops = append(ops, ipam.Gain(*lease)...)
		}
		if err := store.Commit(ctx, ops); err != nil {
			return nil, err
		}
	}
	a, err := allocator.New(ctx, store, p.Config.IPAMConfig(), allocator.Options{Clock: &table.Clock{}, Log: slog.New(slog.DiscardHandler)})
	if err == nil && p.Host != nil {
		a.SetHost(*p.Host)
	}
	return a, err
}

// pools returns the warnings about the pools, which the allocator has with the present leases.
func (p *Proposal) pools(with *allocator.Allocator) (out []vip.Problem) {
	c := p.Config
	for _, w := range pool.Check(c.IPAMConfig().Pools, c.IPAM.PodCIDRs) {
		if pool.IsWarning(w) {
			w.Place = c.Place(w.Field)
			out = append(out, w)
		}
	}
	for i, now := range with.Pools() {
		if now.Outside > 0 {
			w := pool.Shrunk(now.Name, now.Outside)
			w.Field = strict.Index("pool", i) + ".cidrs"
			w.Place = c.Place(w.Field)
			out = append(out, w)
		}
	}
	// Services of Kubernetes may have the addresses that the cluster has assigned.
	assigned := slices.ContainsFunc(c.Sources, func(s configs.Source) bool { return s.Type == "kubernetes" })
	if len(c.Pools) == 0 && len(p.Services) == 0 && !assigned {
		out = append(out, vip.Problem{Code: vip.CodeNoPool, Place: c.Path, Field: "pool", Message: "missing: services get no address",
			Hint: `add a [[pool]] with name and cidrs`})
	}
	return out
}

// lostNames returns the DNS names that proposed services want and other services would have.
func (p *Proposal) lostNames(after []Planned) (out []vip.Problem) {
	z, err := zone.New(zone.Settings{Domain: p.Config.DNS.Domain, ShortNames: p.Config.DNS.ShortNames})
	if err != nil {
		return nil // the configuration was checked: it is not valid
	}
	var names []zone.Change
	for _, list := range [][]Planned{p.Others, after} {
		for i := range list {
			s := &list[i].Service
			names = append(names, zone.Change{Service: zone.Service{Key: s.Key, Since: list[i].Allocation.Since, Hostnames: s.Hostnames.List()}})
		}
	}
	z.Apply(1, names)
	for i := range after {
		s := &after[i].Service
		has := z.NamesOf(s.Key)
		for j := range has {
			if n := &has[j]; n.Lost {
				problem := nameProblem(s, s.Key, has[0].Name, n)
				if n.Winner != (vip.ServiceKey{}) {
					problem.Message = fmt.Sprintf("%s is a name of service %s, too", n.Name, n.Winner)
				}
				out = append(out, problem)
			}
		}
	}
	return out
}

// On is the host that a plan is for.
type On struct {
	Mode string // of its dataplane, one of configs.Dataplanes; "" is unknown
	Node compile.Node
}

// check adds what a proposed service requests and would not get.
func (p *plan) check(is *Planned, on On) {
	s := &is.Service
	frontends, refused := compile.Service(compile.Input{View: compile.View{Service: s}, Allocation: &is.Allocation, Node: on.Node})
	problems := slices.Concat(is.Allocation.Problems, refused)
	warnings := compile.Ineffective(s)
	if plane := configs.DataplaneOf(on.Mode); plane != nil {
		for i := range frontends {
			// The frontends of a service often have the same problem.
			if problem, bad := errors.AsType[vip.Problem](plane.Refuses(&frontends[i])); bad && !slices.Contains(problems, problem) {
				problems = append(problems, problem)
			}
		}
		if !on.Node.RealServer {
			warnings = append(warnings, plane.Ignores(s)...)
		}
	}
	p.Problems = append(p.Problems, inService(problems, s)...)
	p.Warnings = append(p.Warnings, inService(warnings, s)...)
}

// Unsupported returns why a dataplane can't serve a frontend, or nil.
func Unsupported(mode string, f *vip.Frontend) *vip.Problem {
	if problem, bad := errors.AsType[vip.Problem](configs.DataplaneOf(mode).Refuses(f)); bad {
		return &problem
	}
	return nil
}

// ineffective returns the settings of services that have no effect on any dataplane.
func ineffective(services []vip.Service) (out []vip.Problem) {
	for i := range services {
		out = append(out, compile.Ineffective(&services[i])...)
	}
	static.Locate(out)
	return out
}

// inService sets the service and place of problems.
func inService(problems []vip.Problem, s *vip.Service) []vip.Problem {
	out := slices.Clone(problems)
	for i := range out {
		out[i].Service, out[i].Place = s.Key.String(), s.Origin
	}
	return out
}
