package pipeline

import (
	"context"
	"net/netip"
	"testing"
	"testing/synctest"
	"time"

	"github.com/ironvip/ironvip/internal/table"
	"github.com/ironvip/ironvip/plane/reconcile"
	"github.com/ironvip/ironvip/plane/steer"
	"github.com/ironvip/ironvip/test/bubble"
	"github.com/ironvip/ironvip/test/expect"
	"github.com/ironvip/ironvip/test/reconciletest"
	"github.com/ironvip/ironvip/vip"
)

// slowPlane applies each batch when the test allows it.
type slowPlane struct {
	*reconciletest.Plane
	let chan struct{}
}

func (p *slowPlane) Apply(ctx context.Context, batch []reconcile.Update[vip.FrontendKey, vip.Frontend]) error {
	select {
	case <-p.let:
	case <-ctx.Done():
		return ctx.Err()
	}
	return p.Recorder.Apply(ctx, batch)
}

// A service is withdrawn once the source has removed it and the dataplane has removed it too, and
// not while its state is still unknown.
func TestWithdrawn(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		p := &Pipeline{Tables: NewTables(table.NewClock(time.Now()))}
		plane := &slowPlane{reconciletest.NewPlane(), make(chan struct{})}
		loop := steer.New(steer.Options{Desired: p.Frontends, Target: plane, Applied: p.Applied, Resync: -1})
		p.Loop = loop // the test is in the place of the other stages
		key := vip.ServiceKey{Namespace: "default", Name: "web"}
		ask := func() chan error {
			done := make(chan error, 1)
			go func() { done <- p.WaitWithdrawn(t.Context(), "kubernetes", key) }()
			return done
		}
		still := func(done chan error, when string) {
			t.Helper()
			time.Sleep(time.Minute)
			synctest.Wait()
			select {
			case err := <-done:
				t.Fatalf("%s: withdrawn (%v)", when, err)
			default:
			}
		}

		early := ask()
		still(early, "before the dataplane is known")
		frontend := vip.FrontendKey{Addr: netip.MustParseAddr("192.0.2.1"), Port: 80, Protocol: vip.TCP}
		row := p.Frontends.Put(vip.Frontend{Key: frontend, Service: key})
		p.Services.Set(vip.Service{Key: key, Source: "kubernetes"})
		p.Compiled.Set(Compiled{Service: &vip.Service{Key: key}, Frontends: []*FrontendRow{row}})

		ctx, cancel := context.WithCancel(t.Context())
		ended := make(chan struct{})
		go func() { defer close(ended); loop.Run(ctx) }()
		plane.let <- struct{}{}
		still(early, "while it is there")
		p.Services.Delete(key)
		still(early, "while it is compiled")
		p.Compiled.Delete(key)
		p.Frontends.Delete(frontend)
		late := ask() // finds nothing in any table
		still(early, "while the dataplane has it")
		still(late, "while the dataplane has it, and no table")
		plane.let <- struct{}{}
		for _, done := range []chan error{early, late} {
			if err := <-done; err != nil || len(plane.Have()) > 0 {
				t.Errorf("withdrawn: %v, the dataplane has %v", err, plane.Have())
			}
		}

		p.Services.Set(vip.Service{Key: key, Source: "another"})
		expect.Succeed(t, <-ask(), "with another source's service of that name")
		p.Services.Set(vip.Service{Key: key, Source: "kubernetes"})
		last := ask()
		still(last, "back again")
		cancel()
		<-ended
	})
}
