package consul

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"golang.org/x/time/rate"

	"github.com/ironvip/ironvip/internal/backoff"
	"github.com/ironvip/ironvip/internal/parallel"
)

// follow queries the list of services and starts a watch for each service. It also detects that
// Consul is unavailable or available again.
func (r *run) follow(ctx context.Context, running parallel.Group) {
	t := r.o.timing
	pace := rate.NewLimiter(rate.Every(t.listPace), 2)
	wait := backoff.Backoff{Lo: t.minBackoff, Hi: t.maxBackoff}
	var index uint64 // of the last answer; 0 if everything is to be read
	early := false   // a blocking query has returned before its time without a change, as when a snapshot is restored
	for pace.Wait(ctx) == nil {
		q := question{index: index, wait: t.listHold}
		if early {
			q.index = 0
		}
		began := time.Now()
		names, a, err := r.ask.list(ctx, q)
		if ctx.Err() != nil {
			return
		}
		if err == nil && a.index == 0 && len(names) == 0 {
			err = errors.New("an empty answer that is not of consul's making: it has no index")
		}
		if err != nil {
			index, early = 0, false
			r.away(fmt.Errorf("consul at %s: list of services: %w", r.o.Title(), err))
			backoff.Sleep(ctx, wait.Next())
			continue
		}
		wait.Reset()
		if a.index < index { // an older state: read everything again
			index, early = 0, false
			continue
		}
		r.listed(ctx, names, len(names) == 0 && a.filtered, index == 0, running)
		early = q.index > 0 && a.index == q.index && time.Since(began) < q.wait
		index = max(a.index, 1)
	}
}

// away records that Consul can't be queried.
func (r *run) away(err error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.listErr = err
	r.publisher.Wake()
}

// listed updates the entries from a list. Reread means that Consul was unavailable, or has lost
// data, since the last list. Blind means that services may exist that the token can't read.
func (r *run) listed(ctx context.Context, names []string, blind, reread bool, running parallel.Group) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.listErr, r.listAnswered = nil, true
	there, crowded := make(map[string]struct{}, len(names)), r.takeTurns()
	for _, name := range names {
		there[name] = struct{}{}
		if e := r.entries[name]; e == nil {
			r.entries[name] = &entry{name: name}
			r.epoch.waiting++
		} else if e.gone { // and the removal is not built yet
			e.gone, e.running = false, false
		}
	}
	if reread = reread || r.takeTurns() && !crowded; reread { // the queries that are held would take too long a turn
		r.begin(ctx)
	}
	for name, e := range r.entries {
		_, is := there[name]
		turned := e.listed != is
		e.listed = is
		switch {
		case e.gone:
		case !e.running:
			e.running = true
			running.Run(ctx, func(ctx context.Context) { r.watch(ctx, e) })
		case turned && !reread && e.kick != nil: // nil: no query yet
			e.kick()
		}
	}
	missing := slices.DeleteFunc(slices.Clone(r.o.Services), func(name string) bool { return r.entries[name] != nil })
	if !slices.Equal(missing, r.missing) {
		r.missing, r.reworded = missing, true
	}
	if blind != r.blind {
		r.blind, r.reworded = blind, true
	}
	r.publisher.Wake()
}

// begin begins an epoch. The caller holds mu.
func (r *run) begin(ctx context.Context) {
	if r.epoch.end != nil {
		r.epoch.end()
	}
	next := epoch{number: r.epoch.number + 1, last: time.Now()}
	for _, e := range r.entries {
		if !e.gone {
			next.waiting++
		}
	}
	next.ctx, next.end = context.WithCancel(ctx)
	r.epoch = next
}

// current returns the context of the next queries for a service. It ends when the service must be
// queried again.
func (r *run) current(e *entry) (ctx context.Context, end context.CancelFunc, number int) {
	r.mu.Lock()
	defer r.mu.Unlock()
	ctx, end = context.WithCancel(r.epoch.ctx)
	e.kick = end
	return ctx, end, r.epoch.number
}
