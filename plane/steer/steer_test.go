package steer_test

import (
	"errors"
	"fmt"
	"net/netip"
	"testing"
	"testing/synctest"
	"time"

	"github.com/ironvip/ironvip/internal/table"
	"github.com/ironvip/ironvip/plane/reconcile"
	"github.com/ironvip/ironvip/plane/steer"
	"github.com/ironvip/ironvip/test/bubble"
	"github.com/ironvip/ironvip/test/expect"
	"github.com/ironvip/ironvip/test/must"
	"github.com/ironvip/ironvip/test/reconciletest"
	"github.com/ironvip/ironvip/test/scope"
	"github.com/ironvip/ironvip/vip"
)

// bench is a Loop with two dataplanes.
type bench struct {
	*testing.T
	*steer.Loop
	desired *table.Table[vip.FrontendKey, vip.Frontend]
	applied *table.Table[vip.FrontendKey, reconcile.AppliedFrontend]
	a, b    *reconciletest.Plane
}

// in runs f with a Loop whose dataplane a has two frontends.
func in(t *testing.T, f func(*bench)) {
	t.Helper()
	bubble.Test(t, func(t *testing.T) {
		clock := &table.Clock{}
		x := &bench{T: t, desired: table.New(clock, vip.KeyOfFrontend, nil), applied: table.New(clock, reconcile.KeyOfApplied, nil), a: reconciletest.NewPlane(), b: reconciletest.NewPlane()}
		x.desired.Set(frontend(1))
		x.desired.Set(frontend(2))
		x.Loop = steer.New(steer.Options{Desired: x.desired, Applied: x.applied, Target: x.a, Resync: -1})
		defer scope.Go(t, x.Loop.Run)()
		<-x.Synced()
		f(x)
	})
}

func frontend(n byte) vip.Frontend {
	return vip.Frontend{Key: vip.FrontendKey{Addr: netip.AddrFrom4([4]byte{10, 96, 0, n}), Port: 80, Protocol: vip.TCP}, Kind: vip.OnVIP}
}

// has fails the test unless the dataplanes have these numbers of frontends.
func (x *bench) has(when string, a, b int) {
	x.Helper()
	synctest.Wait()
	expect.Equal(x, fmt.Sprint(x.a.Len(), x.b.Len()), fmt.Sprint(a, b), "frontends of both dataplanes %s", when)
}

// The next dataplane has everything when To returns, and gets all later changes. The one before keeps what it had.
func TestTo(t *testing.T) {
	in(t, func(x *bench) {
		must.Succeed(t, x.To(x.T.Context(), x.b, nil))
		x.has("after the switch", 2, 2)
		x.desired.Set(frontend(3))
		must.Succeed(t, x.WaitTried(x.T.Context(), x.desired.Revision()))
		x.has("after a change", 2, 3)
		expect.Equal(t, x.Stats().Wanted, 3)
		must.Succeed(t, x.To(x.T.Context(), x.a, nil))
		x.has("after the switch back", 3, 3)
		_, writes, _ := x.a.Counts()
		expect.Equal(t, writes, 3, "writes of the first dataplane, which has had two of the frontends")
	})
}

// A dataplane that can't be programmed, or read, for some time does not serve. Until then, and afterwards, the state is that
// of the one before, and that gets the changes that came meanwhile.
func TestToAnUnreachableDataplane(t *testing.T) {
	in(t, func(x *bench) {
		down := errors.New("it doesn't answer")
		x.b.FailAll(down)
		begun := time.Now()
		switched := make(chan error, 1)
		go func() { switched <- x.To(x.T.Context(), x.b, nil) }()
		time.Sleep(time.Second)
		x.desired.Set(frontend(3))
		if s := x.Stats(); !s.Synced || s.TargetError != "" || s.Wanted != 3 {
			t.Errorf("while the next one doesn't answer: %+v", s)
		}
		expect.Contains(t, (<-switched).Error(), down.Error())
		expect.AtMost(t, time.Since(begun), 15*time.Second, "the switch has failed after")
		must.Succeed(t, x.WaitTried(x.T.Context(), x.desired.Revision()))
		x.has("after the failure", 3, 0)
		expect.Equal(t, x.Stats().TargetError, "")
	})
}

// A frontend that the next dataplane refuses does not hold the others up.
func TestRefusedByTheNextDataplane(t *testing.T) {
	in(t, func(x *bench) {
		f := frontend(1)
		x.b.FailKey(f.Key, vip.Problem{Code: vip.CodeUnsupported, Message: "no"})
		must.Succeed(t, x.To(x.T.Context(), x.b, nil))
		x.has("after the switch", 2, 1)
		row, _, _ := x.applied.Get(f.Key)
		if row.Problem == nil || row.Problem.Message != "no" {
			t.Errorf("the refused frontend is shown as %+v", row)
		}
	})
}

// The findings about other programs are those of the dataplane that serves.
func TestWarningsOfTheDataplaneBefore(t *testing.T) {
	in(t, func(x *bench) {
		row, _, _ := x.applied.Get(frontend(1).Key)
		row.Warning = &vip.Problem{Code: vip.CodeContested}
		x.applied.Set(row)
		must.Succeed(t, x.To(x.T.Context(), x.b, nil))
		if row, _, _ := x.applied.Get(frontend(1).Key); row.Warning != nil || row.Problem != nil {
			t.Errorf("after the switch: %+v", row)
		}
	})
}
