package agent

import (
	"context"
	"fmt"

	"github.com/ironvip/ironvip/agent/stores"
	"github.com/ironvip/ironvip/internal/parallel"
	"github.com/ironvip/ironvip/internal/table"
)

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
	a.log.Warn("waiting for the store: this host has never read it, and assigns nothing before", "consul", a.config.startedWith().Consul.Address, "err", why)
	a.systemd.send(fmt.Sprintf("EXTEND_TIMEOUT_USEC=%d\nSTATUS=%s", (10 * stores.WaitingEvery).Microseconds(), a.stores.Awaits()))
}
