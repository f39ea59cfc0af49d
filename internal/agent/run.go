package agent

import (
	"context"
	"errors"
	"fmt"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/ironvip/ironvip/api"
	"github.com/ironvip/ironvip/internal/fleet/membership"
)

// part runs for as long as the agent. Its name appears in the error of its end.
type part struct {
	name string
	run  func(context.Context) error
}

// run starts every part and waits for the end of all of them. The API and systemd's status start at
// once. The pipeline starts when the store has been read, however long that takes.
func (a *agent) run(ctx context.Context, greet func(*agent)) error {
	listeners, err := listen(ctx, a.config.get(), a.sockets)
	if err != nil {
		return err
	}
	group, ctx := errgroup.WithContext(ctx)
	run := func(p part) {
		group.Go(func() error {
			err := p.run(ctx)
			if ctx.Err() != nil {
				return ctx.Err()
			}
			if _, refused := errors.AsType[*membership.DuplicateNodeError](err); refused {
				return err
			}
			if _, asked := errors.AsType[*request](err); asked {
				return err
			}
			return fmt.Errorf("%s ended: %w", p.name, err)
		})
	}
	run(part{"the store", a.stores.run})
	group.Go(func() error {
		if err := a.begin(ctx); err != nil {
			return err
		}
		for _, p := range a.parts() {
			run(p)
		}
		return nil
	})
	group.Go(func() error {
		// Creating the API's routes takes as long as thousands of services, so nothing waits for
		// it.
		server := api.New(a.apiDeps())
		run(part{"the API", server.Run})
		for _, l := range listeners {
			run(part{"the API at " + l.Addr().String(), func(ctx context.Context) error { return server.Serve(ctx, l) }})
		}
		return nil
	})
	if greet == nil {
		run(part{"the take-over socket", a.awaitTakeover})
		group.Go(func() error { a.followUpgrades(ctx); return nil })
	}
	group.Go(func() error { a.followSignals(ctx); return nil })
	group.Go(func() error { a.keepSockets(ctx); return nil })
	group.Go(func() error {
		a.systemd.watch(ctx, func() time.Time { return a.pipeline.Reconciler.Stats().LastRound })
		return nil
	})
	group.Go(func() error { a.reportToSystemd(ctx, greet); return nil })
	return group.Wait()
}

// reportToSystemd notifies systemd when the agent is ready, of its status, and when it stops.
func (a *agent) reportToSystemd(ctx context.Context, greet func(*agent)) {
	defer func() {
		if _, asked := errors.AsType[*request](context.Cause(ctx)); !asked {
			a.systemd.stopping()
		}
	}()
	select {
	case <-ctx.Done():
		return
	case <-a.pipeline.Reconciler.Synced():
	}
	a.log.Info("ready", "dataplane", a.plane.about.Mode, "why", a.plane.about.Reason, "services", a.tables.Services.Len(), "frontends", a.tables.Frontends.Len())
	a.settle()
	a.systemd.ready(a.summary())
	if greet != nil {
		greet(a)
	}
	tick := time.NewTicker(10 * time.Second)
	defer tick.Stop()
	for last := ""; ; {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
		if s := a.summary(); s != last {
			a.systemd.status(s)
			last = s
		}
	}
}

// settle ends what served clients before this agent, and removes the inherited listeners that no
// service needs.
func (a *agent) settle() {
	if places := a.sockets.RemoveUnclaimed(); len(places) > 0 {
		a.log.Info("inherited listeners closed: no service needs them", "listeners", places)
	}
	if a.predecessor != nil {
		a.predecessor.retire()
	}
	close(a.settled)
}

// keepSockets keeps the listening sockets in the service manager's store. It waits for the end of
// the predecessor, because the manager listens to one process only.
func (a *agent) keepSockets(ctx context.Context) {
	if !a.systemd.present() {
		return
	}
	if a.predecessor != nil {
		select {
		case <-ctx.Done():
			return
		case <-a.settled:
		}
	}
	a.sockets.Keep(ctx, maxStored, a.systemd.keep, func(err error) {
		a.log.Warn("listening sockets not kept by systemd: their clients are refused during a restart", "err", err)
	})
}

// summary returns the line that `systemctl status` shows.
func (a *agent) summary() string {
	s := a.pipeline.Reconciler.Stats()
	line := fmt.Sprintf("%s: %d services, %d frontends", a.plane.about.Mode, a.tables.Services.Len(), s.Wanted)
	if s.Failing > 0 {
		line += fmt.Sprintf(", %d failing", s.Failing)
	}
	if s.TargetError != "" {
		line += ", dataplane unreachable: " + s.TargetError
	}
	return line
}
