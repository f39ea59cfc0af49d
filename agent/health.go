package agent

import (
	"fmt"
	"slices"
	"sync"
	"time"

	v1 "github.com/ironvip/ironvip/api/v1"
	"github.com/ironvip/ironvip/plane/reconcile"
	"github.com/ironvip/ironvip/vip"
)

// healthGrace is how long the dataplane may be unreachable before the health ports send clients
// to other nodes. The dataplane continues with its last programming, so a short fault is no reason
// to move clients.
const healthGrace = time.Minute

// planeHealth determines whether the dataplane matches the tables.
type planeHealth struct {
	stats func() reconcile.Stats

	mu    sync.Mutex
	since time.Time // start of the present fault, as first seen; zero: no fault
}

func newPlaneHealth(stats func() reconcile.Stats) *planeHealth { return &planeHealth{stats: stats} }

// ok returns false before the first full reconcile, when the reconcile loop hangs, and when the
// dataplane has been unreachable for healthGrace.
func (h *planeHealth) ok() bool {
	s := h.stats()
	return s.Synced && time.Since(s.LastRound) < healthGrace && h.lasted(s.TargetError != "") < healthGrace
}

// lasted returns the duration of the present fault.
func (h *planeHealth) lasted(fault bool) time.Duration {
	h.mu.Lock()
	defer h.mu.Unlock()
	switch {
	case !fault:
		h.since = time.Time{}
		return 0
	case h.since.IsZero():
		h.since = time.Now()
	}
	return time.Since(h.since)
}

// lastProgress returns when the loop of the agent's main work that is furthest behind has last made a
// turn: the reconcile loop, or one of the userspace proxy's loops, which wait for clients and relay TCP.
// They make turns without work, too. The time is zero before the first reconcile.
func (a *agent) lastProgress() time.Time {
	at := a.pipeline.Loop.Stats().LastRound
	if turn := a.planes.LastTurn(); !turn.IsZero() && turn.Before(at) {
		at = turn
	}
	return at
}

// hangsAfter is the time without progress after which the VIPs of the userspace proxy move to other
// hosts. It is twice the longest pause of the reconcile loop, which works on at most 512 frontends at
// a time.
const hangsAfter = 10 * time.Second

// hangs returns an error if the agent runs and its main work makes no progress, as in a deadlock.
func (a *agent) hangs() error {
	at := a.lastProgress()
	if late := time.Since(at); !at.IsZero() && late >= hangsAfter {
		return fmt.Errorf("the dataplane of this agent has made no progress for %s", late.Round(time.Second))
	}
	return nil
}

// checks returns the agent's own lines of `ironvip status`.
func (a *agent) checks() []v1.Check {
	checks := slices.Concat(a.stores.StateChecks(), a.planes.Checks(), a.scopeChecks())
	if a.stores.Tree != nil {
		checks = append(checks, a.stores.FleetCheck(a.hasBegun()))
	}
	checks = appendProblems(checks, "device", a.deviceProblems())
	checks = append(checks, a.firewall.checks()...)
	checks = append(checks, a.probing.Checks()...)
	checks = append(checks, a.access.checks(time.Now())...)
	checks = append(checks, a.announcing.Checks()...)
	checks = append(checks, a.lost.Checks(time.Now())...)
	checks = append(checks, a.naming.Checks()...)
	checks = appendProblems(checks, "health ports", a.health.Problems())
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

// localOverrides returns a problem if changes of overrides are in effect on this host only.
func (a *agent) localOverrides() []vip.Problem {
	local := a.overrides.Local()
	if len(local) == 0 {
		return nil
	}
	first := local[0]
	message := fmt.Sprintf("set on this host only, not yet in the fleet's store: %s/%s %s", first.Backend.Service, first.Backend.ID(), first.State)
	if more := len(local) - 1; more > 0 {
		message = fmt.Sprintf("%s, and %d more", message, more)
	}
	return []vip.Problem{{Code: vip.CodeStore, Message: message, Hint: "they are merged when Consul is reachable; see ironvip override list"}}
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
