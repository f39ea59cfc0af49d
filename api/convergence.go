package api

import (
	"context"
	"time"

	"github.com/ironvip/ironvip/api/status"
	"github.com/ironvip/ironvip/internal/metric"
	"github.com/ironvip/ironvip/vip"
)

// convergence measures the time from a source's change of a service until the dataplane has it. It
// follows the services and their statuses, and costs O(1) per change.
type convergence struct {
	tables    *status.Tables
	ready     <-chan struct{}
	durations *metric.Durations // by source
	pending   map[vip.ServiceKey]change
}

// change is one that the dataplane does not have yet.
type change struct {
	rev    uint64
	at     time.Time
	source string
}

func newConvergence(tables *status.Tables, ready <-chan struct{}) *convergence {
	return &convergence{tables: tables, ready: ready, pending: map[vip.ServiceKey]change{},
		durations: metric.NewDurations(familyConvergence, .001, .0025, .005, .01, .025, .05, .1, .25, .5, 1, 2.5, 5, 10, 30)}
}

// run measures changes after the first full reconcile. Earlier changes waited for the agent's
// start.
func (c *convergence) run(ctx context.Context) error {
	select {
	case <-ctx.Done():
		return ctx.Err()
	case <-c.ready:
	}
	services, statuses := c.tables.Services.Watch(), c.tables.Revisions.Watch()
	defer services.Close()
	defer statuses.Close()
	started := c.tables.Services.Revision()
	for {
		changed := c.tables.Revisions.Changed() // before looking
		statuses.Each(func(k *vip.ServiceKey) { c.look(*k) })
		changes, more := services.TryNext()
		for _, ch := range changes {
			switch k := ch.Value.Key; {
			case ch.Deleted:
				delete(c.pending, k)
			case ch.Rev > started:
				p, waits := c.pending[k]
				if !waits { // else the earlier change is not in effect yet, and its time counts
					p = change{at: time.Now(), source: ch.Value.Source}
				}
				p.rev = ch.Rev
				c.pending[k] = p
				c.look(k) // it may have been applied before it was read here
			}
		}
		if len(changes) > 0 {
			continue
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-more:
		case <-changed:
		}
	}
}

// look removes a service from the pending ones if the dataplane has it.
func (c *convergence) look(key vip.ServiceKey) {
	p, waits := c.pending[key]
	if !waits {
		return
	}
	row, _, ok := c.tables.Compiled.Get(key)
	if !ok || row.ServiceRev < p.rev || len(row.Frontends) == 0 {
		return
	}
	for _, f := range row.Frontends {
		if a, _, ok := c.tables.Applied.Get(f.Value.Key); !ok || a.Tried.Rev < f.Rev || a.Problem != nil {
			return
		}
	}
	delete(c.pending, key)
	c.durations.Observe(time.Since(p.at), p.source)
}
