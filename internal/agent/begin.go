package agent

import (
	"cmp"
	"context"
	"fmt"

	"golang.org/x/sync/errgroup"
)

// begin takes in what the stores keep, once they can be read. Without that a
// service would get an address that another one holds.
func (a *agent) begin(ctx context.Context) error {
	if err := a.stores.wait(ctx, a.tellWaiting); err != nil {
		return err
	}
	var taking errgroup.Group // each on a processor of its own
	taking.Go(func() error { return a.allocator.Restore(ctx) })
	taking.Go(func() error { a.rest.Restore(); return nil })
	taking.Go(func() error { a.overrides.Restore(); return nil })
	if err := taking.Wait(); err != nil {
		return err
	}
	// Only now, with the state, the listeners and the store its own, is it known to be good.
	a.reloading.Lock()
	defer a.reloading.Unlock()
	if cfg := a.config.get(); !cfg.Remembered {
		if err := cfg.Remember(); err != nil {
			a.log.Error("a bad edit of ironvip.toml will keep the agent from starting until this can be written", "err", err)
		}
	}
	close(a.began)
	return nil
}

// hasBegun reports whether what the stores keep has been taken in.
func (a *agent) hasBegun() bool {
	select {
	case <-a.began:
		return true
	default:
		return false
	}
}

// awaits says what an agent waits for that hasn't begun.
func (a *agent) awaits() string {
	if a.stores.tree == nil {
		return "the state file is being read"
	}
	return fmt.Sprintf("waiting for consul at %s: %s", a.config.startedWith().Consul.Address, cmp.Or(a.stores.tree.Stale(), "it is being read"))
}

// tellWaiting tells whoever doesn't ask that there is no beginning without the
// store, which this host has never read.
func (a *agent) tellWaiting(why string) {
	a.log.Warn("waiting for the store: this host has never read it, and gives out nothing before", "consul", a.config.startedWith().Consul.Address, "err", why)
	a.systemd.send(fmt.Sprintf("EXTEND_TIMEOUT_USEC=%d\nSTATUS=%s", (10 * waitingEvery).Microseconds(), a.awaits()))
}
