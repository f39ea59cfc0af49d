// Package health decides which backends are healthy, from probes of this host and, in a large fleet,
// of other hosts.
//
// Its input is the services table. Its output is the health table, with one row for each backend
// that has a health check; the compile stage joins it with the services. It decides which checks a
// backend has, runs each distinct probe once (package probe), and gives the result to every backend
// that shares it. The health that a source observed itself is in the service's row, not here.
//
// Files:
//
//	health.go  the stage: follows services and results, writes rows
//	checks.go  which checks a backend has
//	hold.go    holds traffic when all checks fail at once
//	keep.go    keeps the rows across a restart
//	config.go  the settings in [health]
package health

import (
	"cmp"
	"context"
	"fmt"
	"log/slog"
	"net/netip"
	"slices"
	"strings"
	"time"

	"github.com/ironvip/ironvip/health/probe"
	"github.com/ironvip/ironvip/internal/event"
	"github.com/ironvip/ironvip/internal/parallel"
	"github.com/ironvip/ironvip/internal/table"
	"github.com/ironvip/ironvip/internal/text"
	"github.com/ironvip/ironvip/vip"
)

// Options are the dependencies of a Stage. Services, Health, Results and Prober are required.
type Options struct {
	Rules
	Services table.Reader[vip.ServiceKey, vip.Service]
	Health   *table.Table[vip.BackendKey, vip.BackendHealth] // the stage is its only writer
	Results  *table.Table[probe.Target, probe.Result]        // of Prober
	Prober   Prober
	Store    Store         // nil: the rows don't survive a restart
	Node     string        // this host's name: backends with this node are local
	Hold     time.Duration // how long traffic is held when all checks fail at once
	Complete func()        // optional: called once, when the prober has all targets of the start and is Assigned
	Events   *event.Log
	Log      *slog.Logger // nil: discards
}

// Prober has the results of targets. A probe.Engine runs all probes on this host, and a share.Share
// divides them among the hosts of a fleet.
type Prober interface {
	// Start adds a target, with its row when it returns. For a target that is already there, it changes
	// whether one of its backends runs on this host.
	Start(probe.Target, probe.Use)
	// Stop removes a target and its row.
	Stop(probe.Target)
	// Assigned is closed as soon as the prober knows which targets this host probes, and probes those of
	// them that were started.
	Assigned() <-chan struct{}
	Run(context.Context) error
}

// Stage is the stage from services to the health of their backends. Its goroutine is Run.
type Stage struct {
	Options
	services map[vip.ServiceKey]*watched
	targets  map[probe.Target]*target
	hold     hold
	restored map[vip.BackendKey]vip.BackendHealth // rows of an earlier run, until their service is known
	changed  map[vip.ServiceKey][]transition      // not reported yet
	boot     string                               // of this host
}

// watched is a service with the checks of its backends.
type watched struct {
	service *vip.Service // its row, shared
	vips    []netip.Addr // see checksOf
	checks  [][]check    // of each of the service's backends, or empty: none has any; nil: its VIPs aren't known yet
}

// of returns the checks of a backend.
func (w *watched) of(i int) []check {
	if len(w.checks) == 0 {
		return nil
	}
	return w.checks[i]
}

// target is a probe and the backends that share it.
type target struct {
	users  []vip.BackendKey
	local  int        // of them, those on this host
	health vip.Health // as counted in hold
}

// transition is a change of the health of one backend, for events.
type transition struct {
	backend vip.BackendKey
	health  vip.Health
	reason  string
	inARow  uint32 // probes in a row that led to health; 0: not known
}

// text returns the backend, the reason and the probes: "10.0.0.1: connect: connection refused (3
// failures)", or "10.0.0.1 (2 passes)".
func (t *transition) text() string {
	out := t.backend.ID()
	if t.reason != "" {
		out += ": " + t.reason
	}
	switch {
	case t.inARow == 0:
	case t.health == vip.Healthy && t.inARow == 1:
		out += " (1 pass)"
	case t.health == vip.Healthy:
		out += fmt.Sprintf(" (%d passes)", t.inARow)
	default:
		out += " (" + text.Plural(int(t.inARow), "failure") + ")"
	}
	return out
}

