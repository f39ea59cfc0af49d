package api

import (
	"context"
	"time"

	"github.com/ironvip/ironvip/internal/metric"
	"github.com/ironvip/ironvip/internal/table"
	"github.com/ironvip/ironvip/pipeline"
	"github.com/ironvip/ironvip/plane/reconcile"
	"github.com/ironvip/ironvip/vip"
)

// convergence measures the time from a source's change of a service until the dataplane has it. It
// follows three change feeds and costs O(1) per change.
type convergence struct {
	services  table.Reader[vip.ServiceKey, vip.Service]
	compiled  table.Reader[vip.ServiceKey, pipeline.Compiled]
	applied   table.Reader[vip.FrontendKey, reconcile.AppliedFrontend]
	front     table.Reader[vip.FrontendKey, vip.Frontend]
	ready     <-chan struct{}
	durations *metric.Durations // by source
	pending   map[vip.ServiceKey]changed
}

type changed struct {
	rev    uint64
	at     time.Time
	source string
}

func newConvergence(d *Deps) *convergence {
	return &convergence{services: d.Services, compiled: d.Compiled, applied: d.Applied, front: d.Frontends, ready: d.Ready,
		pending:   map[vip.ServiceKey]changed{},
		durations: metric.NewDurations(familyConvergence, .001, .0025, .005, .01, .025, .05, .1, .25, .5, 1, 2.5, 5, 10, 30),
	}
}

// run measures changes after the first full reconcile. Earlier changes waited for the agent's
// start.
func (c *convergence) run(ctx context.Context) error {
	select {
	case <-ctx.Done():
		return ctx.Err()
	case <-c.ready:
	}
	services, compiled, applied := c.services.Watch(), c.compiled.Watch(), c.applied.Watch()
	defer services.Close()
	defer compiled.Close()
	defer applied.Close()
	started := c.services.Revision()
	for {
		changes, more := services.TryNext()
		for _, ch := range changes {
			switch k := ch.Value.Key; {
			case ch.Deleted:
				delete(c.pending, k)
			case ch.Rev > started:
				p, waits := c.pending[k]
				if !waits { // else the earlier change is not in effect yet, and its time counts
					p = changed{at: time.Now(), source: ch.Value.Source}
				}
				p.rev = ch.Rev
				c.pending[k] = p
			}
		}
		compiledChanges, moreCompiled := compiled.TryNext()
		for _, ch := range compiledChanges {
			c.look(ch.Value.Service.Key)
		}
		appliedChanges, moreApplied := applied.TryNext()
		for _, ch := range appliedChanges {
			if f, _, ok := c.front.Get(ch.Value.Tried.Value.Key); ok {
				c.look(f.Service)
			}
		}
		for _, ch := range changes { // changes that were applied before they were read here
			c.look(ch.Value.Key)
		}
		if len(changes)+len(compiledChanges)+len(appliedChanges) > 0 {
			continue
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-more:
		case <-moreCompiled:
		case <-moreApplied:
		}
	}
}

// look removes a service from the pending ones if the dataplane has it.
func (c *convergence) look(key vip.ServiceKey) {
	p, waits := c.pending[key]
	if !waits {
		return
	}
	row, _, ok := c.compiled.Get(key)
	if !ok || row.ServiceRev < p.rev || len(row.Frontends) == 0 {
		return
	}
	for _, f := range row.Frontends {
		if a, _, ok := c.applied.Get(f.Value.Key); !ok || a.Tried.Rev < f.Rev || a.Problem != nil {
			return
		}
	}
	delete(c.pending, key)
	c.durations.Observe(time.Since(p.at), p.source)
}
