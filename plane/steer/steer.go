// Package steer lets one dataplane serve the frontends, and another one instead, without a gap for clients.
//
// Its input is the table of frontends, its output the table of what is applied, as those of a reconcile.Reconciler: at any
// time, one of these runs, for the dataplane that serves. To replaces the dataplane: the loop of the one before ends, which
// then serves as it is, until the next one has every frontend. If that one can't be read or programmed, the one before goes
// on. The caller of To opens dataplanes, and ends those that no longer serve.
package steer

import (
	"context"
	"errors"
	"sync"
	"time"

	"github.com/ironvip/ironvip/internal/table"
	"github.com/ironvip/ironvip/plane/reconcile"
	"github.com/ironvip/ironvip/vip"
)

// Options are those of every loop. Target is the dataplane that serves at the start; Together is for its loop alone.
type Options = reconcile.Options[vip.FrontendKey, vip.Frontend]

type reconciler = reconcile.Reconciler[vip.FrontendKey, vip.Frontend]

// Loop is the loop of the dataplane that serves. Create one with New and start it with Run. All methods may be called
// concurrently.
type Loop struct {
	o     Options
	first *reconciler

	mu     sync.Mutex
	now    *reconciler // runs, or is about to
	before *reconciler // the last one that had every frontend
	cancel func()      // ends now; nil before it runs
}

// New returns a Loop that does nothing until Run.
func New(o Options) *Loop {
	o.Tried = &table.Reached{}
	l := &Loop{o: o, first: reconcile.New(o)}
	l.now, l.before = l.first, l.first
	return l
}

// Run runs one loop after the other until ctx ends, and returns its error.
func (l *Loop) Run(ctx context.Context) error {
	for {
		running, stop := context.WithCancel(ctx)
		l.mu.Lock()
		now := l.now
		l.cancel = stop
		l.mu.Unlock()
		if now != l.first {
			l.forgetWarnings()
		}
		err := now.Run(running)
		replaced := running.Err() != nil
		stop()
		if ctx.Err() != nil || !replaced {
			return err
		}
	}
}

// forgetWarnings removes what the loop before has found of other programs. The next one counts anew.
func (l *Loop) forgetWarnings() {
	for _, row := range l.o.Applied.All() {
		if row.Warning != nil {
			row.Warning = nil
			l.o.Applied.Set(row)
		}
	}
}

// patience is how long the next dataplane may be unreachable.
const patience = 10 * time.Second

// errUnsynced is the error of To before the first dataplane has everything.
var errUnsynced = errors.New("the dataplane that serves has not got every frontend yet")

// To makes another dataplane serve, and returns once it has tried every frontend. After an error, the one before serves, and
// p has some of the frontends, or none. Together is that of the new loop.
func (l *Loop) To(ctx context.Context, p reconcile.Plane, together func(a, b vip.FrontendKey) int) error {
	if !table.IsClosed(l.Synced()) {
		return errUnsynced
	}
	serves := l.current().Target
	next := l.replace(p, together)
	err := await(ctx, next)
	if err != nil {
		l.replace(serves, nil)
	}
	return err
}

// replace ends the loop that runs, and lets one for another dataplane run.
func (l *Loop) replace(p reconcile.Target[vip.FrontendKey, vip.Frontend], together func(a, b vip.FrontendKey) int) *reconciler {
	o := l.o
	o.Target, o.Together = p, together
	next := reconcile.New(o)
	l.mu.Lock()
	defer l.mu.Unlock()
	if table.IsClosed(l.now.Synced()) {
		l.before = l.now
	}
	l.now = next
	l.cancel()
	return next
}

// await waits until a loop has tried every frontend, and its dataplane can be programmed.
func await(ctx context.Context, next *reconciler) error {
	tick := time.NewTicker(patience / 1000)
	defer tick.Stop()
	for reachable := time.Now(); ; {
		s := next.Stats()
		switch {
		case s.TargetError == "" && s.Synced:
			return nil
		case s.TargetError == "":
			reachable = time.Now()
		case time.Since(reachable) > patience:
			return errors.New(s.TargetError)
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-tick.C:
		}
	}
}

func (l *Loop) current() *reconciler {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.now
}

// Synced is closed after the first full pass of the first loop.
func (l *Loop) Synced() <-chan struct{} { return l.first.Synced() }

// Stats returns the current values. During To, they are those of the loop before, with the time of the last round of either.
func (l *Loop) Stats() reconcile.Stats {
	l.mu.Lock()
	now, before := l.now, l.before
	l.mu.Unlock()
	s := now.Stats()
	if s.Synced || now == l.first {
		return s
	}
	shown := before.Stats()
	if shown.LastRound.Before(s.LastRound) {
		shown.LastRound = s.LastRound
	}
	return shown
}

// WaitTried waits until all changes of the frontends up to a revision have been tried. It returns the context's error.
func (l *Loop) WaitTried(ctx context.Context, rev uint64) error { return l.o.Tried.Wait(ctx, rev) }

// Diff is Reconciler.Diff of the loop that runs.
func (l *Loop) Diff(ctx context.Context) ([]Difference, error) { return l.current().Diff(ctx) }

// Repair is Reconciler.Repair of the loop that runs.
func (l *Loop) Repair(ctx context.Context) ([]Difference, error) { return l.current().Repair(ctx) }

// Difference is one frontend that differs from the desired state.
type Difference = reconcile.Difference[vip.FrontendKey, vip.Frontend]
