package probe

import (
	"context"
	"time"

	"github.com/ironvip/ironvip/internal/parallel"
	"github.com/ironvip/ironvip/internal/workqueue"
	"github.com/ironvip/ironvip/vip"
)

// job is one probe that has to run.
type job struct {
	t     *target
	check vip.HealthCheck
	mark  uint32 // of the target's path; 0: none
}

// done is the result of a job.
type done struct {
	t       *target
	outcome Outcome
	reason  string // at most maxReason bytes; "" for OK
	took    time.Duration
}

// prober runs probes. Each job is reported once, at the latest when its timeout has passed, unless
// the prober's context ends before.
type prober interface {
	// start begins the probes and does not block. The caller keeps the slice.
	start([]job)
}

// lane bounds the probes that share a resource. Probes over the limit wait: those of a namespace in order, and the
// namespaces take turns. So probes that hang delay others and never exclude them, and delay mainly those of
// their own namespace. Lanes share nothing: commands that hang don't delay TCP probes.
type lane struct {
	limit   int
	running int
	waiting int
	prober  prober
	groups  map[string]*group       // by namespace, those with targets or running probes
	turns   workqueue.Queue[*group] // those with waiting targets
	batch   []job
}

// group is a namespace in a lane.
type group struct {
	namespace string
	targets   int
	running   int
	waiting   workqueue.Queue[*target]
}

// join adds a target of a namespace, and returns the group for the target. leave removes it.
func (l *lane) join(namespace string) *group {
	g := l.groups[namespace]
	if g == nil {
		g = &group{namespace: namespace}
		if l.groups == nil {
			l.groups = map[string]*group{}
		}
		l.groups[namespace] = g
	}
	g.targets++
	return g
}

func (l *lane) leave(t *target) {
	g := t.group
	if g.waiting.Has(t) {
		l.take(g, t)
	}
	g.targets--
	l.forget(g)
}

// forget removes a group without targets and running probes.
func (l *lane) forget(g *group) {
	if g.targets == 0 && g.running == 0 {
		delete(l.groups, g.namespace)
	}
}

// wait adds a target at the end of its group.
func (l *lane) wait(t *target) {
	t.group.waiting.Add(t)
	l.turns.Add(t.group)
	l.waiting++
}

// take removes a waiting target of a group.
func (l *lane) take(g *group, t *target) {
	l.waiting--
	if g.waiting.Remove(t); g.waiting.Len() == 0 {
		l.turns.Remove(g)
	}
}

// next removes the first waiting target of the group whose turn it is, or returns nil if none may begin. A group
// that has to wait for its own probes has several of them, so there are few to pass over.
func (l *lane) next() *target {
	for n := l.turns.Len(); n > 0 && l.running < l.limit; n-- {
		g, _ := l.turns.Take()
		l.turns.Add(g) // at the end
		if !l.allows(g) {
			continue
		}
		for t := range g.waiting.All() {
			l.take(g, t)
			l.running++
			g.running++
			return t
		}
	}
	return nil
}

// allows reports whether a group may begin one more probe. One of several groups leaves a third as many places
// free as it takes: a lane is never full of the probes of a few that hang.
func (l *lane) allows(g *group) bool {
	return g.running == 0 || len(l.groups) == 1 || g.running < 3*(l.limit-l.running-1)
}

// ended frees the place of a target's probe.
func (l *lane) ended(t *target) {
	l.running--
	t.group.running--
	l.forget(t.group)
}

// add prepares a job for flush.
func (l *lane) add(t *target, mark uint32) { l.batch = append(l.batch, job{t, t.Check(), mark}) }

// flush starts the prepared jobs.
func (l *lane) flush() {
	if len(l.batch) > 0 {
		l.prober.start(l.batch)
		clear(l.batch)
		l.batch = l.batch[:0]
	}
}

// probeFunc runs one probe. ctx ends at the probe's timeout; the outcome is then TimedOut.
type probeFunc func(ctx context.Context, j *job) (Outcome, string)

// routines is a prober with a goroutine for each probe; its lane bounds them.
type routines struct {
	ctx    context.Context
	run    func(vip.CheckType) probeFunc
	report func([]done)
	all    parallel.Group
}

func (r *routines) start(jobs []job) {
	for _, j := range jobs {
		r.all.Run(r.ctx, func(ctx context.Context) {
			began := time.Now()
			ctx, cancel := context.WithTimeout(ctx, j.check.Timeout)
			defer cancel()
			result := done{t: j.t}
			// A panic, for example about an answer that a target chose, must not end this process, which serves others.
			if err := parallel.Recovered(func() error {
				result.outcome, result.reason = r.run(j.check.Type)(ctx, &j)
				return nil
			}); err != nil {
				result.outcome, result.reason = Local, err.Error()
			}
			if r.ctx.Err() != nil {
				return // the outcome can be of this end and not of the target
			}
			result.reason, result.took = clip(result.reason), time.Since(began)
			r.report([]done{result})
		})
	}
}
