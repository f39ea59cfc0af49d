// Package eligible is the stage that decides which VIPs this host may announce.
//
// Its inputs are the applied frontends, the labels of services, whether the dataplane works, the pools with their modes
// and the operator's choices for routes, and the operator's moves of VIPs.
// Its output is the eligible table, of which it is the only writer: one row for each VIP of a pool
// that is announced. A service counts if one of its frontends on the VIP, for clients outside the
// cluster, has enough usable backends and was applied. The backend of a whole VIP is this host. A change costs O(frontends of its VIP).
//
// The stage does not know nodes that drain: the announcer decides for the whole host.
package eligible

import (
	"context"
	"fmt"
	"net/netip"
	"slices"
	"time"

	"github.com/ironvip/ironvip/announce"
	"github.com/ironvip/ironvip/internal/table"
	"github.com/ironvip/ironvip/internal/text"
	"github.com/ironvip/ironvip/plane/reconcile"
	"github.com/ironvip/ironvip/vip"
)

// healthEvery is the time between two looks at the dataplane's health.
const healthEvery = time.Second

// Options are what the stage needs. All are required.
type Options struct {
	Applied table.Reader[vip.FrontendKey, reconcile.AppliedFrontend]
	// Services has the services of the frontends, at least as new as Applied.
	Services table.Reader[vip.ServiceKey, vip.Service]
	// Synced is closed when every frontend of the start has been tried once.
	Synced <-chan struct{}
	// Pools returns the pools with their modes, and a channel that is closed when they change.
	Pools func() ([]announce.Pool, <-chan struct{})
	// Healthy reports whether the dataplane works. Without it, no VIP is eligible.
	Healthy func() bool
	// Moves are the operator's moves of VIPs. Moves to other hosts than Node don't count.
	Moves    table.Reader[netip.Addr, announce.Move]
	Node     string
	Eligible *table.Table[netip.Addr, announce.Eligible]
}

// Stage is the stage.
type Stage struct {
	Options
	ready    func()                    // the table's initializer
	vips     map[netip.Addr][]frontend // in no order; nearly every VIP has one
	services map[vip.ServiceKey]*service
	pools    []announce.Pool
	sick     bool // the dataplane does not work
	changed  map[netip.Addr]struct{}
}

// frontend is what counts of an applied frontend.
type frontend struct {
	key      vip.FrontendKey
	service  vip.ServiceKey
	problem  string // why it does not count; "": it does, with enough usable backends
	usable   int    // backends
	backends int    // that are not being removed
	whole    bool   // its one backend is this host
	keep     bool   // its owner keeps the VIP without a usable backend
}

// problemWith returns why a frontend does not count, if this many of its backends must be usable; "": it does.
func (f *frontend) problemWith(least announce.Least) string {
	if n := least.Of(f.backends); f.problem == "" && !f.whole && f.usable < n {
		return fmt.Sprintf("%d of %s usable, fewer than %d: min_backends is %s", f.usable, text.Plural(f.backends, "backend"), n, least)
	}
	return f.problem
}

// New returns a stage that does nothing until Run. The table is not ready before the first decision
// about every VIP.
func New(o Options) *Stage {
	return &Stage{Options: o, ready: o.Eligible.Initializer(), vips: map[netip.Addr][]frontend{}, services: map[vip.ServiceKey]*service{}, changed: map[netip.Addr]struct{}{}}
}

// Run runs the stage until the context ends, and returns its error.
func (s *Stage) Run(ctx context.Context) error {
	feed := s.Applied.Watch()
	defer feed.Close()
	services := s.Services.Watch()
	defer services.Close()
	moves := s.Moves.Watch()
	defer moves.Close()
	tick := time.NewTicker(healthEvery)
	defer tick.Stop()
	s.sick = !s.Healthy()
	pools, repooled := s.Pools()
	s.setPools(pools)
	synced := s.Synced
	for {
		all := table.IsClosed(s.Synced)
		batch, more := feed.TryNext()
		for i := range batch {
			s.receive(&batch[i])
		}
		moreServices := s.receiveServices(services)
		moved, moreMoved := moves.TryNext()
		for i := range moved {
			s.changed[moved[i].Value.Addr] = struct{}{}
		}
		// Nothing is published before every frontend was tried: the announcer applies each row at once,
		// and would withdraw VIPs that an earlier agent has left in the kernel.
		if synced == nil {
			s.publish()
		}
		if len(batch)+len(moved) > 0 {
			continue
		}
		if all && synced != nil {
			synced = nil
			s.sick = !s.Healthy()
			s.again()
			s.publish()
			s.ready()
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-more:
		case <-moreServices:
		case <-moreMoved:
		case <-synced:
		case <-repooled:
			pools, repooled = s.Pools()
			s.setPools(pools)
		case <-tick.C:
			if sick := !s.Healthy(); sick != s.sick && synced == nil {
				s.sick = sick
				s.again()
			}
		}
	}
}

