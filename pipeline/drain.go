package pipeline

import (
	"context"
	"fmt"
	"log/slog"
	"net/netip"
	"slices"
	"strings"
	"time"

	"github.com/ironvip/ironvip/internal/delayqueue"
	"github.com/ironvip/ironvip/internal/event"
	"github.com/ironvip/ironvip/internal/keep"
	"github.com/ironvip/ironvip/internal/parallel"
	"github.com/ironvip/ironvip/internal/table"
	"github.com/ironvip/ironvip/pipeline/compile"
	"github.com/ironvip/ironvip/plane/reconcile"
	"github.com/ironvip/ironvip/vip"
)

// idlePoll is the interval between queries to the dataplane for leaving endpoints without
// connections.
const idlePoll = time.Second

// drains adds, drains and deletes rows of the frontends table for Compile.
//
// An endpoint that compile no longer returns stays with weight 0 until it has no connections, or
// until its deadline, which is set once. An endpoint that returns gets its weight back. A whole
// frontend leaves when all of its endpoints do. UDP has no connections to wait for and leaves at
// once.
//
// If another service takes over a leaving frontend, the frontend stays, and its endpoints continue
// to leave beside the new ones. A leaving range of ports that overlaps a new frontend ends at once,
// because it would reject the new frontend's clients. Leaving endpoints are kept in a DrainStore,
// so that a restart neither shortens nor restarts a drain. The rows and the store have deadlines by
// the wall clock. Within a run, the monotonic clock decides, which nobody sets.
//
// Compile's goroutine owns it.
type drains struct {
	o      *Options
	owners *portOwnership     // which frontends services have
	wall   func() vip.Instant // the time by the host's clock; tests set it

	connections reconcile.Connections // nil: only the deadline ends a drain

	leaving  delayqueue.Queue[vip.FrontendKey] // frontends with leaving endpoints, by their first deadline
	until    map[vip.FrontendKey]deadlines     // of the endpoints of these, and of those in restored
	poll     time.Time                         // when to query connections next; zero: nothing to query
	timer    *time.Timer                       // fires at the first deadline or poll
	restored map[vip.FrontendKey]vip.Frontend  // from before the restart, until their key is compiled

	ranged ranged // frontends of ranges of ports

	asked   chan []question
	idle    chan []question                             // the questions to which the answer was: none
	keep    *table.Table[vip.FrontendKey, vip.Frontend] // the wanted content of the store
	kept    *table.Reached                              // the revision of keep up to which it was written or tried
	renewed func(vip.ServiceKey)                        // called for services to compile, see renew
}

// deadlines are those of the leaving endpoints of a frontend.
type deadlines map[netip.AddrPort]time.Time

func newDrains(o *Options, owners *portOwnership, renewed func(vip.ServiceKey)) drains {
	d := drains{
		o:       o,
		owners:  owners,
		wall:    func() vip.Instant { return vip.InstantOf(time.Now()) },
		until:   make(map[vip.FrontendKey]deadlines),
		timer:   time.NewTimer(time.Hour),
		ranged:  make(ranged),
		asked:   make(chan []question, 1),
		idle:    make(chan []question),
		keep:    table.New(&table.Clock{}, vip.KeyOfFrontend, compile.SameFrontend),
		kept:    &table.Reached{},
		renewed: renewed,
	}
	if d.connections = o.Connections; d.connections == nil {
		d.connections = o.Plane
	}
	d.timer.Stop()
	return d
}

// start reads the store and starts the goroutines that write it and that query the dataplane. The
// returned function stops them. The store has everything when helpers is done.
func (d *drains) start(ctx context.Context, helpers parallel.Group) (stop func()) {
	background, end := context.WithCancel(context.WithoutCancel(ctx))
	if d.o.Drains != nil {
		complete := make(chan struct{})
		close(complete)
		k := keep.Keeper[vip.FrontendKey, vip.Frontend, vip.Frontend]{
			Table: d.keep, Store: d.o.Drains, Log: d.o.Log, What: "deadlines of drains", Tried: d.kept, Names: d.restore(), Complete: []<-chan struct{}{complete},
			Name: vip.FrontendKey.String, Row: func(f *vip.Frontend) vip.Frontend { return *f },
		}
		helpers.Run(background, k.Run)
	}
	if d.connections != nil {
		helpers.Run(background, func(ctx context.Context) { askConnections(ctx, d.connections, d.asked, d.idle, d.o.Log) })
	}
	return func() {
		d.timer.Stop()
		end()
	}
}

// DrainStore keeps the drains under way across a restart: frontends with their leaving endpoints only.
type DrainStore = keep.Store[vip.Frontend]

