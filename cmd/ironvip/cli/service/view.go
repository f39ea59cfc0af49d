package service

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"

	v1 "github.com/ironvip/ironvip/api/v1"
	"github.com/ironvip/ironvip/cmd/ironvip/cli/command"
	"github.com/ironvip/ironvip/cmd/ironvip/cli/output"
	"github.com/ironvip/ironvip/cmd/ironvip/cli/render"
	"github.com/ironvip/ironvip/internal/text"
	"github.com/ironvip/ironvip/vip/spec"
)

// serviceRow adds the row of a service, with its open connections if they are known.
func (a *app) serviceRow(grid *output.Grid, s *v1.Service, connections map[string]uint64) {
	name, st := command.ServiceName(*s), &s.Status
	n, known := connections[name]
	grid.Add(name, render.CommaList(st.VIPs), ports(st.Ports), backendCount(*st), serviceState(*st), s.Source, output.When(known, render.Count(n)),
		a.Age(st.Since), firstName(*st), st.Pool, s.Spec.Scheduler, nodePorts(st.Ports), s.Revision, st.Summary)
}

// serviceView shows services in full as text, with the open connections by service and backend. For
// programs, it writes what apply accepts.
func (a *app) serviceView(list []v1.Service, conns map[string]map[string]uint64) output.View {
	specs := make([]v1.ServiceSpec, len(list))
	for i, s := range list {
		specs[i] = definition(s)
	}
	v := output.View{
		Data:  v1.ApplyRequest{Services: specs},
		Names: output.Texts(list, command.ServiceName),
		TOML:  func() (string, error) { return output.TOMLBlocks("service", specs) },
		Text: func(p *output.Printer) string {
			return strings.Join(output.Texts(list, func(s v1.Service) string { return a.serviceText(p, s, conns[command.ServiceName(s)]) }), "\n")
		},
	}
	if len(specs) == 1 {
		v.Data = specs[0]
	}
	return v
}

// definition returns what an apply of the same service would send. It omits "backends" if all
// backends registered themselves, because these remain without that key. With the key, an apply
// removes what is not in the list, so the list has all backends even if only one is not registered;
// those that are still registered keep their ttl.
func definition(s v1.Service) v1.ServiceSpec {
	if !slices.ContainsFunc(s.Status.Backends, func(b v1.BackendStatus) bool { return !b.Removed && b.TTL == "" }) {
		s.Spec.Backends = nil
		for i := range s.Spec.Groups {
			s.Spec.Groups[i].Backends = nil
		}
	}
	return s.Spec
}

func (a *app) serviceText(p *output.Printer, s v1.Service, conns map[string]uint64) string {
	st := s.Status
	var b strings.Builder
	// The summary is a sentence: "web is healthy: ...".
	reason, _ := strings.CutPrefix(st.Summary, command.ServiceName(s)+" is "+st.State)
	fmt.Fprintf(&b, "%s is %s%s\n", p.Paint(command.ServiceName(s), output.Strong), p.Paint(st.State, stateStyles[st.State]), output.Clean(reason))

	facts := output.Grid{Indent: "  "}
	facts.Fact("source", cmp.Or(output.Join(", ", s.Source, s.Origin), output.None))
	vips := render.CommaList(st.VIPs)
	if st.Pool != "" && vips != "" {
		vips += " from pool " + st.Pool + output.When(st.Since != nil, ", assigned "+a.Ago(st.Since))
	}
	facts.Fact("vip", cmp.Or(vips, output.None))
	facts.Fact("dns", strings.Join(st.Names, ","))
	facts.Fact("hostnames", output.When(len(st.Names) == 0, strings.Join(s.Spec.Hostnames, ",")))
	list := func(items []string) string { return text.First(fewItems, items, ",") }
	if p.Format == output.Wide {
		list = func(items []string) string { return strings.Join(items, ",") }
	}
	for _, row := range spec.Rows {
		facts.Fact(row, s.Spec.Row(row, list))
	}
	facts.Fact("health port", number(st.Health))
	facts.Fact("labels", labels(s.Spec.Labels))
	facts.Fact("revision", fmt.Sprintf("%d, %s", s.Revision, howApplied(st)))
	b.WriteString(facts.Text(p))

	ports := output.Grid{Indent: "  ", Header: []string{"PORT", "NAME", "TARGET", "NODE PORT"}}
	for _, port := range st.Ports {
		ports.Add(port.Numbers()+"/"+port.Protocol, port.Name, target(port, st.Backends), number(port.NodePort))
	}
	b.WriteString(ports.Text(p))
	if len(st.Groups) > 0 {
		groups := output.Grid{Indent: "  ", Header: []string{"GROUP", "WEIGHT", "SHARE", "USABLE", "OVERRIDE"}}
		for _, g := range st.Groups {
			groups.Add(g.Name, groupWeight(g), fmt.Sprintf("%g%%", g.Share), fmt.Sprintf("%d/%d", g.Usable, g.Backends), a.overridden(g.Override))
		}
		b.WriteString(groups.Text(p))
	}
	if len(st.Backends) > 0 {
		backends := output.Grid{Indent: "  ", Header: backendHeader}
		for _, be := range st.Backends {
			backends.Add(a.backendRow(be, conns)...)
		}
		b.WriteString(backends.Text(p))
	}
	for _, problem := range st.Problems {
		b.WriteString(render.Problems("  ", []v1.Problem{render.WithoutService(problem)}))
	}
	return b.String()
}

