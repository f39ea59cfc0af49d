package status

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/ironvip/ironvip/internal/text"
	"github.com/ironvip/ironvip/vip"
	"github.com/ironvip/ironvip/vip/spec"
)

// explain returns sentences on a service: the state and its main reason, then each
// problem, then what the service holds.
func explain(in *Input, s *Report) []string {
	lines := []string{headline(in, s)}
	for _, p := range s.Problems {
		lines = append(lines, sentence(p))
	}
	if in.Service != nil {
		lines = append(lines, idleBackends(in, s)...)
		lines = append(lines, observations(in, s)...)
		lines = append(lines, emptyFrontends(in)...)
		lines = append(lines, narrowedFrontends(in)...)
		lines = append(lines, connecting(in)...)
	}
	lines = append(lines, leavingEndpoints(in)...)
	lines = append(lines, holdings(in)...)
	lines = append(lines, names(in)...)
	if in.Service != nil && in.Service.Source != "" {
		line := "It comes from source " + in.Service.Source
		if in.Service.Origin != "" {
			line += ", " + in.Service.Origin
		}
		lines = append(lines, line+".")
	}
	return lines
}

// connecting says how programs of this host reach the frontends, if it isn't the dataplane alone.
func connecting(in *Input) (lines []string) {
	for i := range in.Frontends {
		f := &in.Frontends[i].Frontend
		switch {
		case in.Left == nil || f.Refuses():
		case in.Left(f) == "":
			lines = append(lines, fmt.Sprintf("Programs of this host reach backends of %s directly, at connect(): their bytes are not counted.", f.Key))
		default:
			lines = append(lines, fmt.Sprintf("Programs of this host reach %s by the dataplane, not at connect(): %s.", f.Key, in.Left(f)))
		}
	}
	return lines
}

// headline returns the state and its main reason.
func headline(in *Input, s *Report) string {
	return fmt.Sprintf("%s is %s: %s.", in.Key, s.State, reason(in, s))
}

// reason returns the main reason for the state.
func reason(in *Input, s *Report) string {
	switch s.State {
	case Draining:
		if s.Leaving == 0 {
			return "it was removed and nothing of it is left"
		}
		return "it was removed and its open connections drain"
	case Refused:
		return "it requests something unsupported or taken, so none of it is served"
	case Pending:
		switch {
		case in.Allocation == nil:
			return "it waits for an address"
		case len(in.Allocation.VIPs) == 0 && len(s.Problems) > 0:
			return "no address that it may use is available"
		case in.Compiled == nil || in.Compiled.ServiceRev < in.ServiceRev:
			return "its newest version is being compiled"
		}
		return "the dataplane is being programmed"
	case Down:
		switch {
		case fails(in, func(code string) bool { return code != vip.CodeUnsupported }):
			return "the dataplane can't be programmed"
		case fails(in, func(code string) bool { return code == vip.CodeUnsupported }):
			return "the dataplane doesn't support a part of it and the rest has no backend here"
		case s.Total == 0:
			return "it has no backends, so clients are refused"
		case s.Ready > 0:
			return "no backend that its clients may use takes new connections, so they are refused"
		case in.Service.Forward == vip.ForwardHost:
			return "the check of this host has not passed, so this host does not announce its VIPs"
		case s.Total == 1:
			return "its one backend takes no new connections, so clients are refused"
		}
		return fmt.Sprintf("none of its %s takes new connections, so clients are refused", text.Plural(s.Total, "backend"))
	case Elsewhere:
		if in.Service.NotHere {
			return "not served by this host (scope): outside of dataplane.namespaces or dataplane.labels"
		}
		if in.Compiled.NotHere {
			return "this host is a real server without a backend of it"
		}
		field, _ := policyOf(in.Service, &in.Frontends[0].Frontend)
		return fmt.Sprintf("%s is local and its ready backends are on other nodes, so clients that come to this one are refused", field)
	case Degraded:
		switch {
		case s.Panics:
			return fmt.Sprintf("fewer than %d%% of its backends are healthy, so unhealthy ones take new connections, too (panic mode)", in.Service.PanicThreshold)
		case s.Held > 0:
			// The summary of a service is sent once and shown until it changes, so its times are absolute.
			return fmt.Sprintf("%s unhealthy, with new connections until %s, because all health checks of this host failed at once at %s",
				areOf(s.Held, s.Total), clock(s.HeldUntil), clock(s.HeldSince))
		case s.Ready == 0:
			if anyServed(in) {
				return "no backend is healthy at all of its ports"
			}
			return "no backend is ready and healthy; others take new connections in their place"
		case s.Ready == s.Total:
			return "a part of it is not served as requested"
		}
		return takers(in, s)
	}
	return takers(in, s) + unseen(in, s)
}

