package probe

import (
	"context"
	"fmt"
	"time"

	"github.com/ironvip/ironvip/internal/parallel"
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

// lane bounds the probes that share a resource. Probes over the limit wait in order, so that probes
// that hang delay others and never exclude them. Lanes share nothing: commands that hang don't
// delay TCP probes.
type lane struct {
	limit   int
	running int
	prober  prober
	waiting []*target // from the first; those before it are nil
	first   int
	batch   []job
}

// wait adds a target at the end.
func (l *lane) wait(t *target) { l.waiting = append(l.waiting, t) }

// queued returns how many targets wait.
func (l *lane) queued() int { return len(l.waiting) - l.first }

// next removes the first waiting target, or returns nil if none waits or the lane is full.
func (l *lane) next() *target {
	for l.running < l.limit && l.first < len(l.waiting) {
		t := l.waiting[l.first]
		l.waiting[l.first] = nil
		l.first++
		if !t.stopped {
			l.running++
			return t
		}
	}
	// Moving the rest down when half of the slice is unused costs O(1) for each target.
	if l.first == len(l.waiting) || l.first > len(l.waiting)/2 {
		rest := copy(l.waiting, l.waiting[l.first:])
		clear(l.waiting[rest:])
		l.waiting, l.first = l.waiting[:rest], 0
	}
	return nil
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
			outcome, reason := recovered(ctx, r.run(j.check.Type), j)
			if r.ctx.Err() != nil {
				return // the outcome can be of this end and not of the target
			}
			r.report([]done{{j.t, outcome, clip(reason), time.Since(began)}})
		})
	}
}

// recovered runs a probe. A panic, for example about an answer that a target chose, must not end
// this process, which serves others. It is counted and logged as a fault of this host.
func recovered(ctx context.Context, f probeFunc, j job) (outcome Outcome, reason string) {
	defer func() {
		if p := recover(); p != nil {
			outcome, reason = Local, fmt.Sprintf("panic: %v", p)
		}
	}()
	return f(ctx, &j)
}