// groupWeight returns the weight in effect: "10", "30 (source says 10)".
func groupWeight(g v1.GroupStatus) any {
	if g.SourceWeight == nil || *g.SourceWeight == g.Weight {
		return g.Weight
	}
	return output.Cell{Text: fmt.Sprintf("%d (source says %d)", g.Weight, *g.SourceWeight), Style: output.Caution}
}

// firstName returns the canonical DNS name of a service, or "" while names are not answered.
func firstName(st v1.ServiceStatus) string {
	if len(st.Names) == 0 {
		return ""
	}
	return st.Names[0]
}

// howApplied returns whether the dataplane has applied the service.
func howApplied(st v1.ServiceStatus) string {
	if !st.Applied {
		return "not applied yet"
	}
	return "applied"
}

// target returns the target port of a port.
func target(port v1.PortStatus, backends []v1.BackendStatus) string {
	follows := func(b v1.BackendStatus) bool { return b.Port == 0 }
	if len(backends) > 0 && !slices.ContainsFunc(backends, follows) {
		return "backend's own"
	}
	return number(port.TargetPort)
}

func explainView(e v1.Explanation) output.View {
	return output.View{
		Data:  e,
		Names: []string{e.Service},
		Text: func(*output.Printer) string { // the sentences include the problems and their hints
			return strings.Join(output.Texts(e.Lines, output.Clean), "\n") + "\n"
		},
	}
}

// stateStyles has the styles of the states of services.
var stateStyles = map[string]output.Style{v1.StateHealthy: output.Good, v1.StateUnchecked: output.Faint, v1.StateDegraded: output.Caution,
	v1.StatePending: output.Caution, v1.StateDown: output.Bad, v1.StateRefused: output.Bad}

// ports returns a service's ports, grouped by protocol: "80,10000-10099/tcp 443/udp".
func ports(in []v1.PortStatus) string { return v1.PortsByProtocol(in, v1.PortStatus.Numbers) }

// nodePorts returns the granted node ports in the same form.
func nodePorts(in []v1.PortStatus) string {
	return v1.PortsByProtocol(in, func(p v1.PortStatus) string { return number(p.NodePort) })
}

// backendCount returns how many of the backends that are not leaving are usable: "2/3", and after a
// plus those that serve only while no other can: "2/3 +1 backup", "0/3 +1/2 backup".
func backendCount(s v1.ServiceStatus) string {
	var all, usable [2]int // without and with backup
	for _, b := range s.Backends {
		if b.LeavingAt != nil {
			continue
		}
		kind := 0
		if b.Backup {
			kind = 1
		}
		all[kind]++
		if b.Usable {
			usable[kind]++
		}
	}
	switch {
	case all[1] == 0:
		return fmt.Sprintf("%d/%d", s.Usable, all[0])
	case all[0] == 0: // each of them serves
		return fmt.Sprintf("%d/%d", usable[1], all[1])
	case all[1] == usable[1]:
		return fmt.Sprintf("%d/%d +%d backup", usable[0], all[0], all[1])
	}
	return fmt.Sprintf("%d/%d +%d/%d backup", usable[0], all[0], usable[1], all[1])
}

// serviceState returns the state with what is special about it: "degraded, panic".
func serviceState(s v1.ServiceStatus) output.Cell {
	text := s.State + output.When(s.Panic, ", panic") + output.When(s.Held > 0, ", held") + output.When(s.Full, ", full")
	return output.Cell{Text: text, Style: stateStyles[s.State]}
}

// fewItems is the number of items of a list shown; -o wide shows all.
const fewItems = 8

// labels returns labels sorted by key: "team=web,tier=1".
func labels(in map[string]string) string {
	return strings.Join(output.Texts(slices.Sorted(maps.Keys(in)), func(k string) string { return k + "=" + in[k] }), ",")
}

func number(n uint16) string {
	if n == 0 {
		return ""
	}
	return strconv.Itoa(int(n))
}
