package cli

import (
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
	"time"

	v1 "github.com/ironvip/ironvip/api/v1"
	"github.com/ironvip/ironvip/cmd/ironvip/cli/output"
	"github.com/ironvip/ironvip/internal/text"
	"github.com/ironvip/ironvip/vip"
	"github.com/ironvip/ironvip/vip/spec"
)

// serviceTable is the table of services, made page by page. It keeps the services themselves only if
// they are printed for programs.
type serviceTable struct {
	a           *app
	list        v1.ServiceList
	grid        *output.Grid
	connections map[string]uint64
}

// begin begins the table with the revision of the first page, so that a wait for changes misses nothing.
func (t *serviceTable) begin(first v1.ServiceList, connections map[string]uint64) {
	t.list = v1.ServiceList{Items: []v1.Service{}, Revision: first.Revision}
	t.connections = connections
	t.grid = output.NewGrid("NAME", "VIP", "PORTS", "BACKENDS", "STATE", "SOURCE", "CONN", "AGE",
		"+DNS NAME", "+POOL", "+SCHEDULER", "+NODE PORTS", "+REVISION", "+SUMMARY")
}

func (t *serviceTable) add(services []v1.Service) {
	for i := range services {
		s := &services[i]
		name, st := serviceName(*s), &s.Status
		conn := ""
		if n, known := t.connections[name]; known {
			conn = count(n)
		}
		t.grid.Add(name, commaList(st.VIPs), ports(st.Ports), backendCount(*st), serviceState(*st), s.Source,
			conn, t.a.age(st.Since), firstName(*st), st.Pool, s.Spec.Scheduler, nodePorts(st.Ports), s.Revision, st.Summary)
	}
	if !t.a.printer().People() {
		t.list.Items = append(t.list.Items, services...)
	}
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
		Names: output.Texts(list, serviceName),
		TOML:  func() (string, error) { return output.TOMLBlocks("service", specs) },
		Text: func(p *output.Printer) string {
			return strings.Join(output.Texts(list, func(s v1.Service) string { return a.serviceText(p, s, conns[serviceName(s)]) }), "\n")
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
	}
	return s.Spec
}