// New returns a stage. The health table is ready with the rows of an earlier run at once, because
// compile waits for them.
func New(o Options) *Stage {
	o.Log = cmp.Or(o.Log, slog.New(slog.DiscardHandler))
	s := &Stage{Options: o, services: map[vip.ServiceKey]*watched{}, targets: map[probe.Target]*target{},
		hold: newHold(o.Hold), changed: map[vip.ServiceKey][]transition{}, boot: bootID()}
	s.restored = restore(o.Store, s.boot, o.Log)
	for _, row := range s.restored {
		s.Health.Set(row)
	}
	return s
}

// Run probes and writes rows until the context ends, and returns its error.
func (s *Stage) Run(ctx context.Context) error {
	running, ctx := parallel.NewGroup(ctx)
	running.Go(func() error {
		if err := s.Prober.Run(ctx); ctx.Err() == nil {
			return fmt.Errorf("health probes: %w", err)
		}
		return ctx.Err()
	})
	if s.Store != nil {
		running.Run(ctx, s.keep)
	}
	running.Go(func() error { return s.loop(ctx) })
	return running.Wait()
}

func (s *Stage) loop(ctx context.Context) error {
	services, results := s.Services.Watch(), s.Results.Watch()
	var allocations *table.Feed[vip.ServiceKey, vip.Allocation]
	if s.Allocations != nil {
		allocations = s.Allocations.Watch()
		defer allocations.Close()
	}
	defer services.Close()
	defer results.Close()
	release := time.NewTimer(time.Hour)
	defer release.Stop()
	known := s.Services.Ready()
	if s.Allocations != nil {
		known = s.Allocations.Ready() // with an answer for each service of a Ready table
	}
	var assigned <-chan struct{} // nil: not awaited
	for {
		if ctx.Err() != nil {
			return context.Cause(ctx)
		}
		complete := known != nil && table.IsClosed(known) // before the feed: it has all rows then
		changed, servicesChanged := services.TryNext()
		for i := range changed {
			s.follow(&changed[i])
		}
		var granted []table.Change[vip.Allocation]
		var allocationsChanged <-chan struct{}
		if allocations != nil {
			granted, allocationsChanged = allocations.TryNext()
		}
		for i := range granted {
			s.granted(granted[i].Value.Asked.Key)
		}
		if complete && len(changed)+len(granted) == 0 {
			known = nil
			s.dropRestored()
			if s.Complete != nil {
				assigned = s.Prober.Assigned()
			}
		}
		if assigned != nil && table.IsClosed(assigned) {
			assigned = nil
			s.Complete()
		}
		news, resultsChanged := results.TryNext()
		for i := range news {
			if !news[i].Deleted {
				s.result(&news[i].Value)
			}
		}
		s.checkHold()
		s.report()
		if len(changed)+len(granted)+len(news) > 0 {
			continue
		}
		if !s.hold.until.IsZero() {
			release.Reset(time.Until(s.hold.until))
		}
		select {
		case <-ctx.Done():
		case <-known:
		case <-assigned:
		case <-servicesChanged:
		case <-allocationsChanged:
		case <-resultsChanged:
		case <-release.C:
		}
	}
}

// follow updates the targets and rows of a changed service. One that this host does not serve has none.
func (s *Stage) follow(c *table.Change[vip.Service]) {
	key, old := c.Value.Key, s.services[c.Value.Key]
	if c.Deleted || c.Value.NotHere {
		if old != nil {
			s.release(old)
			delete(s.services, key)
			for i := range old.service.Backends {
				s.Health.Delete(old.service.Backends[i].Key(key))
			}
		}
		return
	}
	s.update(&c.Value, old)
}

// granted takes in another answer of the allocator.
func (s *Stage) granted(key vip.ServiceKey) {
	if w := s.services[key]; w != nil {
		s.update(w.service, w)
	}
}

// update updates the targets and rows of a service to its present row and VIPs. Old is what they were.
func (s *Stage) update(service *vip.Service, old *watched) {
	key := service.Key
	vips, known := s.vips(service)
	switch {
	case !known && old == nil:
		s.services[key] = &watched{service: service} // its rows of an earlier run stay
		return
	case !known && old.checks == nil:
		old.service = service
		return
	case !known:
		vips = old.vips
	}
	if old != nil && old.checks != nil && sameChecks(old.service, service) && slices.Equal(old.vips, vips) && (old.vips == nil) == (vips == nil) {
		old.service = service
		return
	}
	now := &watched{service: service, vips: vips, checks: [][]check{}}
	for i := range service.Backends {
		b := &service.Backends[i]
		checks := checksOf(service, b, s.Default, vips)
		if len(checks) == 0 {
			continue
		}
		if len(now.checks) == 0 {
			now.checks = make([][]check, len(service.Backends))
		}
		now.checks[i] = checks
		for _, one := range checks {
			s.use(one, b.Key(key), s.isLocal(b))
		}
	}
	s.services[key] = now
	if old != nil {
		s.release(old) // after the new ones, so that no probe restarts
		for i := range old.service.Backends {
			if _, stays := now.index(&old.service.Backends[i]); !stays {
				s.Health.Delete(old.service.Backends[i].Key(key))
			}
		}
	}
	for i := range service.Backends {
		s.write(now, i)
		delete(s.restored, service.Backends[i].Key(key))
	}
}