// restore reads what was leaving when an earlier process ended into d.restored, and returns the names of the store.
// In the table it would, at this time, remove the frontends' remaining endpoints from the dataplane.
func (d *drains) restore() map[string]bool {
	stored, err := d.o.Drains.All()
	if err != nil {
		d.o.Log.Error("read the drains under way before the restart; what is lost leaves at once", "err", err)
	}
	d.restored = make(map[vip.FrontendKey]vip.Frontend)
	names := make(map[string]bool, len(stored))
	now := d.wall()
	for name, f := range stored {
		names[name] = true
		if name != f.Key.String() {
			d.o.Log.Warn("dropping a stored drain that is not under its own name", "name", name, "frontend", f.Key)
			continue
		}
		kept := f
		if f.Backends = unexpired(f.Backends, now); len(f.Backends) > 0 && f.Key.Addr.IsValid() {
			d.keep.Set(kept)
			d.restored[f.Key] = f
			d.until[f.Key], _ = d.deadlinesOf(&f)
		}
	}
	return names
}

// unexpired returns the endpoints with time left. It limits their deadlines, so that a clock set
// back while no agent ran does not extend a drain beyond the maximum.
func unexpired(stored []vip.Endpoint, now vip.Instant) []vip.Endpoint {
	var out []vip.Endpoint
	longest := now.Add(vip.MaxDrainTimeout)
	for _, e := range stored {
		if !e.Leaving.After(now) {
			continue
		}
		if e.Leaving.After(longest) {
			e.Leaving = longest
		}
		e.Weight = 0
		out = append(out, e)
	}
	slices.SortFunc(out, vip.CompareEndpoints)
	return out
}

// settle puts what was leaving before the restart and belongs to no compiled frontend into the
// table, as frontends that take no new connections. Call it once, when everything has been compiled.
func (d *drains) settle() {
	for key, f := range d.restored {
		everyone := key
		everyone.Audience = vip.Everyone
		switch {
		case d.owners.held(key):
		case d.owners.held(everyone), key.Ranged() && d.owners.met(key):
			d.forget(key) // it would conflict with a live frontend
		default:
			d.set(f)
		}
	}
	d.restored = nil
}

// publish puts a frontend into the table together with its leaving endpoints, and returns the row.
func (d *drains) publish(f vip.Frontend, now vip.Instant) *FrontendRow {
	have, _, there := d.o.Frontends.Get(f.Key)
	if !there {
		if have, there = d.restored[f.Key]; there {
			delete(d.restored, f.Key)
		}
	}
	if there {
		f.Backends = withLeaving(&f, have.Backends, now)
	}
	f.Backends = withoutReset(f.Backends)
	for _, old := range d.ranged.overlapping(f.Key) {
		d.end(old, fmt.Sprintf("its ports are now part of %s", f.Key))
	}
	return d.set(f)
}

// leave begins the drain of a frontend that k no longer wants, unless another service has taken it
// over.
func (d *drains) leave(key vip.FrontendKey, k vip.ServiceKey, now vip.Instant) {
	f, _, there := d.o.Frontends.Get(key)
	if !there || f.Service != k {
		return
	}
	former := f.Backends
	f.Backends = nil
	if f.Backends = withLeaving(&f, former, now); len(f.Backends) == 0 {
		d.drop(key)
		return
	}
	d.set(f)
}

// withLeaving returns f's backends and, with weight 0, those of before that f no longer has. Both
// lists and the result are sorted.
func withLeaving(f *vip.Frontend, before []vip.Endpoint, now vip.Instant) []vip.Endpoint {
	if f.Key.Protocol == vip.UDP || len(before) == 0 {
		return f.Backends
	}
	var gone []vip.Endpoint
	for i, j := 0, 0; i < len(before); i++ {
		e := before[i]
		for j < len(f.Backends) && vip.CompareEndpoints(f.Backends[j], e) < 0 {
			j++
		}
		if j < len(f.Backends) && f.Backends[j].Addr == e.Addr {
			continue
		}
		e.Weight = 0
		if e.Leaving.IsZero() {
			if f.DrainTimeout <= 0 {
				continue
			}
			e.Leaving = now.Add(f.DrainTimeout)
		}
		gone = append(gone, e)
	}
	if len(gone) == 0 {
		return f.Backends
	}
	all := slices.Concat(f.Backends, gone)
	slices.SortFunc(all, vip.CompareEndpoints)
	return all
}

// withoutReset returns the endpoints without those to reset. They were listed until now, so they
// don't drain.
func withoutReset(all []vip.Endpoint) []vip.Endpoint {
	resets := func(e vip.Endpoint) bool { return e.Reset }
	if !slices.ContainsFunc(all, resets) {
		return all
	}
	return slices.DeleteFunc(slices.Clone(all), resets)
}

// set writes one row and schedules the first deadline of its leaving endpoints.
func (d *drains) set(f vip.Frontend) *FrontendRow {
	row := d.o.Frontends.Put(f)
	d.ranged.add(f.Key)
	until, first := d.deadlinesOf(&f)
	if len(until) == 0 {
		d.forget(f.Key)
		return row
	}
	d.until[f.Key] = until
	d.leaving.Set(f.Key, first)
	if d.poll.IsZero() && d.connections != nil {
		d.poll = time.Now().Add(idlePoll)
	}
	if d.o.Drains != nil {
		f.Backends = slices.DeleteFunc(slices.Clone(f.Backends), func(e vip.Endpoint) bool { return !e.IsLeaving() })
		d.keep.Set(f)
	}
	return row
}

