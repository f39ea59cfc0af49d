package agent

import (
	"cmp"
	"context"
	"fmt"
	"maps"
	"net/http"
	"slices"
	"strings"
	"sync/atomic"
	"time"

	"github.com/ironvip/ironvip/api/server"
	"github.com/ironvip/ironvip/api/status"
	v1 "github.com/ironvip/ironvip/api/v1"
	"github.com/ironvip/ironvip/configs"
	"github.com/ironvip/ironvip/internal/event"
	"github.com/ironvip/ironvip/internal/sockets"
	"github.com/ironvip/ironvip/internal/table"
	"github.com/ironvip/ironvip/plane/kernel/host"
	"github.com/ironvip/ironvip/plane/reconcile"
	"github.com/ironvip/ironvip/vip"
)

// move is the wish of an operator that this host runs another dataplane. As an error, it is why the parts of an agent end.
type move struct {
	from, to string
	sockets  *sockets.Set // copies of the listening sockets, for the next agent
	done     *atomic.Bool // that one serves
	back     bool         // it could not run, so the dataplane before runs again
	at       time.Time    // of the failure
	why      string
}

func (m *move) Error() string { return "the dataplane is switched to " + m.to }

// failed returns the move back.
func (m *move) failed(err error) *move {
	return &move{from: m.to, to: m.from, done: m.done, back: true, at: time.Now(), why: firstLine(err)}
}

func (m *move) event() event.Event {
	return event.Event{Kind: "switch_failed", Object: m.from, Message: m.why}
}

// failureShown is how long status shows a failure.
const failureShown = time.Hour

// switchChecks returns the line of `ironvip status` about a switch that has failed lately.
func (a *agent) switchChecks() []v1.Check {
	m := a.moved
	if m == nil || !m.back || time.Since(m.at) > failureShown {
		return nil
	}
	return []v1.Check{{Name: "switch", Level: v1.LevelWarn,
		Message: fmt.Sprintf("%s could not run %s ago, so %s goes on: %s", m.from, time.Since(m.at).Round(time.Second), m.to, m.why),
		Hint:    "see the log of the agent, then try again"}}
}

// switching returns the dataplane to which this host is being moved, or "".
func (a *agent) switching() string {
	if w := a.wish.Load(); w != nil {
		return *w
	}
	if a.moved != nil && !a.moved.back && !table.IsClosed(a.settled) {
		return a.moved.to
	}
	return ""
}

// switchPlane ends this agent, so that the next one in this process runs another dataplane. With dryRun, it only returns what
// that does. Force permits that services are not served any more.
func (a *agent) switchPlane(ctx context.Context, mode string, force, dryRun bool) (v1.SwitchPlan, error) {
	plan, err := a.planSwitch(ctx, mode)
	if err != nil || dryRun || !plan.Changes {
		return plan, err
	}
	if len(plan.Problems) > 0 {
		return plan, server.Refuse(http.StatusConflict, v1.CodeSwitchRefused, "this host can't move to "+mode+" now: "+plan.Problems[0].Message, plan.Problems[0].Hint, plan.Problems...)
	}
	if n := len(plan.Refused); n > 0 && !force {
		return plan, server.Refuse(http.StatusConflict, v1.CodeSwitchRefused, fmt.Sprintf("%s does not support what %s uses: %s", mode, plan.Refused[0].Service, plan.Refused[0].Message),
			"change the services that ironvip dataplane switch --plan "+mode+" lists, or force it: clients of their ports are refused then", plan.Refused...)
	}
	if !a.wish.CompareAndSwap(nil, &mode) {
		return plan, server.Refuse(http.StatusConflict, v1.CodeSwitchRefused, "another request has begun to move this host", "wait for its end: ironvip status")
	}
	a.log.Info("switching the dataplane", "from", plan.From, "to", mode)
	a.wished <- mode
	return plan, nil
}

// answerTime is how long the answer to the request for a switch may take, before the agent ends.
const answerTime = 100 * time.Millisecond

// awaitSwitch returns a move once somebody wishes one. The kernel, or the proxy, serves clients meanwhile, and requests to the
// API wait for the next agent.
func (a *agent) awaitSwitch(ctx context.Context) error {
	for {
		select {
		case <-ctx.Done():
			return ctx.Err()
		case mode := <-a.wished:
			sleep(ctx, answerTime)
			next, err := a.sockets.Next()
			if err == nil {
				return &move{from: a.plane.about.Mode, to: mode, sockets: next, done: &atomic.Bool{}}
			}
			a.log.Error("the dataplane is not switched", "dataplane", mode, "err", err)
			a.wish.Store(nil)
		}
	}
}