// index returns the position of a backend of another version of the service.
func (w *watched) index(b *vip.Backend) (int, bool) {
	return slices.BinarySearchFunc(w.service.Backends, b, func(a vip.Backend, b *vip.Backend) int {
		return cmp.Or(a.Address.Compare(b.Address), cmp.Compare(a.Port, b.Port))
	})
}

// isLocal reports whether a backend runs on this host.
func (s *Stage) isLocal(b *vip.Backend) bool { return b.Node != "" && b.Node == s.Node }

// use adds a user of a check's target, and starts the target for its first.
func (s *Stage) use(c check, b vip.BackendKey, local bool) {
	t := s.targets[c.target]
	if t == nil {
		t = &target{}
		s.targets[c.target] = t
		s.Prober.Start(c.target, probe.Use{Namespace: b.Service.Namespace, Local: local, Begins: restoredResult(s.restored[b], c)})
		first, _, _ := s.Results.Get(c.target)
		s.count(t, &first)
	} else if local && t.local == 0 {
		s.Prober.Start(c.target, probe.Use{Namespace: b.Service.Namespace, Local: true})
	}
	t.users = append(t.users, b)
	if local {
		t.local++
	}
}

// release removes a service as a user of its targets, and stops those without users.
func (s *Stage) release(w *watched) {
	for i := range w.checks {
		b := w.service.Backends[i].Key(w.service.Key)
		for _, c := range w.checks[i] {
			t := s.targets[c.target]
			if j := slices.Index(t.users, b); j >= 0 {
				t.users = slices.Delete(t.users, j, j+1)
			}
			if s.isLocal(&w.service.Backends[i]) {
				if t.local--; t.local == 0 && len(t.users) > 0 {
					s.Prober.Start(c.target, probe.Use{Namespace: t.users[0].Service.Namespace})
				}
			}
			if len(t.users) > 0 {
				continue
			}
			if t.health == vip.Healthy {
				s.hold.healthy--
			}
			s.hold.forget(c.target)
			delete(s.targets, c.target)
			s.Prober.Stop(c.target)
		}
	}
}

// result takes in a changed result.
func (s *Stage) result(r *probe.Result) {
	t := s.targets[r.Target]
	if t == nil {
		return
	}
	s.count(t, r)
	s.writeUsers(t)
}

// count counts a result for the hold. Only what this host finds itself says something about its
// network, and not what the fleet finds, too, or what its own programs answer.
func (s *Stage) count(t *target, r *probe.Result) {
	former := t.health
	t.health = r.Health
	if r.Target.Private() || r.Origin == probe.Fleet || r.Origin == probe.Agreed && r.Health != vip.Healthy {
		t.health = 0
	}
	switch {
	case t.health == vip.Healthy && former != vip.Healthy:
		s.hold.begins(r.Target)
	case t.health == vip.Unhealthy && former == vip.Healthy:
		s.hold.fails(r.Target, time.Now())
	case t.health != vip.Healthy && former == vip.Healthy:
		s.hold.leave()
	}
	if t.health == 0 {
		s.hold.forget(r.Target)
	}
}

// writeUsers writes the rows of a target's backends.
func (s *Stage) writeUsers(t *target) {
	for _, b := range t.users {
		w := s.services[b.Service]
		if i, ok := w.index(&vip.Backend{Address: b.Address, Port: b.Port}); ok {
			s.write(w, i)
		}
	}
}