// receive notes a changed frontend.
func (s *Stage) receive(c *table.Change[reconcile.AppliedFrontend]) {
	tried := &c.Value.Tried.Value
	key := tried.Key
	if tried.Kind != vip.OnVIP || key.Audience != vip.Everyone {
		return
	}
	of := s.vips[key.Addr]
	i := slices.IndexFunc(of, func(f frontend) bool { return f.key == key })
	if i >= 0 && (c.Deleted || of[i].service != tried.Service) {
		former := of[i].service
		of = slices.Delete(of, i, i+1)
		i = -1
		s.leave(former, key.Addr, of)
	}
	if !c.Deleted {
		now := frontend{key: key, service: tried.Service, problem: problemOf(&c.Value), whole: key.Whole(), keep: tried.KeepsOwner && c.Value.Problem == nil}
		for i := range tried.Backends {
			if b := &tried.Backends[i]; b.Weight > 0 {
				now.usable++
				now.backends++
			} else if !b.IsLeaving() {
				now.backends++
			}
		}
		if i >= 0 {
			of[i] = now
		} else {
			of = append(of, now)
		}
		s.join(tried.Service, key.Addr)
	}
	if len(of) == 0 {
		delete(s.vips, key.Addr)
	} else {
		s.vips[key.Addr] = of
	}
	s.changed[key.Addr] = struct{}{}
}

// problemOf returns why an applied frontend does not count.
func problemOf(a *reconcile.AppliedFrontend) string {
	switch {
	case a.Problem != nil:
		return "not applied: " + a.Problem.Message
	case !a.Tried.Value.Usable() && a.Tried.Value.Key.Whole():
		return "the check of this host has not passed"
	case !a.Tried.Value.Usable():
		return "no usable backend"
	}
	return ""
}

// setPools applies changed pools. It costs O(VIPs).
func (s *Stage) setPools(pools []announce.Pool) {
	s.pools = pools
	s.again()
}

// poolOf returns the pool of an address; the zero value, whose mode is off, if it is in none. It costs O(pools).
func (s *Stage) poolOf(addr netip.Addr) announce.Pool {
	for _, p := range s.pools {
		if slices.ContainsFunc(p.CIDRs, func(c netip.Prefix) bool { return c.Contains(addr) }) {
			return p
		}
	}
	return announce.Pool{}
}

func (s *Stage) again() {
	for addr := range s.vips {
		s.changed[addr] = struct{}{}
	}
}

// publish writes the rows of the changed VIPs.
func (s *Stage) publish() {
	var rows []announce.Eligible
	for addr := range s.changed {
		pool := s.poolOf(addr)
		if of := s.vips[addr]; of == nil || pool.Mode == announce.Off {
			s.Eligible.Delete(addr)
		} else {
			rows = append(rows, s.decide(addr, &pool, of))
		}
	}
	clear(s.changed)
	if len(rows) > 0 {
		s.Eligible.SetAll(rows)
	}
}

// decide returns the row of a VIP.
func (s *Stage) decide(addr netip.Addr, pool *announce.Pool, of []frontend) announce.Eligible {
	out := announce.Eligible{Addr: addr, Mode: pool.Mode, Policy: pool.Policy}
	serves := map[vip.ServiceKey]bool{}
	var failing []frontend
	for _, f := range of {
		if f.problemWith(pool.MinBackends) == "" {
			serves[f.service] = true
		} else {
			out.Keep = f.keep // a whole VIP has one frontend
			failing = append(failing, f)
		}
	}
	out.Services = len(serves)
	if pool.Mode == announce.BGP {
		out.Route = s.route(addr, pool, of)
	}
	if m, _, ok := s.Moves.Get(addr); ok && m.Node == s.Node {
		out.Policy.Moved, out.Policy.Pinned = m.Stamp(), m.Pin
	}
	if s.sick {
		out.Services, out.Keep, out.Reason = 0, false, "the dataplane does not work"
		return out
	}
	slices.SortFunc(failing, func(a, b frontend) int { return vip.CompareFrontendKeys(a.key, b.key) })
	for _, f := range failing {
		if !serves[f.service] {
			out.Reason = f.service.String() + ": " + f.problemWith(pool.MinBackends) + " (" + f.key.String() + ")"
			break
		}
	}
	return out
}