// planSwitch returns what a switch does. It costs O(connections + services).
func (a *agent) planSwitch(ctx context.Context, mode string) (v1.SwitchPlan, error) {
	from := a.plane.about.Mode
	plan := v1.SwitchPlan{From: from, To: mode, Changes: mode != from, Connections: []v1.SwitchConnections{}, Refused: []v1.Problem{}, Problems: []v1.Problem{}}
	if !plan.Changes {
		plan.Problems = append(plan.Problems, a.contradictions(mode)...)
		return plan, nil
	}
	plan.HardStopAfter = uint64(a.hardStopAfter() / time.Second)
	plan.Problems = append(plan.Problems, a.switchProblems(mode)...)
	refused := map[v1.Problem]struct{}{}
	for _, f := range a.tables.Frontends.All() {
		if problem := status.Unsupported(mode, &f); problem != nil && status.Unsupported(from, &f) == nil {
			problem.Service = f.Service.String()
			refused[*problem] = struct{}{}
		}
	}
	plan.Refused = slices.AppendSeq(plan.Refused, maps.Keys(refused))
	slices.SortFunc(plan.Refused, func(a, b v1.Problem) int {
		return cmp.Or(strings.Compare(a.Service, b.Service), strings.Compare(a.Field, b.Field), strings.Compare(a.Message, b.Message))
	})
	if plan.Counted = table.IsClosed(a.settled); !plan.Counted {
		return plan, nil
	}
	type kind struct {
		protocol vip.Protocol
		state    string
	}
	counts := map[kind]int{}
	err := a.plane.ListConnections(ctx, func(vip.FrontendKey) bool { return true }, func(c reconcile.Connection) bool {
		if c.State != reconcile.StateAffinity {
			counts[kind{c.Frontend.Protocol, c.State}]++
		}
		return true
	})
	if err != nil {
		return plan, server.Refuse(http.StatusServiceUnavailable, v1.CodeDataplane, "list the connections of the dataplane: "+err.Error(), "GET "+v1.PathDataplane+" shows its state")
	}
	for k, n := range counts {
		plan.Connections = append(plan.Connections, v1.SwitchConnections{Protocol: k.protocol.String(), State: k.state, Connections: n, Then: fate(from, mode, k.protocol)})
	}
	slices.SortFunc(plan.Connections, func(a, b v1.SwitchConnections) int {
		return strings.Compare(a.Protocol+" "+a.State, b.Protocol+" "+b.State)
	})
	return plan, nil
}

// fate returns what happens to the connections of a protocol.
func fate(from, to string, p vip.Protocol) string {
	switch {
	case p == vip.UDP:
		return v1.SwitchMoves
	case keepsOpen(from, to):
		return v1.SwitchContinues
	}
	return v1.SwitchEnds
}

// contradictions returns what in the configuration does not allow that the host runs a dataplane.
func (a *agent) contradictions(mode string) []vip.Problem {
	one := func(field, place, message, hint string) []vip.Problem {
		return []vip.Problem{{Code: vip.CodeInvalid, Field: field, Place: place, Message: message, Hint: hint}}
	}
	cfg, problems := configs.Load(a.path)
	switch {
	case cfg == nil:
		return problems
	case cfg.Dataplane.Role == configs.RoleRealServer && mode != configs.ModeIPVS:
		return one("dataplane.role", cfg.Place("dataplane.role"), "a real server needs ipvs", "")
	case cfg.Dataplane.Mode != configs.ModeAuto && cfg.Dataplane.Mode != mode:
		return one("dataplane.mode", cfg.Place("dataplane.mode"), fmt.Sprintf("dataplane.mode = %q contradicts: the next start runs that", cfg.Dataplane.Mode),
			fmt.Sprintf("set dataplane.mode to %q, or to \"auto\", which keeps the dataplane that the host runs", mode))
	}
	return nil
}

// switchProblems returns why this host can't move to a dataplane.
func (a *agent) switchProblems(mode string) (out []vip.Problem) {
	out = a.contradictions(mode)
	add := func(field, place, message, hint string) {
		out = append(out, vip.Problem{Code: vip.CodeInvalid, Field: field, Place: place, Message: message, Hint: hint})
	}
	for _, f := range checkMode(mode, a.config.startedWith().Dataplane.Role) {
		if f.Required && !f.OK {
			add(f.Name, "", "this host lacks what "+mode+" needs: "+f.Detail, f.Remedy)
		}
	}
	to := a.switching()
	switch {
	case to != "":
		add("", "", "this host is moving to "+to, "wait for its end: ironvip status")
	case !table.IsClosed(a.settled):
		add("", "", "this agent has not finished its start", "wait for it: ironvip status --wait")
	}
	return out
}

// chooseAsked selects the dataplane that a switch asks for.
func chooseAsked(asked, configured string, check func(mode string) []host.Finding) (choice, error) {
	if configured != configs.ModeAuto && configured != asked {
		return choice{}, fmt.Errorf("dataplane.mode = %q contradicts the switch to %s\nhint: set it to %q or \"auto\", then try again", configured, asked, asked)
	}
	if missing := host.Err(check(asked)); missing != nil {
		return choice{}, fmt.Errorf("the dataplane %s can't work here\n%w\nhint: `ironvip doctor` shows everything", asked, withHints(missing))
	}
	return choice{Mode: asked, Why: "ironvip dataplane switch asked for it"}, nil
}
