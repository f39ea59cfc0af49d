package announcer

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"sync"
	"time"

	"github.com/ironvip/ironvip/announce"
	"github.com/ironvip/ironvip/announce/routes"
	"github.com/ironvip/ironvip/internal/table"
	"github.com/ironvip/ironvip/plane/reconcile"
)

// routesOutput keeps a route for each VIP, which a router on this host exports.
type routesOutput struct {
	routeSet[netip.Prefix]
	a       *Announcer
	speaker *routes.Speaker // nil: off
	stop    context.CancelFunc
	running sync.WaitGroup

	clean bool // no routes are left, also none of an earlier run
	// removeRoutes removes what a speaker has left. Tests replace it.
	removeRoutes func(context.Context) error
}

func newRoutes(a *Announcer) *routesOutput {
	return &routesOutput{routeSet: newRouteSet(announce.NewPrefixes()), a: a, removeRoutes: routes.Remove}
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
	o.running.Go(func() { o.follow(ctx, speaker) })
	return nil
}

func (o *routesOutput) set(_, now *announce.Announcement, _ bool) {
	route := netip.PrefixFrom(now.Addr, now.Addr.BitLen())
	if now.Here {
		o.Set(route)
	} else {
		o.Delete(route)
	}
}

// placeOfRoutes is where routes are announced.
var placeOfRoutes = fmt.Sprintf("table %d", routes.DefaultTable)

// follow reports the results of routes until the context ends.
func (o *routesOutput) follow(ctx context.Context, speaker *routes.Speaker) {
	feed := speaker.Results().Watch()
	defer feed.Close()
	for {
		batch, more := feed.TryNext()
		if len(batch) > 0 {
			o.a.mail.post(func() {
				if o.speaker == speaker {
					o.report(batch)
				}
			})
			continue
		}
		select {
		case <-ctx.Done():
			return
		case <-more:
		}
	}
}

// report shows the results of changed routes.
func (o *routesOutput) report(batch []table.Change[reconcile.Applied[netip.Prefix]]) {
	for i := range batch {
		addr, problem := batch[i].Value.Tried.Value.Addr(), batch[i].Value.Problem
		place := announce.Place{Addr: addr, At: placeOfRoutes}
		if batch[i].Deleted {
			o.a.tables.Announced.Delete(place)
			continue
		}
		r := announce.Announced{Place: place, State: announce.StateAnnounced, Since: time.Now()}
		if problem != nil {
			r.State, r.Reason = announce.StateWaiting, problem.Message
		}
		if former, _, _ := o.a.tables.Announced.Get(place); former.State == r.State {
			r.Since = former.Since
		}
		o.a.tables.Announced.Set(r)
	}
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
		for place := range o.a.tables.Announced.All() {
			if place.At == placeOfRoutes {
				o.a.tables.Announced.Delete(place)
			}
		}
	}
	if leave {
		o.remove()
	}
}
