package agent

import (
	"context"
	"errors"
	"fmt"
	"runtime/debug"
	"time"

	"github.com/ironvip/ironvip/agent/planes"
	"github.com/ironvip/ironvip/agent/stores"
	"github.com/ironvip/ironvip/api"
	"github.com/ironvip/ironvip/configs"
	"github.com/ironvip/ironvip/fleet/membership"
	"github.com/ironvip/ironvip/internal/firewall"
	"github.com/ironvip/ironvip/internal/parallel"
	"github.com/ironvip/ironvip/internal/table"
	"github.com/ironvip/ironvip/internal/wake"
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
	defer func() {
		for _, l := range listeners {
			a.sockets.Release(l)
		}
	}()
	if err := a.access.open(a.config.get()); err != nil {
		return err
	}
	group, ctx := parallel.NewGroup(ctx)
	run := func(p part) {
		group.Go(func() error {
			err := p.run(ctx)
			if ctx.Err() != nil {
				return ctx.Err()
			}
			if _, refused := errors.AsType[*membership.DuplicateNodeError](err); refused {
				return err
			}
			return fmt.Errorf("%s ended: %w", p.name, err)
		})
	}
	run(part{"the store", a.stores.Run})
	run(part{"the hooks", a.hooks.Run})
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
			run(part{"the API at " + l.Addr().String(), func(ctx context.Context) error { return server.Serve(ctx, l, a.access.certificatesOf(l)) }})
		}
		return nil
	})
	run(part{"the dataplanes", func(ctx context.Context) error {
		return a.planes.Run(ctx, planes.Pipeline{Serve: a.pipeline.Serve, Switched: a.announcing.Reload})
	}})
	group.Run(ctx, a.followSignals)
	group.Run(ctx, a.keepSockets)
	group.Run(ctx, a.findDeviceUsers)
	group.Run(ctx, func(ctx context.Context) {
		a.firewall.Run(ctx, func() ([]firewall.Drop, error) {
			cfg := a.config.get()
			return firewall.Find(configs.FirewallQuery(a.planes.Mode(), cfg.Dataplane.Device, cfg.Dataplane.Role == configs.RoleRealServer, cfg.PoolCIDRs()))
		}, a.log)
	})
	group.Run(ctx, func(ctx context.Context) { a.systemd.watch(ctx, a.lastProgress) })
	group.Go(func() error { return a.reportToSystemd(ctx, greet) })
	return group.Wait()
}

// reportToSystemd notifies systemd when the agent is ready, of its status, and when it stops.
func (a *agent) reportToSystemd(ctx context.Context, greet func(*agent)) error {
	defer a.systemd.stopping()
	if wake.Wait(ctx, a.pipeline.Loop.Synced()) != nil {
		return nil
	}
	endStart()
	time.AfterFunc(startTime, debug.FreeOSMemory) // garbage of the start, which the process would keep while it is idle
	a.log.Info("ready", "dataplane", a.planes.Mode(), "why", a.planes.Reason(), "services", a.tables.Services.Len(), "frontends", a.tables.Frontends.Len())
	if err := a.settle(ctx); err != nil {
		return err
	}
	a.systemd.ready(a.summary())
	if greet != nil {
		greet(a)
	}
	tick := time.NewTicker(10 * time.Second)
	defer tick.Stop()
	for last := ""; ; {
		select {
		case <-ctx.Done():
			return nil
		case <-tick.C:
		}
		if s := a.summary(); s != last {
			a.systemd.status(s)
			last = s
		}
	}
}

// settle removes the inherited listeners that nothing needs. It waits for those who claim theirs beside the dataplane.
func (a *agent) settle(ctx context.Context) error {
	if err := wake.Wait(ctx, a.health.Claimed(), a.naming.Claimed()); err != nil {
		return err
	}
	if places := a.sockets.RemoveUnclaimed(); len(places) > 0 {
		a.log.Info("inherited listeners closed: no service needs them", "listeners", places)
	}
	close(a.settled)
	return nil
}

// keepSockets keeps the listening sockets in the service manager's store.
func (a *agent) keepSockets(ctx context.Context) {
	if a.systemd.present() {
		a.sockets.Keep(ctx, a.systemd.keep, func(err error) {
			a.log.Warn("listening sockets not kept by systemd: their clients are refused during a restart", "err", err)
		})
	}
}

// planeAge is how long a dataplane is taken for the one that serves.
const planeAge = time.Minute

// findDeviceUsers finds other agents that use the device of this one's dataplane. It begins when this agent uses it.
func (a *agent) findDeviceUsers(ctx context.Context) {
	for wake.Wait(ctx, a.settled) == nil {
		select {
		case <-ctx.Done():
		case <-a.planes.UsesDevice():
			a.device.Run(ctx)
			return
		case <-time.After(planeAge): // another dataplane may serve now
		}
	}
}

// summary returns the line that `systemctl status` shows.
func (a *agent) summary() string {
	s := a.pipeline.Loop.Stats()
	line := fmt.Sprintf("%s: %d services, %d frontends", a.planes.Mode(), a.tables.Services.Len(), s.Wanted)
	if s.Failing > 0 {
		line += fmt.Sprintf(", %d failing", s.Failing)
	}
	if s.TargetError != "" {
		line += ", dataplane unreachable: " + s.TargetError
	}
	return line
}

// begin restores the content of the stores once they can be read. Before that, a service could get
// an address that another one holds.
func (a *agent) begin(ctx context.Context) error {
	if err := a.stores.Wait(ctx, a.reportWaiting); err != nil {
		return err
	}
	restoring, ctx := parallel.NewGroup(ctx) // each on its own processor
	restoring.Go(func() error { return a.allocator.Restore(ctx) })
	restoring.Go(func() error { a.rest.Restore(); return nil })
	restoring.Go(func() error { a.overrides.Restore(); return nil })
	if err := restoring.Wait(); err != nil {
		return err
	}
	// The configuration works: the agent has its state file, its listeners and its store.
	a.reloading.Lock()
	defer a.reloading.Unlock()
	if cfg := a.config.get(); !cfg.IsLastGood {
		if err := cfg.SaveLastGood(); err != nil {
			a.log.Error("last good configuration not saved: after a bad edit of ironvip.toml the agent will not start", "err", err)
		}
	}
	close(a.began)
	return nil
}

// hasBegun reports whether the content of the stores is restored.
func (a *agent) hasBegun() bool { return table.IsClosed(a.began) }

// reportWaiting reports to the log and systemd that the agent waits for the store.
func (a *agent) reportWaiting(why string) {
	a.log.Warn("waiting for the store: this host has never read it, and assigns nothing before", "store", a.config.startedWith().FleetServers(), "err", why)
	a.systemd.send(fmt.Sprintf("EXTEND_TIMEOUT_USEC=%d\nSTATUS=%s", (10 * stores.WaitingEvery).Microseconds(), a.stores.Awaits()))
}
