package agent

import (
	"cmp"
	"context"
	"fmt"
	"maps"
	"net/http"
	"slices"
	"strings"
	"time"

	"github.com/ironvip/ironvip/api/server"
	"github.com/ironvip/ironvip/api/status"
	v1 "github.com/ironvip/ironvip/api/v1"
	"github.com/ironvip/ironvip/configs"
	"github.com/ironvip/ironvip/internal/event"
	"github.com/ironvip/ironvip/internal/parallel"
	"github.com/ironvip/ironvip/internal/table"
	"github.com/ironvip/ironvip/plane/reconcile"
	"github.com/ironvip/ironvip/vip"
)

// failedSwitch is a switch to a dataplane that could not run.
type failedSwitch struct {
	to  string
	at  time.Time
	why string
}

// failureShown is how long status shows a failure.
const failureShown = time.Hour

// switchChecks returns the line of `ironvip status` about a switch that has failed lately.
func (a *agent) switchChecks() []v1.Check {
	f := a.failed.Load()
	if f == nil || time.Since(f.at) > failureShown {
		return nil
	}
	return []v1.Check{{Name: "switch", Level: v1.LevelWarn,
		Message: fmt.Sprintf("%s could not run %s ago, so %s goes on: %s", f.to, time.Since(f.at).Round(time.Second), a.plane().about.Mode, f.why),
		Hint:    "see the log of the agent, then try again"}}
}

// switching returns the dataplane to which this host is being moved, or "".
func (a *agent) switching() string {
	if w := a.wish.Load(); w != nil {
		return *w
	}
	return ""
}

// switchPlane begins to move this host to another dataplane. With dryRun, it only returns what that does. Force permits that
// services are not served any more.
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
	a.wished <- mode
	return plan, nil
}

// runPlanes runs the dataplane that serves, ends what others have left, and moves this host when an operator asks for it.
func (a *agent) runPlanes(ctx context.Context) error {
	group, ctx := parallel.NewGroup(ctx)
	a.startPlane(ctx, group, a.plane())
	group.Go(func() error { return a.leaveOthers(ctx) })
	group.Go(func() error {
		for {
			select {
			case <-ctx.Done():
				return ctx.Err()
			case mode := <-a.wished:
				a.moveTo(ctx, group, mode)
				a.wish.Store(nil)
			}
		}
	})
	return group.Wait()
}

// startPlane runs what a dataplane has besides the loop of frontends, until it is halted.
func (a *agent) startPlane(ctx context.Context, group parallel.Group, p *dataplane) {
	running, halt := context.WithCancel(ctx)
	p.halt = halt
	run := func(f func(context.Context) error) {
		group.Go(func() error {
			if err := f(running); running.Err() == nil {
				return err
			}
			return ctx.Err()
		})
	}
	if p.run != nil {
		run(p.run)
	}
	if p.pathLoop != nil {
		run(p.pathLoop.Run)
	}
}

// moveTo lets another dataplane serve, and the one before leave. If the other one can't serve, it leaves.
func (a *agent) moveTo(ctx context.Context, group parallel.Group, mode string) {
	before := a.plane()
	from := before.about.Mode
	a.log.Info("switching the dataplane", "from", from, "to", mode)
	if x := a.planes.of(mode); x != nil { // it has not left yet
		x.stop()
		<-x.ended
	}
	next, err := a.openPlane(mode, "ironvip dataplane switch asked for it")
	if err == nil {
		a.startPlane(ctx, group, next)
		if err = a.pipeline.Serve(ctx, next, a.together(from)); err == nil {
			a.planes.serving.Store(next)
			a.notePlane()
			a.announcing.Reload()
			a.leavePlane(ctx, group, before)
		} else {
			a.leavePlane(ctx, group, next)
		}
	}
	if err == nil || ctx.Err() != nil {
		return
	}
	f := failedSwitch{to: mode, at: time.Now(), why: firstLine(err)}
	a.failed.Store(&f)
	a.log.Error("the dataplane is not switched; the one before goes on", "dataplane", mode, "err", err)
	a.events.Add(event.Event{Kind: "switch_failed", Object: mode, Message: f.why})
}

// leavePlane lets a dataplane leave that this agent has run.
func (a *agent) leavePlane(ctx context.Context, group parallel.Group, p *dataplane) {
	p.halt()
	if err := p.vips.Close(); err != nil { // the dataplane that serves has the addresses
		a.log.Debug("close a dataplane that leaves", "dataplane", p.about.Mode, "err", err)
	}
	l := p.Leaver
	if p.proxy != nil {
		l = a.proxyOf(ctx)
		for key := range a.tables.Passive.All() { // the proxy finds nothing of backends any more
			a.tables.Passive.Delete(key)
		}
	}
	if l == nil {
		return
	}
	if _, err := l.Left(ctx); err != nil { // it is looked for anew
		a.log.Warn("a dataplane that leaves was not read; trying again", "dataplane", p.about.Mode, "err", err)
		_ = l.Close()
		l = nil
	}
	x, ctx := a.planes.add(ctx, p.about.Mode, l)
	group.Go(func() error { a.leave(ctx, x); return nil })
}

// together orders the frontends for the first pass of a dataplane that replaces another one. The proxy serves the ports of an
// address that the kernel would refuse until it has them, too.
func (a *agent) together(from string) func(a, b vip.FrontendKey) int {
	if !configs.DataplaneOf(from).Userspace {
		return nil
	}
	return func(a, b vip.FrontendKey) int { return a.Addr.Compare(b.Addr) }
}

// forwards reports whether the dataplane forwards while this process doesn't run.
func (a *agent) forwards() bool {
	return !a.plane().kind().Userspace || a.config.startedWith().Dataplane.ProxySocket != ""
}

// planSwitch returns what a switch does. It costs O(connections + services).
func (a *agent) planSwitch(ctx context.Context, mode string) (v1.SwitchPlan, error) {
	if configs.DataplaneOf(mode) == nil {
		return v1.SwitchPlan{}, server.BadRequest(fmt.Sprintf("%q is not a dataplane", mode), "use "+strings.Join(configs.Modes(), ", "))
	}
	from := a.plane().about.Mode
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
	err := a.plane().ListConnections(ctx, func(vip.FrontendKey) bool { return true }, func(c reconcile.Connection) bool {
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
	case cfg.Dataplane.Role == configs.RoleRealServer && !configs.DataplaneOf(mode).RealServer:
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
