//go:build linux

package planetest

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/ironvip/ironvip/internal/table"
	"github.com/ironvip/ironvip/plane/reconcile"
	"github.com/ironvip/ironvip/test/wait"
	"github.com/ironvip/ironvip/vip"
)

// Loop is a Reconciler on a plane, as in the agent.
type Loop struct {
	*reconcile.Reconciler[vip.FrontendKey, vip.Frontend]
	Want map[vip.FrontendKey]vip.Frontend

	t       testing.TB
	desired *table.Table[vip.FrontendKey, vip.Frontend]
	applied *table.Table[vip.FrontendKey, reconcile.AppliedFrontend]
	stop    func()
}

// NewLoop starts a Reconciler that wants these frontends, with quick retries. It ends with the test.
func NewLoop(t testing.TB, p reconcile.Plane, resync time.Duration, want ...*vip.Frontend) *Loop {
	clock := &table.Clock{}
	l := &Loop{t: t, Want: map[vip.FrontendKey]vip.Frontend{}, desired: table.New(clock, vip.KeyOfFrontend, nil), applied: table.New(clock, reconcile.KeyOfApplied, nil)}
	l.Set(want...)
	l.Reconciler = reconcile.New(reconcile.Options[vip.FrontendKey, vip.Frontend]{
		Desired: l.desired, Target: p, Applied: l.applied, Resync: resync, MinBackoff: time.Millisecond, MaxBackoff: 50 * time.Millisecond,
	})
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan struct{})
	go func() { defer close(done); l.Run(ctx) }()
	l.stop = func() { cancel(); <-done }
	t.Cleanup(l.stop)
	return l
}

// Stop ends the Reconciler.
func (l *Loop) Stop() { l.stop() }

// Set wants frontends.
func (l *Loop) Set(all ...*vip.Frontend) {
	for _, f := range all {
		l.Want[f.Key] = *f
		l.desired.Set(*f)
	}
}

// Delete no longer wants a frontend.
func (l *Loop) Delete(k vip.FrontendKey) {
	delete(l.Want, k)
	l.desired.Delete(k)
}

// All returns the wanted frontends.
func (l *Loop) All() []vip.Frontend { return slices.Collect(maps.Values(l.Want)) }

// Wait waits until ok returns "".
func (l *Loop) Wait(ok func() string) {
	l.t.Helper()
	wait.For(l.t, "the dataplane", func() error {
		if why := ok(); why != "" {
			return errors.New(why)
		}
		return nil
	})
}

// Unapplied returns what is not applied yet, or "" if everything is applied and stays so.
func (l *Loop) Unapplied() string {
	s := l.Stats()
	for key := range l.Want {
		_, rev, _ := l.desired.Get(key)
		if a, _, ok := l.applied.Get(key); !ok || a.Tried.Rev < rev || a.Problem != nil {
			return fmt.Sprintf("%s: applied is %+v, the dataplane %q", key, a.Problem, s.TargetError)
		}
	}
	if s.Failing > 0 || s.TargetError != "" {
		return fmt.Sprintf("%+v", s)
	}
	diff, err := l.Repair(l.t.Context())
	if err != nil || len(diff) > 0 {
		return fmt.Sprintf("%v %+v", err, diff)
	}
	return ""
}

// WaitReported waits until a frontend's status, or the dataplane's, contains a text.
func (l *Loop) WaitReported(key vip.FrontendKey, text string) {
	l.t.Helper()
	l.Wait(func() string {
		s := l.Stats()
		a, _, _ := l.applied.Get(key)
		said := s.TargetError
		if a.Problem != nil {
			said += " " + a.Problem.Message + " " + a.Problem.Hint
		}
		if strings.Contains(said, text) {
			return ""
		}
		return fmt.Sprintf("%s: %q doesn't say %q", key, said, text)
	})
}