// areOf returns "2 of 3 backends are", or "its one backend is".
func areOf(n, all int) string {
	switch {
	case all == 1:
		return "its one backend is"
	case n == all:
		return fmt.Sprintf("all of its %d backends are", all)
	case n == 1:
		return fmt.Sprintf("1 of its %d backends is", all)
	}
	return fmt.Sprintf("%d of its %d backends are", n, all)
}

// clock returns an instant as text.
func clock(at vip.Instant) string { return at.Time().Format(time.RFC3339) }

// elapsed returns how long ago an instant was, and remaining how long it is until one. Clocks may
// differ, so neither is negative.
func elapsed(in *Input, since vip.Instant) time.Duration {
	return max(0, in.Now.Sub(since.Time())).Round(time.Second)
}

func remaining(in *Input, until vip.Instant) time.Duration {
	return max(0, until.Time().Sub(in.Now)).Round(time.Second)
}

// takers says how many backends take new connections, and what the backups do.
func takers(in *Input, s *Report) (out string) {
	all, ready := s.Total-s.Backups, s.Ready-s.ReadyBackups
	backups := "its backup"
	if s.Backups > 1 {
		backups = fmt.Sprintf("its %d backups", s.Backups)
	}
	switch {
	case ready == 0 && all == 1:
		out = "its one backend is not usable"
	case ready == 0:
		out = fmt.Sprintf("none of its %d backends is usable", all)
	case ready < all:
		out = fmt.Sprintf("%d of %s %s new connections", ready, text.Plural(all, "backend"), verb(ready, "takes", "take"))
	case all == 1:
		out = "its one backend takes new connections"
	default:
		out = fmt.Sprintf("all of its %d backends take new connections", all)
	}
	n := s.ReadyBackups
	serve := n > 0 && backupsServe(in)
	switch {
	case s.Backups == 0:
	case n == 0:
		out += "; " + backups + verb(s.Backups, " is", " are") + " not usable"
	case serve && n == s.Backups:
		out += "; " + backups + verb(n, " takes", " take") + " new connections"
	case serve:
		out += fmt.Sprintf("; %d of %s %s new connections", n, backups, verb(n, "takes", "take"))
	case n == s.Backups:
		out += "; " + backups + verb(n, " waits", " wait")
	default:
		out += fmt.Sprintf("; %d of %s %s", n, backups, verb(n, "waits", "wait"))
	}
	return out
}

// backupsServe reports whether some frontend sends new connections to a backup.
func backupsServe(in *Input) bool {
	for i, use := range UsesOf(in).Backends {
		if use.TakesNew && in.Service.Backends[i].Backup {
			return true
		}
	}
	return false
}

// verb returns the form for a number of things.
func verb(n int, one, more string) string {
	if n == 1 {
		return one
	}
	return more
}

// unseen says how many backends have no evidence of their health.
func unseen(in *Input, s *Report) (out string) {
	unchecked, pending, unknown := 0, 0, 0
	for i := range in.Service.Backends {
		switch health, check := in.Observed(&in.Service.Backends[i]); {
		case health == vip.Unchecked:
			unchecked++
		case health != vip.Unknown:
		case check != nil && check.Reason != "":
			unknown++
		default:
			pending++
		}
	}
	if pending > 0 {
		out += "; the first health check of " + those(pending, s.Total) + " is pending"
	}
	if unknown > 0 {
		out += "; the health of " + those(unknown, s.Total) + " is unknown"
	}
	switch {
	case unchecked == s.Total && s.Total > 1:
		out += "; none of them has a health check"
	case unchecked == 1:
		out += "; " + those(1, s.Total) + " has no health check"
	case unchecked > 0:
		out += "; " + those(unchecked, s.Total) + " have no health check"
	}
	return out
}

