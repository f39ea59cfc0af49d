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

	vips   map[netip.Addr]struct{}
	add    []netip.Prefix
	remove []netip.Prefix
	whole  bool
}

func newRoutes(a *Announcer) *routesOutput {
	return &routesOutput{a: a, vips: map[netip.Addr]struct{}{}}
}

// clearTime bounds the removal of all routes.
const clearTime = 5 * time.Second

func (o *routesOutput) configure(s *announce.Settings) error {
	if !s.Uses(announce.Routes) {
		o.end(true)
		return nil
	}
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
	for addr := range o.vips {
		o.add = append(o.add, hostRoute(addr))
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

func (o *routesOutput) set(addr netip.Addr, here, _ bool) {
	if here {
		o.vips[addr] = struct{}{}
		o.add = append(o.add, hostRoute(addr))
	} else {
		delete(o.vips, addr)
		o.remove = append(o.remove, hostRoute(addr))
	}
}

func (o *routesOutput) act(bool) {
	if o.speaker == nil {
		o.add, o.remove = o.add[:0], o.remove[:0]
		return
	}
	if len(o.remove) > 0 {
		o.speaker.Withdraw(o.remove...)
	}
	for _, p := range o.add {
		if _, is := o.vips[p.Addr()]; is {
			o.speaker.Announce(p)
		}
	}
	o.add, o.remove = o.add[:0], o.remove[:0]
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
