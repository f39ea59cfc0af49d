package status

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strings"

	v1 "github.com/ironvip/ironvip/api/v1"
	"github.com/ironvip/ironvip/internal/text"
	"github.com/ironvip/ironvip/pipeline/compile"
	"github.com/ironvip/ironvip/vip"
	"github.com/ironvip/ironvip/vip/spec"
)

// Planned is a service with its allocation: the present one or, for a proposal, the expected one.
type Planned struct {
	Service    vip.Service
	Allocation vip.Allocation
}

// plan is what a proposal would do. Its changes are sorted by service, the service itself before its
// backends.
type plan v1.Plan

// fieldChange is one field that differs, with the name from a service's spec.
type fieldChange struct {
	Field         string // "none" for a missing value
	Before, After string // "none" where there was or will be nothing
}

// String returns "scheduler wrr -> mh".
func (f fieldChange) String() string { return fmt.Sprintf("%s %s -> %s", f.Field, f.Before, f.After) }

// NewPlan compares proposed services with the present ones and returns the changes, in an order
// that depends only on the names, with what the proposed services would not get on a host. Present
// must hold only services that the proposal covers: those that are not proposed are removed. It is
// pure.
func NewPlan(present, proposed []Planned, on On) v1.Plan {
	before := byKey(present)
	after := byKey(proposed)
	both := maps.Clone(before)
	maps.Copy(both, after)
	keys := slices.SortedFunc(maps.Keys(both), func(a, b vip.ServiceKey) int {
		return cmp.Or(strings.Compare(a.Namespace, b.Namespace), strings.Compare(a.Name, b.Name))
	})
	out := plan{Changes: []v1.PlanChange{}}
	for _, k := range keys {
		was, is := before[k], after[k]
		switch {
		case was == nil:
			out.add(v1.PlanChange{Action: v1.ActionAdd, Kind: v1.KindService, Name: k.String(), Detail: describe(is, true)})
		case is == nil:
			out.add(v1.PlanChange{Action: v1.ActionRemove, Kind: v1.KindService, Name: k.String(), Detail: describe(was, false), Impact: drainImpact(&was.Service)})
		default:
			out.compare(was, is)
		}
		if is != nil {
			out.check(is, on)
		}
	}
	return v1.Plan(out)
}

func byKey(list []Planned) map[vip.ServiceKey]*Planned {
	m := make(map[vip.ServiceKey]*Planned, len(list))
	for i := range list {
		m[list[i].Service.Key] = &list[i]
	}
	return m
}

// Append adds a change that concerns no service, for example a changed pool.
func Append(to *v1.Plan, change v1.PlanChange) { (*plan)(to).add(change) }

func (p *plan) add(change v1.PlanChange) {
	switch change.Action {
	case v1.ActionAdd:
		p.Add++
	case v1.ActionChange:
		p.Change++
	case v1.ActionRemove:
		p.Remove++
	}
	p.Changes = append(p.Changes, change)
}

// compare adds the differences between two versions of one service.
func (p *plan) compare(was, is *Planned) {
	k := is.Service.Key
	if fields := changedFields(was, is); len(fields) > 0 {
		p.add(v1.PlanChange{
			Action: v1.ActionChange, Kind: v1.KindService, Name: k.String(),
			Detail: text.Join(fields, ", ", fieldChange.String), Impact: impact(was, is, fields),
		})
	}
	backend := func(action string, b *vip.Backend) v1.PlanChange {
		return v1.PlanChange{Action: action, Kind: v1.KindBackend, Name: k.String() + "/" + b.ID()}
	}
	a, b := was.Service.Backends, is.Service.Backends
	for len(a) > 0 || len(b) > 0 {
		switch order := nextBackend(a, b); {
		case order < 0:
			change := backend(v1.ActionRemove, &a[0])
			change.Impact = drainImpact(&is.Service)
			p.add(change)
			a = a[1:]
		case order > 0:
			change := backend(v1.ActionAdd, &b[0])
			change.Detail = backendText(&b[0])
			p.add(change)
			b = b[1:]
		default:
			if fields := backendFields(&a[0], &b[0]); len(fields) > 0 {
				change := backend(v1.ActionChange, &b[0])
				change.Detail = text.Join(fields, ", ", fieldChange.String)
				p.add(change)
			}
			a, b = a[1:], b[1:]
		}
	}
}

// nextBackend compares the heads of two sorted lists. An empty list sorts last.
func nextBackend(a, b []vip.Backend) int {
	switch {
	case len(a) == 0:
		return 1
	case len(b) == 0:
		return -1
	}
	return cmp.Or(a[0].Address.Compare(b[0].Address), cmp.Compare(a[0].Port, b[0].Port))
}

// describe returns what a service has: "192.0.2.12 (new, from public-v4) 443/tcp, 2 backends".
func describe(p *Planned, fresh bool) string {
	addresses, origin := list(p.Allocation.VIPs), ""
	switch {
	case addresses == "":
		addresses = "no address"
	case fresh && p.Allocation.Pool != "":
		origin = fmt.Sprintf(" (new, from %s)", p.Allocation.Pool)
	case fresh:
		origin = " (new)"
	}
	return fmt.Sprintf("%s%s %s, %s", addresses, origin, portsText(p.Service.Ports), text.Plural(len(p.Service.Backends), "backend"))
}

// impact returns the most severe effect on the clients of a changed service. It ignores the
// backends that a policy excludes, because that differs by node.
func impact(was, is *Planned, fields []fieldChange) string {
	if ports := givenWay(&was.Service, &is.Service); ports != "" {
		return "open connections to " + ports + " end at once"
	}
	if apart(&was.Service) && !apart(&is.Service) {
		return "open connections of clients inside end at once"
	}
	excludes := false
	for _, f := range fields {
		switch {
		case f.Field == "vips", strings.HasPrefix(f.Field, "ports[") && (f.After == none || strings.HasSuffix(f.Field, ".target_port")):
			return drainImpact(&was.Service)
		case strings.HasSuffix(f.Field, "_traffic"), f.Field == "traffic_distribution":
			excludes = true
		}
	}
	if excludes {
		return "where a backend is no longer chosen: " + drainImpact(&was.Service)
	}
	return "open connections keep their backend"
}

// apart reports whether clients inside have their own frontends.
func apart(s *vip.Service) bool {
	external, internal := compile.Policies(s)
	return external != internal
}

// givenWay returns the ranges of ports that can't drain because new ports replace them.
func givenWay(was, is *vip.Service) string {
	var ranges []string
	for i := range was.Ports {
		k := was.Ports[i].Key()
		if k.LastPort != 0 && slices.ContainsFunc(is.Ports, func(p vip.Port) bool { return p.Key() != k && p.Key().Overlaps(k) }) {
			ranges = append(ranges, k.String())
		}
	}
	return strings.Join(ranges, " ")
}

// drainImpact returns what happens to the connections of something removed.
func drainImpact(s *vip.Service) string {
	tcp := slices.ContainsFunc(s.Ports, func(p vip.Port) bool { return p.Protocol != vip.UDP })
	if !tcp || s.DrainTimeout == 0 {
		return "leaves at once"
	}
	return "open connections drain up to " + spec.Duration(s.DrainTimeout).String()
}