func (a *app) serviceText(p *output.Printer, s v1.Service, conns map[string]uint64) string {
	st := s.Status
	var b strings.Builder
	// The summary is a sentence: "web is healthy: ...".
	reason, _ := strings.CutPrefix(st.Summary, serviceName(s)+" is "+st.State)
	fmt.Fprintf(&b, "%s is %s%s\n", p.Paint(serviceName(s), output.Strong), p.Paint(st.State, stateStyle(st.State)), output.Clean(reason))

	facts := output.Grid{Indent: "  "}
	fact := func(name, text string) { facts.Add(output.Cell{Text: name, Style: output.Faint}, text) }
	optional := func(name, text string) {
		if text != "" {
			fact(name, text)
		}
	}
	fact("source", output.Join(", ", s.Source, s.Origin))
	vips := commaList(st.VIPs)
	if st.Pool != "" && vips != "" {
		vips += " from pool " + st.Pool
		if st.Since != nil {
			vips += ", assigned " + a.ago(st.Since)
		}
	}
	fact("vip", vips)
	if len(st.Names) > 0 {
		fact("dns", strings.Join(st.Names, ","))
	} else {
		optional("hostnames", strings.Join(s.Spec.Hostnames, ","))
	}
	fact("balance", balance(s.Spec))
	optional("timeouts", timeouts(s.Spec))
	optional("limits", limits(s.Spec))
	optional("traffic", traffic(s.Spec))
	optional("health", healthText(s.Spec))
	optional("clients", clients(s.Spec.SourceRanges, p.Format == output.Wide))
	optional("proxy protocol", proxyProtocol(s.Spec, p.Format == output.Wide))
	if st.Health != 0 {
		fact("health port", number(st.Health))
	}
	optional("labels", labels(s.Spec.Labels))
	fact("revision", fmt.Sprintf("%d, %s", s.Revision, howApplied(st)))
	b.WriteString(facts.Text(p))

	ports := output.Grid{Indent: "  ", Header: []string{"PORT", "NAME", "TARGET", "NODE PORT"}}
	for _, port := range st.Ports {
		ports.Add(port.Numbers()+"/"+port.Protocol, port.Name, target(port, st.Backends), number(port.NodePort))
	}
	b.WriteString(ports.Text(p))
	if len(st.Backends) > 0 {
		backends := output.Grid{Indent: "  ", Header: backendHeader}
		for _, be := range st.Backends {
			backends.Add(a.backendRow(be, conns)...)
		}
		b.WriteString(backends.Text(p))
	}
	if p.Format == output.Wide {
		conditions := output.Grid{Indent: "  ", Header: []string{"CONDITION", "STATUS", "REASON", "MESSAGE"}}
		for _, c := range st.Conditions {
			conditions.Add(c.Type, c.Status, c.Reason, c.Message)
		}
		b.WriteString(conditions.Text(p))
	}
	for _, problem := range st.Problems {
		problem.Service = "" // named above
		b.WriteString(problemsText("  ", []v1.Problem{problem}))
	}
	return b.String()
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
	refused := func(c v1.Condition) bool { return c.Type == v1.ConditionApplied && c.Status == v1.False }
	switch {
	case !st.Applied:
		return "not applied yet"
	case slices.ContainsFunc(st.Conditions, refused):
		return "tried, not all of it applied"
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

// problemsText returns problems, one per line.
func problemsText(indent string, problems []v1.Problem) string {
	return strings.Join(output.Texts(problems, func(p v1.Problem) string { return indent + output.Clean(problemLine(p)) + "\n" }), "")
}

// age returns how old t is, or "" without t.
func (a *app) age(t *time.Time) string {
	if t == nil {
		return ""
	}
	return output.Since(*t, a.Now())
}

// ago returns how long ago t was, or "" without t.
func (a *app) ago(t *time.Time) string {
	if t == nil {
		return ""
	}
	return output.Ago(*t, a.Now())
}

func stateStyle(state string) output.Style {
	switch state {
	case v1.StateHealthy:
		return output.Good
	case v1.StateUnchecked:
		return output.Faint
	case v1.StateDegraded, v1.StatePending:
		return output.Caution
	case v1.StateDown, v1.StateRefused:
		return output.Bad
	}
	return output.Plain
}

// commaList joins addresses or ranges.
func commaList[T fmt.Stringer](of []T) string { return strings.Join(output.Texts(of, T.String), ",") }

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
	c := output.Cell{Text: s.State, Style: stateStyle(s.State)}
	if s.Panic {
		c.Text += ", panic"
	}
	if s.Held > 0 {
		c.Text += ", held"
	}
	if s.Full {
		c.Text += ", full"
	}
	return c
}

// balance returns how a service chooses backends: "wrr, nat, affinity 3h".
func balance(s v1.ServiceSpec) string {
	affinity := ""
	if s.Affinity != nil {
		affinity = "affinity"
		if s.Affinity.Timeout != nil {
			affinity += " " + s.Affinity.Timeout.String()
		}
	}
	drain := ""
	if s.DrainTimeout != nil {
		drain = "drain " + s.DrainTimeout.String()
	}
	scheduler := s.Scheduler
	if len(s.SchedulerFlags) > 0 {
		scheduler += " (" + strings.Join(s.SchedulerFlags, ", ") + ")"
	}
	return output.Join(", ", scheduler, s.Forward, affinity, drain)
}

// timeouts returns the timeouts of connections that differ from the defaults: "connect 500ms, idle 5m".
func timeouts(s v1.ServiceSpec) string {
	var parts []string
	for _, f := range []struct {
		word  string
		value *spec.Duration
		usual time.Duration
	}{
		{"connect", s.ConnectTimeout, vip.DefaultConnectTimeout},
		{"idle", s.IdleTimeout, vip.DefaultIdleTimeout},
		{"half-close", s.HalfCloseTimeout, vip.DefaultHalfCloseTimeout},
		{"queue", s.QueueTimeout, vip.DefaultQueueTimeout},
	} {
		if f.value != nil && time.Duration(*f.value) != f.usual {
			parts = append(parts, f.word+" "+f.value.String())
		}
	}
	return strings.Join(parts, ", ")
}

// limits returns the limits of connections: "100 connections, queue of 50".
func limits(s v1.ServiceSpec) string {
	var parts []string
	if s.MaxConnections > 0 {
		parts = append(parts, text.Plural(s.MaxConnections, "connection"))
	}
	if s.MaxQueue > 0 {
		parts = append(parts, fmt.Sprintf("queue of %d", s.MaxQueue))
	}
	return strings.Join(parts, ", ")
}

// fewRanges is the number of source ranges shown; -o wide shows all.
const fewRanges = 8

func clients(ranges []string, wide bool) string {
	if wide {
		return strings.Join(ranges, ",")
	}
	return text.First(fewRanges, ranges, ",")
}

// proxyProtocol returns where PROXY headers are sent and accepted: "v2 to backends, accepted from
// 192.0.2.0/24".
func proxyProtocol(s v1.ServiceSpec, wide bool) string {
	var parts []string
	if s.ProxyProtocol != "" {
		parts = append(parts, s.ProxyProtocol+" to backends")
	}
	if len(s.AcceptProxyFrom) > 0 {
		parts = append(parts, "accepted from "+clients(s.AcceptProxyFrom, wide))
	}
	return strings.Join(parts, ", ")
}

// traffic returns the traffic settings that differ from the defaults: "external local, prefers
// same-zone, masquerade never".
func traffic(s v1.ServiceSpec) string {
	var parts []string
	for _, f := range []struct{ word, value, usual string }{
		{"external", s.ExternalTraffic, vip.Cluster.String()},
		{"internal", s.InternalTraffic, vip.Cluster.String()},
		{"prefers", s.Distribution, vip.DistributeAny.String()},
		{"masquerade", s.Masquerade, vip.MasqueradeAuto.String()},
	} {
		if f.value != "" && f.value != f.usual {
			parts = append(parts, f.word+" "+f.value)
		}
	}
	return strings.Join(parts, ", ")
}

// healthText returns the health check of a service and its effects: "http /healthz every 2s, reset,
// panic below 30%, slow start 30s".
func healthText(s v1.ServiceSpec) string {
	check := ""
	if h := s.Health; h != nil {
		check = output.Join(" ", h.Type, h.Path)
		if h.Port != 0 {
			check += fmt.Sprintf(" at port %d", h.Port)
		}
		if h.Interval != nil {
			check += " every " + h.Interval.String()
		}
	}
	reaction, panics := "", ""
	if s.OnUnhealthy == "reset" {
		reaction = "unhealthy backends reset connections"
	}
	if s.PanicThreshold > 0 {
		panics = fmt.Sprintf("panic below %d%%", s.PanicThreshold)
	}
	slow := ""
	if s.SlowStart != nil {
		slow = "slow start " + s.SlowStart.String()
	}
	return output.Join(", ", check, reaction, panics, slow)
}

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
