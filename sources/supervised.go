package sources

import (
	"context"
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/ironvip/ironvip/internal/event"
	"github.com/ironvip/ironvip/internal/table"
	"github.com/ironvip/ironvip/internal/text"
	"github.com/ironvip/ironvip/internal/wake"
	"github.com/ironvip/ironvip/vip"
)

// relogStale is the interval at which changed reasons for staleness are logged. The status has a
// new reason immediately.
const relogStale = time.Minute

// supervised holds one source's claims, status and shrink guard. A change costs O(change), plus
// O(problems) if the problems change; see refuse.
type supervised struct {
	*Options
	name, typ string
	source    Source
	claims    *table.Table[vip.ServiceKey, vip.Service]
	synced    func()      // marks claims as Ready
	holding   wake.Signal // has an element after the guard began to hold something back

	mu       sync.Mutex
	cancel   context.CancelCauseFunc // ends the current run or the pause before the next; nil before the first
	run      *sink                   // of the current run
	changed  []vip.ServiceKey        // claims that are not resolved yet
	problems []vip.Problem           // with the source's input
	outdated bool                    // status.Problems must be rebuilt
	refusals refusals                // status.Problems by what they concern
	guard    *shrinkGuard            // nil: no guard
	status   Status
	waited   bool // synced or timed out: the pipeline no longer waits for it
	failing  bool
	logged   time.Time // when a reason for being stale was last logged
}

// begin returns the sink of a new run.
func (src *supervised) begin() *sink {
	src.mu.Lock()
	defer src.mu.Unlock()
	src.run = &sink{src}
	return src.run
}

// reason returns an error for the status, which is in every answer. A server can choose a part of it.
func reason(err error) string { return text.Clip(err.Error(), 1<<10) }

// failed marks the source stale after a run that returned an error.
func (src *supervised) failed(err error) {
	src.mu.Lock()
	defer src.mu.Unlock()
	src.status.Restarts++
	src.status.Stale = reason(err)
	if !src.failing {
		src.failing = true
		src.event("source_failed", fmt.Sprintf("%s; its %d services stay unchanged", src.status.Stale, src.claims.Len()))
	}
	src.commit()
}

// syncTimeout ends the wait for a source that has not synced. It ignores a first list that the
// guard holds back, because the guard's delay ends that wait.
func (src *supervised) syncTimeout() {
	src.mu.Lock()
	defer src.mu.Unlock()
	if src.waited || src.doubted() {
		return
	}
	what := fmt.Sprintf("has not synced within %s; continuing without it", src.SyncTimeout)
	if src.status.Stale == "" {
		src.status.Stale = what
	}
	src.Log.Error("source "+what, "source", src.name, "err", src.status.Stale)
	src.event("source_sync_timeout", what)
	src.ready()
	src.commit()
}

// ready lets the pipeline continue without waiting for the source.
func (src *supervised) ready() {
	if !src.waited {
		src.waited = true
		src.synced()
		src.Resolver.Changed(src.name, nil)
	}
}

// recovered clears the source's staleness.
func (src *supervised) recovered() {
	src.status.Stale = ""
	if src.failing {
		src.failing = false
		src.Log.Info("source recovered", "source", src.name)
		src.event("source_recovered", "recovered")
	}
}

// put writes a claim, except for what the guard holds back.
func (src *supervised) put(s vip.Service) {
	s.Source = src.name
	former := src.claims.Row(s.Key)
	if src.guard != nil {
		var present vip.Service
		if former != nil {
			present = former.Value
		}
		s = src.guard.put(time.Now(), s, present)
	}
	src.claim(s, former)
}

// claim writes a claim that replaces the former one.
func (src *supervised) claim(s vip.Service, former *table.Row[vip.Service]) {
	if src.claims.Put(s) != former {
		src.changed = append(src.changed, s.Key)
	}
}

// remove removes claims, except for those that the guard holds back. Full means that the keys were
// missing from a full list.
func (src *supervised) remove(keys []vip.ServiceKey, full bool) {
	if src.guard != nil {
		keys = slices.DeleteFunc(slices.Clone(keys), func(k vip.ServiceKey) bool { return src.claims.Row(k) == nil })
		keys = src.guard.remove(time.Now(), keys, src.claims.Len(), full)
	}
	for _, key := range keys {
		if src.claims.Delete(key) {
			src.changed = append(src.changed, key)
		}
	}
}

// loggedProblems is how many problems of a source the log has.
const loggedProblems = 20

