package control

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"time"

	"github.com/ironvip/ironvip/vip"
	"github.com/ironvip/ironvip/vip/compile"
)

// explain says in sentences why a service is as it is: the state and its main
// reason, then each thing that is not as asked, then what it holds.
func explain(in *StatusInput, s *ServiceStatus) []string {
	lines := []string{fmt.Sprintf("%s is %s: %s.", in.Key, s.State, reason(in, s))}
	for _, p := range s.Problems {
		lines = append(lines, sentence(p))
	}
	if in.Service != nil {
		lines = append(lines, idleBackends(in)...)
	}
	lines = append(lines, emptyFrontends(in, s)...)
	lines = append(lines, leavingEndpoints(in)...)
	lines = append(lines, holdings(in)...)
	if in.Service != nil && in.Service.Source != "" {
		line := "It comes from source " + in.Service.Source
		if in.Service.Origin != "" {
			line += ", " + in.Service.Origin
		}
		lines = append(lines, line+".")
	}
	return lines
}

// reason is the main reason for the state.
func reason(in *StatusInput, s *ServiceStatus) string {
	switch s.State {
	case Draining:
		if s.Leaving == 0 {
			return "it was removed, and nothing of it is left"
		}
		return "it was removed, and its open connections go on for a while"
	case Refused:
		return "it asks for something that it can't have, so none of it is served"
	case Pending:
		switch {
		case in.Allocation == nil:
			return "it waits for an address"
		case len(in.Allocation.VIPs) == 0 && len(s.Problems) > 0:
			return "it waits for an address that it can't have now"
		case in.Compiled == nil || in.Compiled.ServiceRev < in.ServiceRev:
			return "its newest form is being worked out"
		}
		return "the dataplane is being programmed"
	case Down:
		switch {
		case slices.ContainsFunc(in.Frontends, func(f FrontendStatus) bool { return f.Applied.Problem != nil }):
			return "the dataplane can't be programmed"
		case s.Total == 0:
			return "it has no backends, so clients are refused"
		case s.Total == 1:
			return "its one backend takes no new connections, so clients are refused"
		}
		return fmt.Sprintf("none of its %s takes new connections, so clients are refused", plural(s.Total, "backend"))
	case Degraded:
		if s.Ready < s.Total {
			return fmt.Sprintf("%d of %s take new connections", s.Ready, plural(s.Total, "backend"))
		}
		return "not all of it is served as asked"
	}
	if s.Total == 1 {
		return "its one backend takes new connections"
	}
	return fmt.Sprintf("all of its %s take new connections", plural(s.Total, "backend"))
}

// sentence writes a problem as one, with its hint.
func sentence(p vip.Problem) string {
	p.Service = "" // the first line names it
	text := p.Error() + "."
	if p.Hint != "" {
		text += " Hint: " + strings.TrimSuffix(p.Hint, ".") + "."
	}
	return text
}

// idleBackends says of each backend that takes no new connections why.
func idleBackends(in *StatusInput) (lines []string) {
	for i := range in.Service.Backends {
		b := &in.Service.Backends[i]
		if usable(in, b) {
			continue
		}
		why := "its weight is 0"
		if state := compile.EffectiveState(in.Key, b, in.Override); state != vip.Ready {
			by := "by its source"
			if in.Override != nil {
				if _, overridden := in.Override(b.Key(in.Key)); overridden {
					by = "by an operator"
				}
			}
			why = fmt.Sprintf("it was set to %s %s", state, by)
		}
		lines = append(lines, fmt.Sprintf("Backend %s takes no new connections: %s.", b.ID(), why))
	}
	return lines
}

// emptyFrontends names the frontends that refuse clients while others don't.
func emptyFrontends(in *StatusInput, s *ServiceStatus) (lines []string) {
	if s.State != Degraded {
		return nil
	}
	for i := range in.Frontends {
		f := &in.Frontends[i].Frontend
		if f.Usable() {
			continue
		}
		family, why := vip.FamilyOf(f.Key.Addr), "takes new connections"
		if !slices.ContainsFunc(in.Service.Backends, func(b vip.Backend) bool { return vip.FamilyOf(b.Address) == family }) {
			why = "is listed"
		}
		lines = append(lines, fmt.Sprintf("%s refuses clients: no %s backend %s.", f.Key, family, why))
	}
	return lines
}

// leavingEndpoints says how long what drains may still take.
func leavingEndpoints(in *StatusInput) (lines []string) {
	for i := range in.Frontends {
		f := &in.Frontends[i].Frontend
		for _, e := range f.Backends {
			if isLeaving(e) {
				left := max(0, e.Leaving.Sub(in.Now)).Round(time.Second)
				lines = append(lines, fmt.Sprintf("%s leaves %s: open connections may go on for %s.", e.Addr, f.Key, left))
			}
		}
	}
	return lines
}

// holdings says which addresses and node ports the service has, and since when.
func holdings(in *StatusInput) (lines []string) {
	a := in.Allocation
	if a == nil {
		return nil
	}
	for _, addr := range a.VIPs {
		how := "was drawn"
		if in.Service != nil && slices.Contains(in.Service.VIPs, addr) {
			how = "was asked for"
		}
		line := fmt.Sprintf("%s %s", addr, how)
		if a.Pool != "" {
			line += " from pool " + a.Pool
		}
		if !a.Since.IsZero() {
			line += " on " + a.Since.Format(time.DateOnly)
		}
		lines = append(lines, line+" and is held by this service.")
	}
	if in.Service == nil {
		return lines
	}
	for i := range in.Service.Ports {
		p := &in.Service.Ports[i]
		key := vip.PortKey{Port: p.Port, Protocol: p.Protocol}
		number, granted := a.NodePorts[key]
		if !granted || !p.NodePort.Wanted() {
			continue
		}
		var on []string
		for j := range in.Frontends {
			if f := &in.Frontends[j].Frontend; f.Kind == vip.OnHost && f.Key.Port == number && f.Key.Protocol == p.Protocol {
				on = append(on, f.Key.Addr.String())
			}
		}
		where := "no address of this host"
		if len(on) > 0 {
			where = strings.Join(on, ", ")
		}
		lines = append(lines, fmt.Sprintf("Port %s is also node port %d on %s.", key, number, where))
	}
	return lines
}

func plural(n int, thing string) string {
	if n == 1 {
		return "1 " + thing
	}
	return fmt.Sprintf("%d %ss", n, thing)
}

// joined writes addresses with a space between.
func joined(addrs []netip.Addr) string {
	var b strings.Builder
	for i, a := range addrs {
		if i > 0 {
			b.WriteByte(' ')
		}
		b.WriteString(a.String())
	}
	return b.String()
}
