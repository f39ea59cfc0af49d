package agent

import (
	"fmt"
	"slices"
	"strings"
	"time"

	v1 "github.com/ironvip/ironvip/api/v1"
	"github.com/ironvip/ironvip/internal/table"
	"github.com/ironvip/ironvip/internal/text"
	"github.com/ironvip/ironvip/vip"
)

// checks returns the agent's own lines of `ironvip status`.
func (a *agent) checks() []v1.Check {
	checks := slices.Concat(a.stores.StateChecks(), a.planes.Checks(), a.scopeChecks())
	if a.stores.Tree != nil {
		checks = append(checks, a.stores.FleetCheck(a.hasBegun()))
	}
	checks = appendProblems(checks, "device", a.deviceProblems())
	if all := a.firewall.Problems(); len(all) > 0 {
		checks = append(checks, v1.Check{Name: "firewall", Level: v1.LevelWarn, Message: all[0].Message, Hint: all[0].Hint, Problems: all, InMessage: 1})
	}
	checks = append(checks, a.probing.Checks()...)
	checks = append(checks, a.access.checks(time.Now())...)
	checks = append(checks, a.announcing.Checks()...)
	checks = append(checks, a.lost.Checks(time.Now())...)
	checks = append(checks, a.naming.Checks()...)
	checks = appendProblems(checks, "health ports", a.health.Problems())
	checks = appendProblems(checks, "hooks", a.hooks.Problems())
	return appendProblems(checks, "overrides", append(a.localOverrides(), a.overrides.Problems()...))
}

// deviceProblems returns a problem for each other agent that uses the device of this one.
func (a *agent) deviceProblems() (out []vip.Problem) {
	cfg := a.config.startedWith()
	for _, o := range a.device.Others() {
		out = append(out, vip.Problem{Code: vip.CodeContested, Field: "dataplane.device", Place: cfg.Place("dataplane.device"),
			Message: fmt.Sprintf("%s uses %s, too, since %s: a device is for one agent, and each can undo what the other one changes", o, cfg.Dataplane.Device, o.Since.UTC().Format(time.RFC3339)),
			Hint:    "stop one of the agents, or give one its own dataplane.device and pools that don't overlap with the other's"})
	}
	return out
}

// localOverrides returns a problem for each change of an override that is in effect on this host only.
func (a *agent) localOverrides() (out []vip.Problem) {
	for _, s := range a.overrides.Local() {
		out = append(out, vip.Problem{Code: vip.CodeStore, Message: fmt.Sprintf("set on this host only, not yet in the fleet's store: %s/%s %s", s.Backend.Service, vip.KeyOfBackendState(&s).ID(), s.Sets()),
			Hint: "they are merged when the fleet's store is reachable; see ironvip override list"})
	}
	return out
}

// appendProblems appends a check that warns of problems, if there are any.
func appendProblems(checks []v1.Check, name string, problems []vip.Problem) []v1.Check {
	if len(problems) == 0 {
		return checks
	}
	return append(checks, v1.Check{Name: name, Level: v1.LevelWarn, Message: firstOf(problems), Hint: problems[0].Hint})
}

// firstOf returns the first problem and the number of the others.
func firstOf(problems []vip.Problem) string {
	if more := len(problems) - 1; more > 0 {
		return fmt.Sprintf("%s, and %d more", problems[0].Error(), more)
	}
	return problems[0].Error()
}

// The keys of the services that this host serves.
const (
	namespacesKey = "dataplane.namespaces"
	labelsKey     = "dataplane.labels"
)

// isScope reports whether a key limits which services this host serves.
func isScope(key string) bool { return key == namespacesKey || key == labelsKey }

// serving is what services are counted by.
type serving struct {
	namespace string
	here      bool // served by this host
}

// countServing makes the table of services maintain these counts.
func countServing(services table.Reader[vip.ServiceKey, vip.Service]) func() map[serving]int {
	return table.Counts(services, func(s *vip.Service) serving { return serving{s.Key.Namespace, !s.NotHere} })
}

// scopeChecks returns the line of the status on the services that this host serves, if the configuration limits them. It
// warns if there are none, or none of a namespace.
func (a *agent) scopeChecks() []v1.Check {
	cfg := a.config.get()
	if len(cfg.Dataplane.Namespaces)+len(cfg.Dataplane.Labels) == 0 {
		return nil
	}
	counts, here, all := a.serving(), 0, 0
	for k, n := range counts {
		if all += n; k.here {
			here += n
		}
	}
	c := v1.Check{Name: "scope", Level: v1.LevelOK, Message: fmt.Sprintf("this host serves %d of %s", here, text.Plural(all, "service"))}
	key := labelsKey
	empty := slices.DeleteFunc(slices.Clone(cfg.Dataplane.Namespaces), func(ns string) bool { return counts[serving{ns, true}] > 0 })
	if len(empty) > 0 {
		key = namespacesKey
		c.Message += "; none of namespace " + strings.Join(empty, ", ")
	}
	if len(empty) > 0 || here == 0 {
		c.Level, c.Hint = v1.LevelWarn, "check "+key+" in "+cfg.Place(key)+"; ironvip service list shows all services"
	}
	return []v1.Check{c}
}