// those refers to n of all backends of a service.
func those(n, all int) string {
	switch {
	case all == 1:
		return "it"
	case n == all:
		return "all of them"
	}
	return fmt.Sprintf("%d of them", n)
}

// fails reports whether the dataplane rejected a frontend with a code that matches.
func fails(in *Input, matches func(code string) bool) bool {
	return slices.ContainsFunc(in.Frontends, func(f Frontend) bool {
		return f.Applied.Problem != nil && matches(f.Applied.Problem.Code)
	})
}

// sentence returns a problem with its hint.
func sentence(p vip.Problem) string {
	p.Service = "" // the first line names it
	text := p.Error() + "."
	if p.Hint != "" {
		text += " Hint: " + strings.TrimSuffix(p.Hint, ".") + "."
	}
	return text
}

// idleBackends returns the reason of each backend that takes no new connections.
func idleBackends(in *Input, s *Report) (lines []string) {
	for i := range in.Service.Backends {
		b := &in.Service.Backends[i]
		if in.Usable(b) {
			continue
		}
		why := "its weight is 0"
		state := in.StateOf(b)
		if state == vip.Terminating && s.Uses.Backends[i].TakesNew {
			lines = append(lines, fmt.Sprintf("Backend %s is terminating and takes new connections because no other does.", b.ID()))
			continue
		}
		if g := in.Service.GroupOf(b); g != nil && b.Weight > 0 && in.GroupWeight(g) == 0 {
			why = "the weight of its group " + g.Name + " is 0"
		}
		if state == vip.Ready && !in.Weightless(b) {
			lines = append(lines, unhealthyBackend(in, b))
			continue
		}
		if state != vip.Ready {
			why = cmp.Or(b.Reason.Text(in.Now), fmt.Sprintf("set to %s by its source", state))
			if in.Override != nil {
				if _, overridden := in.Override(b.Key(in.Key)); overridden {
					why = fmt.Sprintf("set to %s by an operator", state)
				}
			}
		}
		lines = append(lines, fmt.Sprintf("Backend %s takes no new connections: %s.", b.ID(), why))
	}
	return lines
}

// unhealthyBackend returns why a ready backend takes no new connections, at some of its ports at
// least.
func unhealthyBackend(in *Input, b *vip.Backend) string {
	_, check := in.Observed(b)
	switch {
	case b.Health == vip.Unhealthy:
		return fmt.Sprintf("Backend %s is unhealthy: %s.", b.ID(), cmp.Or(b.Reason.Text(in.Now), "its source says so"))
	case check == nil:
		return fmt.Sprintf("Backend %s takes no new connections.", b.ID())
	}
	at := ""
	if check.Ports != "" {
		at = " at " + strings.Join(check.Ports.List(), ", ")
	}
	return fmt.Sprintf("Backend %s has been unhealthy%s for %s: %s check: %s.", b.ID(), at, elapsed(in, check.Since), check.Type, check.Reason)
}

// observations returns what else is notable about the health of the backends.
func observations(in *Input, s *Report) (lines []string) {
	for i := range in.Service.Backends {
		b, use := &in.Service.Backends[i], &s.Uses.Backends[i]
		if b.Backup && use.TakesNew && s.Backups > 0 {
			lines = append(lines, fmt.Sprintf("Backend %s is a backup and takes new connections because no other does.", b.ID()))
		}
		if use.Percent > 0 {
			lines = append(lines, fmt.Sprintf("Backend %s has %d%% of its weight: it has begun to take new connections (slow_start %s).", b.ID(), use.Percent, spec.Duration(in.Service.SlowStart.Duration())))
		}
		switch health, check := in.Observed(b); {
		case health == vip.Ejected:
			lines = append(lines, ejectedBackend(in, in.PassiveOf(b), b))
		case health == vip.Unknown && check != nil && check.Reason != "":
			lines = append(lines, fmt.Sprintf("The health of backend %s is unknown: %s.", b.ID(), check.Reason))
		}
		if check := in.HeldCheck(b); check != nil {
			effect := "takes new connections"
			if !use.TakesNew { // a backup that waits
				effect = "counts as healthy"
			}
			lines = append(lines, fmt.Sprintf("Backend %s has failed its %s check for %s (%s) and still %s for %s. Check this host's network.",
				b.ID(), check.Type, elapsed(in, check.Since), check.Reason, effect, remaining(in, check.HeldUntil)))
		}
	}
	for i := range in.Frontends {
		f := &in.Frontends[i].Frontend
		if panics(in, f) {
			lines = append(lines, fmt.Sprintf("%s sends clients to unhealthy backends, too: fewer than %d%% are healthy (panic_threshold).", f.Key, in.Service.PanicThreshold))
		}
	}
	return lines
}

