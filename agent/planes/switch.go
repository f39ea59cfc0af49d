package planes

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

// switching returns the dataplane to which this host is being moved, or "".
func (p *Planes) switching() string {
	if w := p.requested.Load(); w != nil {
		return *w
	}
	return ""
}

// Switch begins to move this host to another dataplane. With dryRun, it only returns what that does. Force permits that
// services are not served any more.
func (p *Planes) Switch(ctx context.Context, mode string, force, dryRun bool) (v1.SwitchPlan, error) {
	plan, err := p.planSwitch(ctx, mode)
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
	if !p.requested.CompareAndSwap(nil, &mode) {
		return plan, server.Refuse(http.StatusConflict, v1.CodeSwitchRefused, "another request has begun to move this host", "wait for its end: ironvip status")
	}
	p.requests <- mode
	return plan, nil
}

// Pipeline is what the dataplanes need of the parts that are made after them.
type Pipeline struct {
	// Serve lets another dataplane serve the frontends, see pipeline.Pipeline.
	Serve    func(ctx context.Context, next reconcile.Plane, together func(a, b vip.FrontendKey) int) error
	Switched func() // is called when another dataplane serves
}

// Run runs the dataplane that serves and balancing at connect(), ends what other dataplanes have left, and moves this host when an
// operator asks for it. It returns the error of the context.
func (p *Planes) Run(ctx context.Context, by Pipeline) error {
	group, ctx := parallel.NewGroup(ctx)
	p.start(ctx, group, p.plane())
	if p.connect.Plane != nil {
		group.Go(func() error { return p.connect.loop.Run(ctx) })
	}
	group.Go(func() error { return p.leaveOthers(ctx) })
	group.Go(func() error {
		for {
			select {
			case <-ctx.Done():
				return ctx.Err()
			case mode := <-p.requests:
				p.moveTo(ctx, group, mode, by)
				p.requested.Store(nil)
			}
		}
	})
	return group.Wait()
}

// start runs what a dataplane has besides the loop of frontends, until it is halted.
func (p *Planes) start(ctx context.Context, group parallel.Group, d *dataplane) {
	running, halt := context.WithCancel(ctx)
	d.halt = halt
	run := func(f func(context.Context) error) {
		group.Go(func() error {
			if err := f(running); running.Err() == nil {
				return err
			}
			return ctx.Err()
		})
	}
	if d.proxy != nil {
		run(d.proxy.Run)
	}
	if d.pathLoop != nil {
		run(d.pathLoop.Run)
	}
}

// moveTo lets another dataplane serve, and the one before leave. If the other one can't serve, it leaves.
func (p *Planes) moveTo(ctx context.Context, group parallel.Group, mode string, by Pipeline) {
	before := p.plane()
	from := before.about.Mode
	p.o.Log.Info("switching the dataplane", "from", from, "to", mode)
	if x := p.of(mode); x != nil { // it has not left yet
		x.stop()
		<-x.ended
	}
	next, err := p.open(mode, "ironvip dataplane switch asked for it")
	if err == nil {
		p.start(ctx, group, next)
		if err = by.Serve(ctx, next, together(from)); err == nil {
			p.serving.Store(next)
			p.noteServing()
			by.Switched()
			p.leaveAfter(ctx, group, before)
		} else {
			p.leaveAfter(ctx, group, next)
		}
	}
	if err == nil || ctx.Err() != nil {
		return
	}
	f := failedSwitch{to: mode, at: time.Now(), why: firstLine(err)}
	p.failed.Store(&f)
	p.o.Log.Error("the dataplane is not switched; the one before goes on", "dataplane", mode, "err", err)
	p.o.Events.Add(event.Event{Kind: "switch_failed", Object: mode, Message: f.why})
}

// leaveAfter lets a dataplane leave that this agent has run.
func (p *Planes) leaveAfter(ctx context.Context, group parallel.Group, d *dataplane) {
	d.halt()
	if err := d.vips.Close(); err != nil { // the dataplane that serves has the addresses
		p.o.Log.Debug("close a dataplane that leaves", "dataplane", d.about.Mode, "err", err)
	}
	l := d.Leaver
	if d.proxy != nil {
		l = p.proxyOf(ctx)
		for key := range p.o.Tables.Passive.All() { // the proxy finds nothing of backends any more
			p.o.Tables.Passive.Delete(key)
		}
	}
	if l == nil {
		return
	}
	if _, err := l.Left(ctx); err != nil { // it is looked for anew
		p.o.Log.Warn("a dataplane that leaves was not read; trying again", "dataplane", d.about.Mode, "err", err)
		_ = l.Close()
		l = nil
	}
	x, ctx := p.add(ctx, d.about.Mode, l)
	group.Go(func() error { p.leave(ctx, x); return nil })
}

