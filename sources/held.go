package sources

import (
	"context"
	"fmt"
	"time"

	"github.com/ironvip/ironvip/vip"
)

// put is claim, less what the source's guard holds back.
func (n *names) put(src *supervised, c *claims, s vip.Service) uint64 {
	if c.guard == nil {
		return n.claim(src, c, s)
	}
	defer n.watchHeld(src, c)()
	var inForce []vip.Backend
	if row := c.rows[s.Key]; row != nil {
		inForce = row.Backends
	}
	return n.claim(src, c, c.guard.put(time.Now(), s, inForce))
}

// remove is release, less what the source's guard holds back. Full is as in
// guard.remove.
func (n *names) remove(src *supervised, c *claims, keys []vip.ServiceKey, full bool) {
	if c.guard != nil {
		defer n.watchHeld(src, c)()
		there := make([]vip.ServiceKey, 0, len(keys))
		for _, key := range keys {
			if _, has := c.rows[key]; has {
				there = append(there, key)
			}
		}
		keys = c.guard.remove(time.Now(), there, len(c.rows), full)
	}
	for _, key := range keys {
		n.release(src, c, key)
	}
}

// watchHeld returns what tells, once something was said to the source's guard,
// how that has changed what it holds.
func (n *names) watchHeld(src *supervised, c *claims) func() {
	g := c.guard
	services, backends := len(g.services), len(g.backends)
	return func() {
		if !g.changed {
			return
		}
		g.changed = false
		n.untold[c] = struct{}{}
		if len(g.services) > services {
			n.event("shrink_held", src, fmt.Sprintf("%d of %d services vanished at once; they are kept for %s", len(g.services), len(c.rows), g.patience))
		} else if services > 0 && len(g.services) == 0 {
			n.event("shrink_withdrawn", src, "the services that had vanished are back, or gone by themselves")
		}
		if backends == 0 && len(g.backends) > 0 { // the first of many, perhaps; the status names all
			n.event("shrink_held", src, fmt.Sprintf("most backends of a service vanished at once; they are kept for %s", g.patience))
		} else if backends > 0 && len(g.backends) == 0 {
			n.event("shrink_withdrawn", src, "the backends that had vanished are back, or gone with their service")
		}
		n.awaitDue()
	}
}

// awaitDue has confirmDue look at what is held.
func (n *names) awaitDue() {
	select {
	case n.holding <- struct{}{}:
	default:
	}
}

// first takes note of a list of the source, and of what is added to one that is
// doubted: the source is synced, unless its guard doubts the first list.
func (n *names) first(src *supervised, c *claims) {
	if g := c.guard; g != nil && !c.status.Synced {
		if n.options.PriorServices != nil && g.first.IsZero() {
			g.prior = n.options.PriorServices(src.name)
		}
		if doubted := c.doubted(); g.doubtFirst(time.Now(), len(c.rows)) {
			if !doubted {
				n.event("shrink_held", src, fmt.Sprintf("has %d services, where this host had %d of it before; nothing is removed for %s", len(c.rows), g.prior, g.patience))
			}
			n.untold[c] = struct{}{}
			n.awaitDue()
			return
		}
	}
	n.synced(src, c)
}

// synced ends the waiting for the source.
func (n *names) synced(src *supervised, c *claims) {
	if c.doubted() {
		c.guard.first = time.Time{}
		n.untold[c] = struct{}{}
	}
	c.status.Synced = true
	if !c.waited {
		c.waited = true
		n.unlock()
	}
	src.synced()
}

// doubted reports whether the guard doubts the first list.
func (c *claims) doubted() bool { return c.guard != nil && !c.guard.first.IsZero() }

func (c *claims) holds() bool {
	return c.guard != nil && len(c.guard.services)+len(c.guard.backends) > 0 || c.doubted()
}

func (c *claims) heldBack() []vip.Problem {
	if !c.holds() {
		return nil
	}
	return c.guard.problems(c.status.Name, len(c.rows))
}

// confirm lets go what the source's guard has held for long enough, or all that
// it holds.
func (n *names) confirm(src *supervised, all bool) {
	n.mu.Lock()
	defer n.mu.Unlock()
	c := n.claims[src]
	if !c.holds() {
		return
	}
	now := time.Now()
	if c.doubted() && (all || !c.guard.first.After(now)) {
		n.synced(src, c)
	}
	remove, put := c.guard.confirm(now, all)
	for _, key := range remove {
		n.release(src, c, key)
	}
	for _, service := range put {
		n.claim(src, c, service)
	}
	if len(remove)+len(put) > 0 {
		why := fmt.Sprintf("after %s", c.guard.patience)
		if all {
			why = "as asked"
		}
		n.event("shrink_confirmed", src, fmt.Sprintf("%d services that had vanished are removed, and backends of %d others, %s", len(remove), len(put), why))
	}
	n.untold[c] = struct{}{}
	n.tell(c)
}

// confirmDue lets go what has been held for long enough, until the context ends.
func (n *names) confirmDue(ctx context.Context) {
	timer := time.NewTimer(time.Hour)
	defer timer.Stop()
	for {
		if at, held := n.nextDue(); held {
			timer.Reset(time.Until(at))
		} else {
			timer.Stop()
		}
		select {
		case <-ctx.Done():
			return
		case <-n.holding:
		case <-timer.C:
			for src := range n.claims { // all were added before Run
				n.confirm(src, false)
			}
		}
	}
}

// nextDue returns when something is let go next.
func (n *names) nextDue() (at time.Time, held bool) {
	n.mu.Lock()
	defer n.mu.Unlock()
	for _, c := range n.claims {
		if !c.holds() {
			continue
		}
		if next, _ := c.guard.next(); !held || next.Before(at) {
			at, held = next, true
		}
	}
	return at, held
}
