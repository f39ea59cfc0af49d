package announcer

import (
	"context"
	"errors"
	"sync"
	"time"

	"github.com/ironvip/ironvip/announce"
	"github.com/ironvip/ironvip/announce/routes"
)

// routesOutput keeps a route for each VIP, which a router on this host exports.
type routesOutput struct {
	routeSet
	a       *Announcer
	speaker *routes.Speaker // nil: off
	stop    context.CancelFunc
	running sync.WaitGroup

	clean bool // no routes are left, also none of an earlier run
	// removeRoutes removes what a speaker has left. Tests replace it.
	removeRoutes func(context.Context) error
}

func newRoutes(a *Announcer) *routesOutput {
	return &routesOutput{routeSet: newRouteSet(), a: a, removeRoutes: routes.Remove}
}

// clearTime bounds the removal of all routes.
const clearTime = 5 * time.Second

func (o *routesOutput) configure(s *announce.Settings) error {
	if !s.Uses(announce.Routes) {
		o.close(true)
		return nil
	}
	if o.speaker != nil {
		return nil
	}
	ctx, stop := context.WithCancel(context.Background())
	speaker := routes.New(o.routeSet, o.a.log)
	o.speaker, o.stop, o.clean = speaker, stop, false
	o.running.Go(func() { _ = speaker.Run(ctx) }) // it ends with the context only
	return nil
}

// remove removes all routes: a router would go on to export them.
func (o *routesOutput) remove() {
	if o.clean {
		return
	}
	ctx, cancel := context.WithTimeout(context.Background(), clearTime)
	defer cancel()
	err := o.removeRoutes(ctx)
	o.clean = err == nil
	o.a.problems.set("removal of routes", err)
}

func (o *routesOutput) act(bool) {
	if o.speaker == nil {
		return
	}
	var problem error
	if why := o.speaker.Stats().TargetError; why != "" {
		problem = errors.New(why)
	}
	o.a.problems.set("routes table", problem)
}

// drain does nothing: a route has no attribute that asks a router to avoid it.
func (o *routesOutput) drain(bool) {}

func (o *routesOutput) close(leave bool) {
	if o.speaker != nil {
		o.stop()
		o.running.Wait()
		o.speaker = nil
	}
	if leave {
		o.remove()
	}
}