// write writes the row of one backend, or deletes it if the backend has no check.
func (s *Stage) write(w *watched, i int) {
	key := w.service.Backends[i].Key(w.service.Key)
	checks := w.of(i)
	if len(checks) == 0 {
		s.Health.Delete(key)
		return
	}
	row := vip.BackendHealth{Backend: key, Checks: make([]vip.CheckResult, len(checks))}
	inARow := make([]uint32, len(row.Checks))
	for j, c := range checks {
		r, _, _ := s.Results.Get(c.target)
		inARow[j] = r.InARow
		row.Checks[j] = vip.CheckResult{Ports: c.ports, Type: c.target.Check().Type, Port: c.target.Addr.Port(),
			Health: cmp.Or(r.Health, vip.Unknown), Since: r.Since, Reason: r.Reason}
		if r.Health == vip.Unhealthy && s.hold.holds(c.target) {
			row.Checks[j].Health, row.Checks[j].HeldUntil = vip.Healthy, vip.InstantOf(s.hold.until)
		}
	}
	former, _, _ := s.Health.Get(key)
	s.Health.Set(row)
	was, is := vip.Health(0), worst(row.Checks)
	if at := worst(former.Checks); at >= 0 {
		was = former.Checks[at].Health
	}
	if c := &row.Checks[is]; c.Health == vip.Unhealthy && was != vip.Unhealthy || c.Health == vip.Healthy && was == vip.Unhealthy {
		s.changed[key.Service] = append(s.changed[key.Service], transition{key, c.Health, c.Reason, inARow[is]})
	}
}

// worst returns the index of the check that decides for the whole backend: an unhealthy one, else one
// without a result, else the one that became healthy last; -1 if there is none.
func worst(checks []vip.CheckResult) int {
	for _, want := range [...]vip.Health{vip.Unhealthy, vip.Unknown} {
		if i := slices.IndexFunc(checks, func(c vip.CheckResult) bool { return c.Health == want }); i >= 0 {
			return i
		}
	}
	last := -1
	for i := range checks {
		if last < 0 || checks[i].Since.After(checks[last].Since) {
			last = i
		}
	}
	return last
}

// checkHold begins and ends the hold of traffic.
func (s *Stage) checkHold() {
	now := time.Now()
	if begun := s.hold.check(now); len(begun) > 0 {
		s.Log.Error("all health checks failed at the same time, which is rather this host's network; traffic goes on to these backends for a while",
			"checks", len(begun), "for", s.Hold)
		s.Events.Add(event.Event{Kind: "health_held", Object: text.Plural(len(begun), "target"), Message: fmt.Sprintf(
			"all %d healthy targets failed at the same time: traffic goes on to them for %s; check this host's network", len(begun), s.Hold)})
		s.rewrite(begun)
	}
	if ended := s.hold.release(now); len(ended) > 0 {
		s.Log.Error("health checks still fail; their backends are unhealthy now", "checks", len(ended))
		s.Events.Add(event.Event{Kind: "health_hold_ended", Object: text.Plural(len(ended), "target"), Message: fmt.Sprintf("%d targets still fail after %s", len(ended), s.Hold)})
		s.rewrite(ended)
	}
}

func (s *Stage) rewrite(targets []probe.Target) {
	for _, one := range targets {
		if t := s.targets[one]; t != nil {
			s.writeUsers(t)
		}
	}
}

// maxListed bounds the backends that one event lists.
const maxListed = 5

// report adds one event for each service and new health, so that a mass failure doesn't push all
// other events out of the log.
func (s *Stage) report() {
	for key, list := range s.changed {
		for _, health := range [...]vip.Health{vip.Unhealthy, vip.Healthy} {
			var texts []string
			more, object := 0, ""
			for _, t := range list {
				if t.health == health {
					object = t.backend.ID()
				}
				switch {
				case t.health != health:
				case len(texts) == maxListed:
					more++
				default:
					texts = append(texts, t.text())
				}
			}
			if len(texts) == 0 {
				continue
			}
			message := strings.Join(texts, "; ")
			if more > 0 {
				message += fmt.Sprintf("; and %d more", more)
			}
			if n := len(texts) + more; n > 1 {
				object = text.Plural(n, "backend")
			}
			s.Events.Add(event.Event{Kind: "backend_" + health.String(), Service: key.String(), Object: object, Message: "health check: " + message})
			s.Log.Info("health of backends changed", "service", key, "health", health, "backends", message)
		}
	}
	clear(s.changed)
}

// dropRestored removes the rows of an earlier run whose backends no service lists any more.
func (s *Stage) dropRestored() {
	for key := range s.restored {
		s.Health.Delete(key)
	}
	s.restored = nil
}
