package planes

import (
	"context"
	"fmt"
	"net/http"
	"time"

	"github.com/ironvip/ironvip/api/server"
	v1 "github.com/ironvip/ironvip/api/v1"
	"github.com/ironvip/ironvip/configs"
	"github.com/ironvip/ironvip/internal/event"
	"github.com/ironvip/ironvip/internal/parallel"
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
