// Package dns is the source of services with the backends that DNS names have.
//
// Its input is a list of services, each with the name of SRV records, or of A and AAAA records, and the servers to ask. Its
// output is the services with their backends: of SRV records with their ports and weights, and as backups those that do not
// have the lowest priority. It asks again when the records expire; an answer without a change publishes nothing. A name
// without a good answer keeps the last one, also that of the last run of the agent, and is a problem of its service. A large
// removal is held back by the shrink guard.
//
// Source code: config.go has the settings, dns.go the run, lookup.go the queries of one service, query.go a single one.
package dns

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"net/netip"
	"reflect"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/ironvip/ironvip/internal/backoff"
	"github.com/ironvip/ironvip/internal/parallel"
	"github.com/ironvip/ironvip/sources"
	"github.com/ironvip/ironvip/sources/draft"
	"github.com/ironvip/ironvip/sources/publish"
	"github.com/ironvip/ironvip/vip"
	"github.com/ironvip/ironvip/vip/spec"
)

const (
	maxTTL     = 3600 // seconds after which each name is asked for again
	minBackoff = time.Second
	pace       = 100 * time.Millisecond // the shortest time between two batches of changes
	maxNamed   = 5                      // names without an answer that are problems of one service
	patience   = 10 * time.Second       // how long the first list waits for names without an answer
)

// Options are the dependencies of a Source.
type Options struct {
	Config
	Name  string // the source's name
	Pools func() []spec.Pool
	// Prior returns the services in effect of the last run of the agent. It is called once.
	Prior func() []vip.Service

	exchange exchange // changed by tests; nil: real servers
}

// Source implements sources.Source.
type Source struct {
	o       Options
	ask     *resolver
	entries []*entry
	once    sync.Once
}

// entry is the state of one service. The goroutine that asks for it owns known and prior, and the run's mu the rest.
type entry struct {
	*Service
	plain vip.Service             // without backends
	known map[string][]netip.Addr // the last good addresses of names
	prior []backend               // of the last run of the agent; nil after each name was answered

	backends []backend
	pools    []spec.Pool // that service was built with
	service  vip.Service
	former   vip.Service   // of the last run of the agent, for settings that it can't be built with
	used     bool          // service is the sink's row, or is about to be
	failures []vip.Problem // of the last lookup
	problems []vip.Problem // failures, and those of the last build
	tried    bool          // in this run
	lost     error         // why no server has answered the last lookup
}

var errNotAsked = errors.New("no answer yet")

// New returns a source that sends no query before Run.
func New(o Options) *Source {
	s := &Source{o: o, ask: &resolver{exchange: o.exchange, slots: make(chan struct{}, maxQueries)}}
	if s.ask.exchange == nil {
		s.ask.exchange = overNetwork
	}
	for _, text := range o.Servers {
		server, _ := serverAt(text) // Check refuses others
		s.ask.servers = append(s.ask.servers, server)
	}
	for i := range o.Services {
		e := &entry{Service: &s.o.Services[i]}
		e.plain, _ = e.Build(o.Name, e.place())
		s.entries = append(s.entries, e)
	}
	return s
}

// ShrinkGuard implements sources.Guarded.
func (s *Source) ShrinkGuard() time.Duration { return time.Duration(s.o.ShrinkGuard) }

// Run implements sources.Source. Servers that don't answer are not an error: the source is stale until one does.
func (s *Source) Run(ctx context.Context, out sources.Sink) error {
	s.once.Do(s.restore)
	r := &run{Source: s}
	r.publisher = publish.New(r.round, &r.mu, out, pace)
	running, inner := parallel.NewGroup(ctx)
	for _, e := range s.entries {
		e.tried, e.lost = false, errNotAsked
		running.Run(inner, func(ctx context.Context) { r.follow(ctx, e) })
	}
	running.Run(inner, r.publisher.Run)
	running.Run(inner, r.waitNoLonger)
	if err := running.Wait(); err != nil {
		return err
	}
	return ctx.Err()
}

// restore takes the backends of the last run of the agent.
func (s *Source) restore() {
	prior := map[vip.ServiceKey]vip.Service{}
	for _, service := range s.o.Prior() {
		prior[service.Key] = service
	}
	for _, e := range s.entries {
		e.former = prior[e.plain.Key]
		for _, b := range e.former.Backends {
			e.prior = append(e.prior, backend{b.Address, b.Port, int(b.Weight), b.Backup})
		}
		e.backends = e.prior
	}
}

// run is one run of the source.
type run struct {
	*Source
	publisher *publish.Publisher

	mu        sync.Mutex
	waited    bool // long enough for entries that were not tried
	published bool
	dirty     []*entry // with another service since the last round
	reworded  bool
}

