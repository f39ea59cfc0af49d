// Package consul is the source of services in Consul's catalog.
//
// In goes the catalog of one datacentre: the services that carry a tag, or those
// that are listed, what the metadata of their instances say, their health and
// weights; out go services with their backends, and what is wrong with the
// metadata by the name of its key. One question is held for the list of
// services, and one for each service that has instances, so that a change wakes
// what it concerns and nothing else. Changes are told in bundles, one a service
// and 100 ms at most. It fails towards traffic: while Consul is away, or answers
// nonsense, everything stays as it was; what it then has lost is taken away only
// past the shrink guard. The package never writes into Consul, and takes nothing
// of what the agent itself registers there.
package consul

import (
	"context"
	"fmt"
	"sync"
	"time"

	"golang.org/x/time/rate"

	"github.com/ironvip/ironvip/sources"
	"github.com/ironvip/ironvip/sources/publish"
	"github.com/ironvip/ironvip/vip"
)

// Source implements sources.Source.
type Source struct {
	o Options
	// entries are the services that are known, by their names in Consul, also from
	// one run to the next. Only a run uses them.
	entries map[string]*entry
}

// entry is what is known of one of Consul's services.
type entry struct {
	name      string
	instances []instance    // as last read; nil for not yet
	settings  settings      // the last that were good
	service   vip.Service   // the last that was good
	inForce   bool          // service is what the sink has, or is about to get
	problems  []vip.Problem // of its instances
	filtered  bool          // some of them were left out of what Consul answered last
	listed    bool          // Consul's list names it
	gone      bool          // and it has no instances either
	epoch     int           // in which it was last read
	running   bool          // somebody watches it
	kick      context.CancelFunc
}

// New returns a source that asks nothing before Run. The error names an option
// that can't be right.
func New(o Options) (*Source, error) {
	o = o.withDefaults()
	if _, err := newClient(&o); err != nil {
		return nil, err
	}
	return &Source{o: o, entries: map[string]*entry{}}, nil
}

// ShrinkGuard implements sources.Guarded.
func (s *Source) ShrinkGuard() time.Duration { return time.Duration(s.o.ShrinkGuard) }

// Run implements sources.Source. A Consul that can't be reached is no failure:
// the source is stale until it can.
func (s *Source) Run(ctx context.Context, out sources.Sink) error {
	ask := s.o.asked
	if ask == nil {
		made, err := newClient(&s.o)
		if err != nil {
			return fmt.Errorf("consul: %w", err)
		}
		ask = made
	}
	defer ask.closeIdle()
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	r := newRun(s, ask, out)
	for _, e := range s.entries {
		e.running, e.listed, e.epoch = false, false, 0
		e.filtered = true // who runs it anew has seen what the token can't see
	}
	var running sync.WaitGroup
	defer running.Wait()
	defer r.tidy.Stop()
	running.Go(func() { r.follow(ctx, &running) })
	running.Go(func() { r.publisher.Run(ctx) })
	<-ctx.Done()
	return ctx.Err()
}

// run is one run of the source.
type run struct {
	s     *Source
	o     *Options
	ask   catalog
	total *rate.Limiter // of questions for services
	slots slots
	tidy  *time.Timer // closes idle connections, some time after there were too many

	publisher *publish.Publisher

	mu       sync.Mutex
	entries  map[string]*entry
	dirty    map[string]struct{} // to be built again
	failing  map[string]error    // services that can't be read
	wrong    map[string]struct{} // services with problems
	claims   map[vip.ServiceKey]map[string]struct{}
	listErr  error
	heard    bool     // the list has answered since the last round
	missing  []string // services that are asked for by name, and not there
	blind    bool     // the list is empty, and something was left out of it
	reworded bool     // the problems have changed since the last round
	epoch    epoch
	limited  int // slots, as in the problems
}

// epoch is a time without a loss of contact with Consul. Each begins with reading everything again.
// Only then the full list is published: until then, nothing is removed.
type epoch struct {
	number  int // 0: there was none yet
	ctx     context.Context
	end     context.CancelFunc
	waiting int       // services that were not read yet
	last    time.Time // when one was

	published bool // the full list
}

func newRun(s *Source, ask catalog, out sources.Sink) *run {
	t := s.o.timing
	r := &run{s: s, o: &s.o, ask: ask, total: rate.NewLimiter(rate.Limit(t.rate), t.burst),
		entries: s.entries, dirty: map[string]struct{}{}, failing: map[string]error{},
		wrong: map[string]struct{}{}, claims: map[vip.ServiceKey]map[string]struct{}{}}
	r.publisher = publish.New(r, &r.mu, out, t.pace)
	r.tidy = time.AfterFunc(time.Hour, ask.closeIdle)
	r.tidy.Stop()
	for name, e := range r.entries {
		r.claim(e)
		if len(e.problems) > 0 {
			r.wrong[name] = struct{}{}
		}
	}
	return r
}