// ejectedBackend returns why the dataplane skips a backend.
func ejectedBackend(in *Input, row *vip.PassiveHealth, b *vip.Backend) string {
	next := "The next client tests it."
	if left := row.Until.Time().Sub(in.Now); left > 0 {
		next = fmt.Sprintf("A client tests it in %s.", left.Round(100*time.Millisecond))
	}
	return fmt.Sprintf("Backend %s has been ejected for %s: connections of clients to %s failed: %s. %s",
		b.ID(), elapsed(in, row.Since), row.Addr, row.Reason, next)
}

// emptyFrontends returns the frontends that reject clients for their own reason, other than that no
// backend of the service is ready.
func emptyFrontends(in *Input) (lines []string) {
	served := sync.OnceValue(func() bool { return anyServed(in) })
	for i := range in.Frontends {
		f := &in.Frontends[i].Frontend
		if !f.Refuses() {
			continue
		}
		backend := backendOf(in.Service, f)
		listed, ready := 0, 0
		for j := range in.Service.Backends {
			if b := &in.Service.Backends[j]; isFor(b, f) {
				listed++
				if in.UsableAt(b, f.Port) {
					ready++
				}
			}
		}
		field, policy := policyOf(in.Service, f)
		switch {
		case listed == 0 && len(in.Service.Backends) > 0:
			lines = append(lines, fmt.Sprintf("%s refuses clients: no %s is listed.", f.Key, backend))
		case policy == vip.Local && listed > 0:
			why := "no backend on this node"
			if staying(f) > 0 || f.Key.Protocol == vip.UDP { // its idle backends are not endpoints
				why += " takes new connections"
			}
			lines = append(lines, fmt.Sprintf("%s refuses clients: %s, and %s is local.", f.Key, why, field))
		case ready == 0 && served():
			lines = append(lines, fmt.Sprintf("%s refuses clients: no %s takes new connections.", f.Key, backend))
		}
	}
	return lines
}

// backendOf describes the backends that a frontend's clients may use: "ipv4 backend", "ipv4 backend
// for port http".
func backendOf(s *vip.Service, f *vip.Frontend) string {
	name := vip.FamilyOf(f.Key.Addr).String() + " backend"
	if slices.ContainsFunc(s.Backends, func(b vip.Backend) bool { return b.Ports != "" }) {
		name += " for port " + f.Port
	}
	return name
}

// anyServed reports whether a backend, on any node, is usable at the port of some frontend.
func anyServed(in *Input) bool {
	return slices.ContainsFunc(in.Frontends, func(f Frontend) bool { return servedAt(in, &f.Frontend) })
}

// servedAt reports whether a backend, on any node, is usable at the frontend's port.
func servedAt(in *Input, f *vip.Frontend) bool {
	return slices.ContainsFunc(in.Service.Backends, func(b vip.Backend) bool { return isFor(&b, f) && in.UsableAt(&b, f.Port) })
}

