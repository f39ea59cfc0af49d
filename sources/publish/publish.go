// Package publish sends the services of a source that follows a server to its sink.
//
// Its inputs are a source's rounds: which services to write and to remove, whether all has been
// read, and why it can't be. Its outputs are calls of the sink, in the right order: the full list
// first, no removal while something may be missing, and the loss and the return of the server once
// each. It makes and compares no services; the claims table compares them. One Publisher serves one
// run of a source.
package publish

import (
	"context"
	"slices"
	"sync"
	"time"

	"github.com/ironvip/ironvip/internal/backoff"
	"github.com/ironvip/ironvip/internal/wake"
	"github.com/ironvip/ironvip/sources"
	"github.com/ironvip/ironvip/vip"
)

// Round is what a source has to publish.
type Round struct {
	Put  []vip.Service // changed services, or the full list
	Gone []vip.ServiceKey
	// Full says that Put and Problems replace all: everything has been read, for the first time or
	// after a loss.
	Full bool
	// Incomplete says that something may be missing since the last full list. Nothing is removed
	// before the next one, and the source is not fresh.
	Incomplete bool
	Err        error         // why the source can't be read; nil: it can
	Answered   bool          // the server has answered since the last round
	Problems   []vip.Problem // all problems with the input, if Full or Reworded
	Reworded   bool          // the problems have changed since the last round
	Again      time.Duration // when to ask for another round; 0: when Wake is called
}

// Publisher publishes the services of a source. Make one with New.
type Publisher struct {
	After func() // called after each round, with the source unlocked; may be nil

	round    func() Round
	lock     sync.Locker
	out      sources.Sink
	pace     time.Duration
	wake     wake.Signal
	replaced bool   // the full list has been published once
	answered bool   // the server has answered since that was published
	stale    string // as published
	newest   uint64 // revision of the newest row of a Put
}

// New returns a publisher of a source, which lock protects. Round makes services of what the source
// has read since the last round; it is called with the source locked. After services the publisher
// pauses for pace: so each is published at most that often, in its newest state.
func New(round func() Round, lock sync.Locker, out sources.Sink, pace time.Duration) *Publisher {
	return &Publisher{round: round, lock: lock, out: out, pace: pace, wake: wake.New()}
}

// Wake asks for a round. It may be called by any goroutine.
func (p *Publisher) Wake() {
	p.wake.Set()
}

// Run publishes until the context ends.
func (p *Publisher) Run(ctx context.Context) {
	again := time.NewTimer(time.Hour)
	defer again.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-p.wake:
		case <-again.C:
		}
		wait, sent := p.Publish()
		if p.After != nil {
			p.After()
		}
		if wait > 0 {
			again.Reset(wait)
		}
		if sent {
			backoff.Sleep(ctx, p.pace)
		}
	}
}

// Fresh reports whether the full list has been published and the server can be read. The caller
// locks the source.
func (p *Publisher) Fresh() bool { return p.replaced && p.stale == "" }

// Publish publishes one round, and reports whether it changed services. Run calls it.
func (p *Publisher) Publish() (again time.Duration, sent bool) {
	p.lock.Lock()
	defer p.lock.Unlock()
	round := p.round()
	p.answered = p.answered || round.Answered
	switch {
	case round.Full:
		p.out.Replace(round.Put, round.Problems)
		p.replaced, p.answered, p.stale, sent = true, false, "", true
	case p.replaced:
		if len(round.Put) > 0 {
			sent = p.changed(p.out.Put(round.Put...))
		}
		if len(round.Gone) > 0 && !round.Incomplete { // else the next full list removes them
			p.out.Delete(round.Gone...)
			sent = true
		}
		if round.Reworded {
			p.out.Problems(round.Problems)
		}
	}
	switch {
	case round.Err != nil && round.Err.Error() != p.stale:
		p.stale = round.Err.Error()
		p.out.Stale(round.Err)
	case round.Err == nil && p.replaced && !round.Incomplete && (p.stale != "" || p.answered):
		p.stale, p.answered = "", false
		p.out.Fresh()
	}
	return round.Again, sent
}

// changed reports whether one of the rows with these revisions is newer than all before, or is not
// in effect: its revision is 0.
func (p *Publisher) changed(revs []uint64) bool {
	newest := slices.Max(revs)
	changed := newest > p.newest || slices.Contains(revs, 0)
	p.newest = max(p.newest, newest)
	return changed
}
