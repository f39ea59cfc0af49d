// Package consul is the source of services in Consul's catalog.
//
// Its input is the catalog of one datacenter: the services with a tag, or listed services, with the
// metadata, health and weights of their instances. Its output is services with their backends, and
// problems named by metadata key. It holds one blocking query for the list and one for each service
// with instances, so that a change affects only its service. It publishes changes in batches, at
// most one per 100 ms. While Consul is unavailable or its answers are invalid, the services stay
// unchanged. A later large removal is held back by the shrink guard. The package never writes to
// Consul and ignores what the agent itself registers there.
package consul

import (
	"cmp"
	"context"
	"maps"
	"sync"
	"time"

	"golang.org/x/time/rate"

	"github.com/ironvip/ironvip/internal/parallel"
	"github.com/ironvip/ironvip/sources"
	"github.com/ironvip/ironvip/sources/publish"
	"github.com/ironvip/ironvip/vip"
)

// Source implements sources.Source.
type Source struct {
	o Options
	// entries are the known services by their names in Consul. They are kept between runs. Only a
	// run uses them.
	entries map[string]*entry
}

// entry is the state of one service in Consul.
type entry struct {
	name      string
	instances []instance    // as last read; nil: not read yet
	settings  settings      // the last valid ones
	service   vip.Service   // the last valid one
	used      bool          // service is the sink's row, or is about to be
	problems  []vip.Problem // with its instances
	filtered  bool          // the last answer lacked instances because of the token's permissions
	listed    bool          // Consul's list contains it
	gone      bool          // it has no instances either
	epoch     int           // epoch of the last read
	running   bool          // a watch of it is running
	kick      context.CancelFunc
}

// New returns a source that sends no query before Run. The error names an invalid option.
func New(o Options) (*Source, error) {
	s := &Source{o: o.withDefaults(), entries: map[string]*entry{}}
	if s.o.asked == nil {
		client, err := newClient(&s.o)
		if err != nil {
			return nil, err
		}
		s.o.asked = client
	}
	return s, nil
}

// ShrinkGuard implements sources.Guarded.
func (s *Source) ShrinkGuard() time.Duration { return time.Duration(s.o.ShrinkGuard) }

// Run implements sources.Source. An unreachable Consul is not an error: the source is stale until
// Consul is reachable.
func (s *Source) Run(ctx context.Context, out sources.Sink) error {
	defer s.o.asked.closeIdle()
	// The last run may have ended before it published that these are gone. The full list removes them.
	maps.DeleteFunc(s.entries, func(_ string, e *entry) bool { return e.gone })
	r := newRun(s, out)
	for _, e := range s.entries {
		e.running, e.listed, e.epoch = false, false, 0
		e.filtered = true // an operator who restarts the run accepts what the token can't read
	}
	running, inner := parallel.NewGroup(ctx)
	running.Run(inner, func(ctx context.Context) { r.follow(ctx, running) })
	running.Run(inner, r.publisher.Run)
	return cmp.Or(running.Wait(), ctx.Err())
}

// run is one run of the source.
type run struct {
	s     *Source
	o     *Options
	ask   catalog
	total *rate.Limiter // of queries for services
	held  chan struct{} // has an element for each query for a service that is under way; nil: they aren't bounded

	publisher *publish.Publisher

	mu           sync.Mutex
	entries      map[string]*entry
	dirty        map[string]struct{} // must be built again
	failing      map[string]error    // services that can't be read
	wrong        map[string]struct{} // services with problems
	claims       map[vip.ServiceKey]map[string]struct{}
	listErr      error
	listAnswered bool     // the list has answered since the last round
	missing      []string // services of Config.Services that Consul does not list
	blind        bool     // the list is empty, and the token's permissions removed services from it
	reworded     bool     // the problems have changed since the last round
	epoch        epoch
	crowded      bool // result of takeTurns, as published in the problems
}

// epoch is a period of uninterrupted contact with Consul. Each epoch begins with a full read. The
// full list is published after the full read. Nothing is removed before that.
type epoch struct {
	number  int // 0: no epoch has begun
	ctx     context.Context
	end     context.CancelFunc
	waiting int       // services not read yet
	last    time.Time // time of the last read of a service that was waiting

	published bool // the full list is published
}

func newRun(s *Source, out sources.Sink) *run {
	t := s.o.timing
	r := &run{s: s, o: &s.o, ask: s.o.asked, total: rate.NewLimiter(rate.Limit(t.rate), t.burst),
		entries: s.entries, dirty: map[string]struct{}{}, failing: map[string]error{},
		wrong: map[string]struct{}{}, claims: map[vip.ServiceKey]map[string]struct{}{}}
	r.publisher = publish.New(r.round, &r.mu, out, t.pace)
	if t.held > 0 {
		r.held = make(chan struct{}, t.held)
	}
	for name, e := range r.entries {
		r.claim(e)
		if len(e.problems) > 0 {
			r.wrong[name] = struct{}{}
		}
	}
	return r
}
