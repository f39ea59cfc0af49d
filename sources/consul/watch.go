package consul

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"time"

	"golang.org/x/time/rate"

	"github.com/ironvip/ironvip/internal/backoff"
	"github.com/ironvip/ironvip/internal/text"
	"github.com/ironvip/ironvip/vip/spec/strict"
)

// next is the next action after an answer.
type next int

const (
	hold  next = iota // send a blocking query for a newer index
	again             // query at once, without blocking
	idle              // query again after a backoff: there is nothing to wait for with a blocking query
	end               // the service is gone
)

// watch queries one service until the context ends or the service is gone.
func (r *run) watch(ctx context.Context, e *entry) {
	t := r.o.timing
	pace := rate.NewLimiter(rate.Every(t.pace), 1)
	wait := backoff.Backoff{Lo: t.minBackoff, Hi: t.maxBackoff}
	rest := backoff.Backoff{Lo: t.idle / 32, Hi: t.idle}
	for ctx.Err() == nil {
		current, done, number := r.current(e)
		var index uint64
		for current.Err() == nil {
			q := question{index: index, wait: r.holdFor()}
			all, a, err := r.question(current, pace, e.name, q)
			switch {
			case current.Err() != nil:
			case err != nil:
				index = 0
				if away := r.failed(e, err); away {
					<-current.Done() // follow ends this context when Consul is available again
				}
				backoff.Sleep(current, wait.Next())
			default:
				wait.Reset()
				a.streamed = a.streamed && index != 0 // the answer to the next query counts
				switch r.answered(e, all, a, number) {
				case hold:
					rest.Reset()
					if a.index < index {
						index = 0
					} else {
						index = max(a.index, 1)
					}
				case again:
					index = 0
				case idle:
					index = 0
					backoff.Sleep(current, rest.Next())
				case end:
					done()
					return
				}
			}
		}
		done()
	}
}

// question sends a query when the rate limits and the bound on queries allow it.
func (r *run) question(ctx context.Context, pace *rate.Limiter, name string, q question) ([]instance, answer, error) {
	if pace.Wait(ctx) != nil || r.total.Wait(ctx) != nil {
		return nil, answer{}, ctx.Err()
	}
	if r.held != nil {
		select {
		case r.held <- struct{}{}:
			defer func() { <-r.held }()
		case <-ctx.Done():
			return nil, answer{}, ctx.Err()
		}
	}
	return r.ask.instances(ctx, name, q)
}

// holdFor returns the maximum wait of a blocking query, with a jitter of up to a tenth in both directions. With more
// services than queries that may be held, the services take turns.
func (r *run) holdFor() time.Duration {
	t := &r.o.timing
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.takeTurns() {
		return max(t.pace, t.cycle*time.Duration(t.held)/time.Duration(len(r.entries)))
	}
	return t.hold - t.hold/10 + rand.N(t.hold/5+1)
}

// failed records that a service can't be read. It reports whether Consul as a whole can't be read.
func (r *run) failed(e *entry, err error) (away bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.failing[e.name] = err
	r.publisher.Wake()
	return r.listErr != nil
}

// answered updates a service from an answer.
func (r *run) answered(e *entry, all []instance, a answer, number int) next {
	r.mu.Lock()
	defer r.mu.Unlock()
	if number != r.epoch.number { // the query was sent before the current epoch
		return idle
	}
	ours := slices.ContainsFunc(all, func(i instance) bool { return !i.mesh() })
	if !ours && a.filtered {
		r.failing[e.name] = errors.New("the token may not read its instances: it needs service:read for them, and node:read for their nodes")
		r.publisher.Wake()
		return idle
	}
	vanished := e.vanished(all)
	if ours && a.streamed && len(vanished) > 0 {
		return again
	}
	delete(r.failing, e.name)
	// An instance that the token can no longer read is kept. If the token could never read all
	// instances, the readable ones count.
	if a.filtered && !e.filtered && len(vanished) > 0 {
		r.failing[e.name] = fmt.Errorf("the token may not read instance %s any more: it needs node:read for its node", text.First(fewIDs, idsOf(vanished), " "))
		all = slices.Concat(all, vanished)
	} else {
		e.filtered = a.filtered
	}
	if e.epoch != number {
		e.epoch = number
		r.epoch.waiting--
		r.epoch.last = time.Now()
	}
	r.dirty[e.name] = struct{}{}
	r.publisher.Wake()
	switch {
	case ours:
		e.instances = all
		return hold
	case !e.listed:
		e.gone = true
		return end
	}
	// The list contains the service, but the answer has no instances. A later list will not contain
	// it.
	return idle
}

// vanished returns the instances that the last answer had and this one lacks.
func (e *entry) vanished(now []instance) (gone []instance) {
	there := make(map[string]struct{}, len(now))
	for i := range now {
		there[now[i].id()] = struct{}{}
	}
	for i := range e.instances {
		if _, still := there[e.instances[i].id()]; !still {
			gone = append(gone, e.instances[i])
		}
	}
	return gone
}

func idsOf(instances []instance) (ids []string) {
	for i := range instances {
		ids = append(ids, strict.Name(instances[i].id()))
	}
	return ids
}
