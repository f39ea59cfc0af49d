package announcer

import (
	"context"
	"errors"
	"net/netip"
	"sync"
	"time"

	"github.com/ironvip/ironvip/announce"
	"github.com/ironvip/ironvip/announce/routes"
)

// routesOutput keeps a route for each VIP, which a router on this host exports.
type routesOutput struct {
	a       *Announcer
	speaker *routes.Speaker // nil: off
	stop    context.CancelFunc
	running sync.WaitGroup

	changes routeChanges
	whole   bool
	clean   bool // no routes of an earlier run are left
	// removeRoutes removes those of an earlier run. Tests replace it.
	removeRoutes func(context.Context) error
}

func newRoutes(a *Announcer) *routesOutput {
	return &routesOutput{a: a, removeRoutes: func(ctx context.Context) error {
		found, err := routes.Find(ctx)
		if err == nil && len(found) > 0 {
			err = routes.Remove(ctx, found)
		}
		return err
	}}
}

// clearTime bounds the removal of all routes.
const clearTime = 5 * time.Second

func (o *routesOutput) configure(s *announce.Settings) error {
	if !s.Uses(announce.Routes) {
		o.end(true)
		o.remove()
		return nil
	}
	o.clean = true // the speaker adopts them
	if o.speaker != nil {
		return nil
	}
	speaker, err := routes.New(routes.Config{Log: o.a.log})
	if err != nil {
		return err
	}
	ctx, stop := context.WithCancel(context.Background())
	o.speaker, o.stop = speaker, stop
	o.running.Go(func() { _ = speaker.Run(ctx) }) // it ends with the context only
	o.changes.drop()
	for addr := range o.a.vips(announce.Routes) {
		o.changes.set(addr, true)
	}
	o.act(false)
	if o.whole {
		speaker.Ready()
	}
	return nil
}

func (o *routesOutput) end(clearAll bool) {
	if o.speaker == nil {
		return
	}
	if clearAll {
		ctx, cancel := context.WithTimeout(context.Background(), clearTime)
		defer cancel()
		if err := o.speaker.Clear(ctx); err != nil {
			o.a.log.Error("remove the routes", "err", err)
		}
	}
	o.stop()
	o.running.Wait()
	o.speaker = nil
}

// remove removes the routes of an earlier run: a router would go on to export them.
func (o *routesOutput) remove() {
	if o.clean {
		return
	}
	ctx, cancel := context.WithTimeout(context.Background(), clearTime)
	defer cancel()
	err := o.removeRoutes(ctx)
	o.clean = err == nil
	o.a.problems.set("routes of an earlier run", err)
}

func (o *routesOutput) set(addr netip.Addr, here, _ bool) { o.changes.set(addr, here) }

func (o *routesOutput) act(bool) {
	if o.speaker == nil {
		o.changes.drop()
		return
	}
	o.changes.flush(o.speaker, func(addr netip.Addr) bool { return o.a.carries(addr, announce.Routes) })
	var problem error
	if why := o.speaker.Stats().TargetError; why != "" {
		problem = errors.New(why)
	}
	o.a.problems.set("routes table", problem)
}

func (o *routesOutput) complete() {
	o.whole = true
	o.act(false)
	if o.speaker != nil {
		o.speaker.Ready()
	}
}

// drain does nothing: a route has no attribute that asks a router to avoid it.
func (o *routesOutput) drain(bool) {}

func (o *routesOutput) close(leave bool) { o.end(leave) }