// follow asks for the backends of a service until the context ends.
func (r *run) follow(ctx context.Context, e *entry) {
	interval := time.Duration(r.o.Interval)
	wait := backoff.Backoff{Lo: minBackoff, Hi: interval}
	for ctx.Err() == nil {
		pools := r.o.Pools()
		l := e.lookup(ctx, r.ask, pools)
		if ctx.Err() != nil {
			return
		}
		r.take(e, &l, pools)
		pause := max(interval, time.Duration(l.ttl)*time.Second)
		if len(l.failures) > 0 {
			pause = interval
		}
		if pause += rand.N(pause/10 + 1); l.answered {
			wait.Reset()
		} else {
			pause = min(pause, wait.Next())
		}
		backoff.Sleep(ctx, pause)
	}
}

// waitNoLonger publishes the first list without the names that no server has answered in time. Their services have the backends
// of the last run of the agent.
func (r *run) waitNoLonger(ctx context.Context) {
	if !backoff.Sleep(ctx, patience) {
		return
	}
	pools := r.o.Pools()
	r.mu.Lock()
	defer r.mu.Unlock()
	r.waited = true
	for _, e := range r.entries {
		if !e.tried && len(e.backends) > 0 {
			e.problems, r.reworded = r.build(e, pools), true
		}
	}
	r.publisher.Wake()
}

// take updates the state of a service from a lookup.
func (r *run) take(e *entry, l *lookup, pools []spec.Pool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	e.tried, e.lost = true, nil
	if !l.answered {
		e.lost = fmt.Errorf("%s: %w", l.failures[0].name, l.failures[0].err)
	}
	failures := e.failed(l.failures)
	changed := l.backends != nil && !slices.Equal(l.backends, e.backends)
	if changed {
		e.backends = l.backends
	}
	if rebuild := changed || !e.used || !reflect.DeepEqual(pools, e.pools); rebuild || !slices.Equal(failures, e.failures) {
		e.failures = failures
		problems := slices.Concat(failures, r.build(e, pools))
		if !slices.Equal(problems, e.problems) {
			e.problems, r.reworded = problems, true
		}
		if rebuild {
			r.dirty = append(r.dirty, e)
		}
	}
	r.publisher.Wake()
}

// failed returns the problems of names without an answer.
func (e *entry) failed(failures []failure) (out []vip.Problem) {
	for i, f := range failures {
		if i == maxNamed {
			return append(out, e.problem(fmt.Sprintf("%d names more have no answer", len(failures)-i)))
		}
		out = append(out, e.problem(fmt.Sprintf("%s: %s", strings.TrimSuffix(f.name, "."), f.err)))
	}
	return out
}

func (e *entry) problem(message string) vip.Problem {
	return vip.Problem{Code: vip.CodeInvalid, Place: e.place(), Service: e.plain.Key.String(), Message: message, Hint: "the last good answer stays in effect"}
}

// build builds the service with its usable backends, and returns the problems with the others.
func (r *run) build(e *entry, pools []spec.Pool) (problems []vip.Problem) {
	e.pools = pools
	d := e.Service.Service
	d.Backends = make([]spec.Backend, len(e.backends))
	for i, b := range e.backends {
		d.Backends[i] = spec.Backend{Address: b.addr.String(), Port: spec.PortNumber(b.port), Backup: b.backup}
		if b.weight > 0 {
			d.Backends[i].Weight = &e.backends[i].weight
		}
	}
	leftOut := func(i int, _ string, p vip.Problem) {
		p.Place, p.Service, p.Field = e.place(), e.plain.Key.String(), ""
		p.Message = fmt.Sprintf("%s is left out: %s", e.backends[i].addr, p.Message)
		problems = append(problems, p)
	}
	built, rest, more := draft.Fit(&d, func() (vip.Service, []vip.Problem) { return d.BuildIn(pools, r.o.Name, e.place(), nil) }, leftOut)
	if more > 0 {
		problems = append(problems, e.problem(fmt.Sprintf("%d addresses more are left out", more)))
	}
	switch {
	case len(rest) == 0:
		e.service, e.used = built, true
	case !e.used && e.former.Key == e.plain.Key:
		e.service, e.used = e.former, true
	}
	return append(problems, rest...)
}

// round is what has changed since the last round. The caller holds mu.
func (r *run) round() publish.Round {
	if !r.published && !r.waited && slices.ContainsFunc(r.entries, func(e *entry) bool { return !e.tried }) {
		return publish.Round{Incomplete: true}
	}
	round := publish.Round{Err: r.unreadable(), Reworded: r.reworded}
	if !r.published {
		if round.Err != nil {
			return round
		}
		r.published, round.Full, r.dirty = true, true, r.entries
	}
	for _, e := range r.dirty {
		if e.used {
			round.Put = append(round.Put, e.service)
		}
	}
	if round.Full || round.Reworded {
		for _, e := range r.entries {
			round.Problems = append(round.Problems, e.problems...)
		}
	}
	r.dirty, r.reworded = nil, false
	return round
}

// unreadable returns why no service could be asked for.
func (r *run) unreadable() error {
	for _, e := range r.entries {
		if e.lost == nil {
			return nil
		}
	}
	return r.entries[0].lost
}