// together orders the frontends for the first pass of a dataplane that replaces another one. The proxy serves the ports of an
// address that the kernel would refuse until it has them, too.
func together(from string) func(a, b vip.FrontendKey) int {
	if !configs.DataplaneOf(from).Userspace {
		return nil
	}
	return func(a, b vip.FrontendKey) int { return a.Addr.Compare(b.Addr) }
}

// planSwitch returns what a switch does. It costs O(connections + services).
func (p *Planes) planSwitch(ctx context.Context, mode string) (v1.SwitchPlan, error) {
	if configs.DataplaneOf(mode) == nil {
		return v1.SwitchPlan{}, server.BadRequest(fmt.Sprintf("%q is not a dataplane", mode), "use "+strings.Join(configs.Modes(), ", "))
	}
	from := p.Mode()
	plan := v1.SwitchPlan{From: from, To: mode, Changes: mode != from, Connections: []v1.SwitchConnections{}, Refused: []v1.Problem{}, Problems: []v1.Problem{}}
	if !plan.Changes {
		plan.Problems = append(plan.Problems, p.contradictions(mode)...)
		return plan, nil
	}
	plan.HardStopAfter = uint64(p.hardStopAfter() / time.Second)
	plan.Problems = append(plan.Problems, p.switchProblems(mode)...)
	refused := map[v1.Problem]struct{}{}
	for _, f := range p.o.Tables.Frontends.All() {
		if problem := status.Unsupported(mode, &f); problem != nil && status.Unsupported(from, &f) == nil {
			problem.Service = f.Service.String()
			refused[*problem] = struct{}{}
		}
	}
	plan.Refused = slices.AppendSeq(plan.Refused, maps.Keys(refused))
	slices.SortFunc(plan.Refused, func(a, b v1.Problem) int {
		return cmp.Or(strings.Compare(a.Service, b.Service), strings.Compare(a.Field, b.Field), strings.Compare(a.Message, b.Message))
	})
	if plan.Counted = table.IsClosed(p.o.Settled); !plan.Counted {
		return plan, nil
	}
	type kind struct {
		protocol vip.Protocol
		state    string
	}
	counts := map[kind]int{}
	err := p.plane().ListConnections(ctx, func(vip.FrontendKey) bool { return true }, func(c reconcile.Connection) bool {
		if c.State != reconcile.StateAffinity {
			counts[kind{c.Frontend.Protocol, c.State}]++
		}
		return true
	})
	if err != nil {
		return plan, server.Refuse(http.StatusServiceUnavailable, v1.CodeDataplane, "list the connections of the dataplane: "+err.Error(), "ironvip dataplane show shows its state")
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
func (p *Planes) contradictions(mode string) []vip.Problem {
	one := func(field, place, message, hint string) []vip.Problem {
		return []vip.Problem{{Code: vip.CodeInvalid, Field: field, Place: place, Message: message, Hint: hint}}
	}
	cfg, problems := configs.Load(p.o.Started.Path)
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
func (p *Planes) switchProblems(mode string) (out []vip.Problem) {
	out = p.contradictions(mode)
	add := func(field, place, message, hint string) {
		out = append(out, vip.Problem{Code: vip.CodeInvalid, Field: field, Place: place, Message: message, Hint: hint})
	}
	for _, f := range needs(mode, p.o.Started.Dataplane.Role) {
		if f.Required && !f.OK {
			add(f.Name, "", "this host lacks what "+mode+" needs: "+f.Detail, f.Remedy)
		}
	}
	to := p.switching()
	switch {
	case to != "":
		add("", "", "this host is moving to "+to, "wait for its end: ironvip status")
	case !table.IsClosed(p.o.Settled):
		add("", "", "this agent has not finished its start", "wait for it: ironvip status --wait")
	}
	return out
}