// narrowedFrontends returns the frontends that send clients only to some of the backends, with the
// reason.
func narrowedFrontends(in *Input) (lines []string) {
	for i := range in.Frontends {
		f := &in.Frontends[i].Frontend
		if f.Kind == vip.OnRealServer || f.Refuses() {
			continue
		}
		listed := 0
		for j := range in.Service.Backends {
			if b := &in.Service.Backends[j]; isFor(b, f) && (f.Key.Protocol != vip.UDP || in.UsableAt(b, f.Port) && !b.Backup) {
				listed++
			}
		}
		if n := staying(f); n < listed {
			field, value := policyOf(in.Service, f)
			why := fmt.Sprintf("%s is %s", field, value)
			switch {
			case value == vip.Local:
			case in.Hinted(vip.FamilyOf(f.Key.Addr), f.Port):
				why = "the others are for clients elsewhere (for_zones, for_nodes)"
			default:
				why = fmt.Sprintf("traffic_distribution is %s", in.Service.Distribution)
			}
			lines = append(lines, fmt.Sprintf("%s sends clients to %d of %s: %s.", f.Key, n, text.Plural(listed, "backend"), why))
		}
	}
	return lines
}

// policyOf returns the traffic policy for a frontend's clients and its field.
func policyOf(s *vip.Service, f *vip.Frontend) (field string, policy vip.TrafficPolicy) {
	if f.Key.Audience == vip.InternalClients {
		return "internal_traffic", cmp.Or(s.InternalTraffic, vip.Cluster)
	}
	return "external_traffic", cmp.Or(s.ExternalTraffic, vip.Cluster)
}

// staying counts the endpoints that are not leaving.
func staying(f *vip.Frontend) (n int) {
	for _, e := range f.Backends {
		if !e.IsLeaving() {
			n++
		}
	}
	return n
}

// leavingEndpoints returns the remaining time of each draining endpoint.
func leavingEndpoints(in *Input) (lines []string) {
	for i := range in.Frontends {
		f := &in.Frontends[i].Frontend
		for _, e := range f.Backends {
			if e.IsLeaving() {
				left := max(0, e.Leaving.Sub(vip.InstantOf(in.Now))).Round(time.Second)
				lines = append(lines, fmt.Sprintf("%s drains from %s: open connections may continue for %s.", e.Addr, f.Key, left))
			}
		}
	}
	return lines
}

// names lists the DNS names that resolve to the service.
func names(in *Input) []string {
	var has []string
	for i := range in.Names {
		if !in.Names[i].Lost {
			has = append(has, in.Names[i].Name)
		}
	}
	if len(has) == 0 {
		return nil
	}
	return []string{"Its DNS names are " + strings.Join(has, ", ") + "."}
}

// holdings lists the addresses and node ports of the service, with the time of their allocation.
func holdings(in *Input) (lines []string) {
	a := in.Allocation
	if a == nil {
		return nil
	}
	for i, addr := range a.VIPs {
		how := "was assigned"
		if in.Service != nil && slices.Contains(in.Service.VIPs, addr) {
			how = "was requested"
			if in.Service.Assigned {
				how = "was assigned by source " + in.Service.Source
			}
		}
		line := fmt.Sprintf("%s %s", addr, how)
		if a.Pool != "" {
			line += " from pool " + a.Pool
		}
		if !a.Since.IsZero() {
			line += " on " + a.Since.Time().Format(time.DateOnly)
		}
		if a.Reserved[i] {
			lines = append(lines, line+", is held by this service and stays reserved after it.")
		} else {
			lines = append(lines, line+" and is held by this service.")
		}
	}
	if in.Service == nil {
		return lines
	}
	on := map[vip.PortKey][]string{} // the addresses with a node port
	for i := range in.Frontends {
		if f := &in.Frontends[i].Frontend; f.Kind == vip.OnHost {
			key := vip.PortKey{Port: f.Key.Port, Protocol: f.Key.Protocol}
			on[key] = append(on[key], f.Key.Addr.String())
		}
	}
	for i := range in.Service.Ports {
		p := &in.Service.Ports[i]
		key := p.Key()
		number, granted := a.NodePorts[key]
		if !granted || !p.NodePort.Wanted() {
			continue
		}
		where := cmp.Or(strings.Join(on[vip.PortKey{Port: number, Protocol: p.Protocol}], ", "), "no address of this host")
		lines = append(lines, fmt.Sprintf("Port %s is also node port %d on %s.", key, number, where))
	}
	if c := in.Compiled; c != nil && c.HealthPort != 0 {
		lines = append(lines, fmt.Sprintf("Health checks of this node are answered on port %d: %s here.", c.HealthPort, text.Plural(int(c.LocalReady), "ready backend")))
	}
	return lines
}