// setProblems replaces the problems. The log gets those that are new, and the number of those that
// it does not have.
func (src *supervised) setProblems(problems []vip.Problem) {
	former := src.problems[:min(len(src.problems), loggedProblems)]
	for _, p := range problems[:min(len(problems), loggedProblems)] {
		if slices.Contains(former, p) {
			continue
		}
		attrs := []any{"source", src.name, "problem", p}
		if p.Hint != "" {
			attrs = append(attrs, "hint", p.Hint)
		}
		src.Log.Warn("source has a problem", attrs...)
	}
	if more := len(problems) - loggedProblems; more > 0 && len(problems) != len(src.problems) {
		src.Log.Warn("source has more problems", "source", src.name, "count", more, "hint", "run ironvip source list")
	}
	if len(problems) == 0 && len(former) > 0 {
		src.Log.Info("source has no problems left", "source", src.name)
	}
	src.problems, src.outdated = problems, true
}

// listed handles a full list, and additions to a first list that is doubted. It marks the source as
// synced, unless the guard doubts the first list.
func (src *supervised) listed() {
	if g := src.guard; g != nil && !src.status.Synced {
		if src.PriorServices != nil && !src.doubted() {
			g.prior = src.PriorServices(src.name)
		}
		if doubted := src.doubted(); g.doubtFirst(time.Now(), src.claims.Len()) {
			if !doubted {
				src.event("shrink_held", fmt.Sprintf("has %d services, this host had %d of it before; nothing is removed for %s", src.claims.Len(), g.prior, g.delay))
			}
			return
		}
	}
	src.confirmSync()
}

// confirmSync marks the source as synced.
func (src *supervised) confirmSync() {
	if src.doubted() {
		src.guard.acceptFirst()
	}
	src.status.Synced = true
	src.resolve()
	src.ready()
}

// doubted reports whether the guard doubts the first list.
func (src *supervised) doubted() bool { return src.guard != nil && !src.guard.first.IsZero() }

// resolve resolves the claims that changed. A claim may have come to a file with problems, or gone from
// one.
func (src *supervised) resolve() {
	if len(src.changed) > 0 {
		if len(src.refusals.files) > 0 {
			for _, key := range src.changed {
				src.refuseOne(key)
			}
		}
		src.Resolver.Changed(src.name, src.changed)
		clear(src.changed)
		src.changed = src.changed[:0]
	}
}

// commit resolves the claims that changed, reports what the guard holds back, and writes the
// status.
func (src *supervised) commit() {
	src.resolve()
	if g := src.guard; g != nil && g.changed {
		g.changed, src.outdated = false, true
		src.holding.Set()
	}
	if src.outdated {
		src.outdated = false
		src.status.Problems = src.problems
		if g := src.guard; g != nil && g.holds() {
			src.status.Problems = slices.Concat(src.problems, g.problems(src.name, src.claims.Len()))
		}
		src.refuse(src.status.Problems)
	}
	src.status.Services = src.claims.Len()
	src.Statuses.Set(src.status)
}

// confirm applies the held changes that are due, or all of them.
func (src *supervised) confirm(all bool) {
	src.mu.Lock()
	defer src.mu.Unlock()
	g := src.guard
	if g == nil || !g.holds() {
		return
	}
	now := time.Now()
	if src.doubted() && (all || !g.first.After(now)) {
		src.confirmSync()
	}
	remove, put := g.confirm(now, all)
	for _, key := range remove {
		if src.claims.Delete(key) {
			src.changed = append(src.changed, key)
		}
	}
	for _, s := range put {
		src.claim(s, src.claims.Row(s.Key))
	}
	if len(remove)+len(put) > 0 {
		why := fmt.Sprintf("after %s", g.delay)
		if all {
			why = "by a resync"
		}
		src.event("shrink_confirmed", fmt.Sprintf("%d services that disappeared are removed, and backends of %d others, %s", len(remove), len(put), why))
	}
	src.outdated = true
	src.commit()
}

// confirmDue applies held changes when they are due, until the context ends.
func (src *supervised) confirmDue(ctx context.Context) {
	timer := time.NewTimer(time.Hour)
	defer timer.Stop()
	for {
		src.mu.Lock()
		at, held := src.guard.next()
		src.mu.Unlock()
		if held {
			timer.Reset(time.Until(at))
		} else {
			timer.Stop()
		}
		select {
		case <-ctx.Done():
			return
		case <-src.holding:
		case <-timer.C:
			src.confirm(false)
		}
	}
}

func (src *supervised) event(kind, message string) {
	src.Events.Add(event.Event{Kind: kind, Object: src.name, Message: fmt.Sprintf("source %q: %s", src.name, message)})
}