// renew calls set for a frontend that may be live while its service isn't being compiled, and
// requests that compilation. Otherwise the compiled row would keep the former row of the frontend
// in memory.
func (d *drains) renew(f vip.Frontend) {
	d.set(f)
	d.renewed(f.Service)
}

// cut ends a frontend at once, if it exists.
func (d *drains) cut(key vip.FrontendKey) {
	if _, _, there := d.o.Frontends.Get(key); there {
		d.end(key, "its clients have the frontend of everyone")
	}
}

// cutAt ends the frontends that drain at an address, which would refuse clients of a whole VIP. It costs O(draining frontends),
// for a VIP that becomes a whole one only.
func (d *drains) cutAt(addr netip.Addr) {
	for _, key := range slices.Collect(d.leaving.All()) {
		if key.Addr == addr && !d.owners.held(key) {
			d.end(key, "the VIP is for programs of this host")
		}
	}
}

// end drops a frontend with all of its connections.
func (d *drains) end(key vip.FrontendKey, why string) {
	f, _, _ := d.o.Frontends.Get(key)
	d.drop(key)
	d.o.Events.Add(event.Event{Kind: "frontend_ended", Service: f.Service.String(), Object: key.String(), Message: why})
	d.o.Log.Debug("frontend ended without a drain", "frontend", key, "why", why)
}

func (d *drains) drop(key vip.FrontendKey) {
	d.o.Frontends.Delete(key)
	d.ranged.remove(key)
	d.forget(key)
}

// forget records that nothing is leaving the frontend.
func (d *drains) forget(key vip.FrontendKey) {
	d.leaving.Drop(key)
	delete(d.until, key)
	d.keep.Delete(key)
}

// deadlinesOf returns the deadlines of f's leaving endpoints, and the earliest one. An endpoint that
// was leaving before keeps its deadline.
func (d *drains) deadlinesOf(f *vip.Frontend) (all deadlines, first time.Time) {
	now, wall, before := time.Now(), d.wall(), d.until[f.Key]
	for _, e := range f.Backends {
		if !e.IsLeaving() {
			continue
		}
		at, leaves := before[e.Addr]
		if !leaves {
			at = now.Add(e.Leaving.Sub(wall))
		}
		if all == nil {
			all, first = deadlines{}, at
		}
		if all[e.Addr] = at; at.Before(first) {
			first = at
		}
	}
	return all, first
}

// advance does what is due and sets the timer for what is next. A frontend that no service has is
// deleted with its last endpoint. The cost is O(1) when nothing is due, O(log leaving frontends)
// for each frontend at a deadline, and O(leaving endpoints) for each poll.
func (d *drains) advance() {
	now := time.Now()
	next, leaving := d.expire(now)
	if !leaving {
		d.poll = time.Time{}
		d.timer.Stop()
		return
	}
	if !d.poll.IsZero() && !now.Before(d.poll) {
		d.poll = now.Add(idlePoll)
		select {
		case d.asked <- d.questions():
		default: // the dataplane has not answered the last queries yet
		}
	}
	wait := next.Sub(now)
	if !d.poll.IsZero() {
		wait = min(wait, d.poll.Sub(now))
	}
	d.timer.Reset(wait)
}

// expire removes the endpoints with a passed deadline. It returns the next deadline, and whether
// anything is still leaving.
func (d *drains) expire(now time.Time) (next time.Time, leaving bool) {
	for {
		key, at, leaving := d.leaving.First()
		if !leaving || at.After(now) {
			return at, leaving
		}
		// This removes at least the endpoint with that deadline, so that the frontend has a later
		// deadline or none.
		d.takeOut(key, "drained until the deadline", func(e vip.Endpoint) bool { return !d.until[key][e.Addr].After(now) })
	}
}

// takeOut removes the leaving endpoints of a frontend for which done is true.
func (d *drains) takeOut(key vip.FrontendKey, why string, done func(vip.Endpoint) bool) {
	f, _, there := d.o.Frontends.Get(key)
	if !there {
		d.forget(key)
		return
	}
	var out []string
	rest := make([]vip.Endpoint, 0, len(f.Backends))
	for _, e := range f.Backends {
		if e.IsLeaving() && done(e) {
			out = append(out, e.Addr.String())
		} else {
			rest = append(rest, e)
		}
	}
	if len(out) == 0 {
		return
	}
	if f.Backends = rest; len(rest) == 0 && !d.owners.held(key) {
		d.drop(key)
	} else {
		d.renew(f)
	}
	d.o.Events.Add(event.Event{
		Kind: "backend_drained", Service: f.Service.String(), Object: key.String(),
		Message: fmt.Sprintf("%s: %s", why, strings.Join(out, ", ")),
	})
	d.o.Log.Debug("drained", slog.Any("frontend", key), slog.String("why", why), slog.Int("backends", len(out)))
}
