package share

import (
	"context"
	"errors"
	"math/rand/v2"
	"strings"
	"time"

	"github.com/ironvip/ironvip/fleet"
	"github.com/ironvip/ironvip/health/probe"
	"github.com/ironvip/ironvip/internal/backoff"
	"github.com/ironvip/ironvip/vip"
)

const (
	// firstDelay is up to how long the first vote after a quiet time waits, and writePause the mean
	// time between two writes of a host. Meanwhile, votes are collected: a rack that fails changes many
	// targets within seconds. Both are random, because hosts that write at the same time collide in the
	// log. After a write that took long for that reason, the pause is twice as long as the write.
	firstDelay = 500 * time.Millisecond
	writePause = 2 * time.Second
	// rankDelay is how much longer a prober waits than the one before it where one write is enough.
	rankDelay = time.Second
	// agreeDelay collects the writes of probers that agree again, which change no verdict.
	agreeDelay = time.Second
	// sweepEvery is the time between two writes of the targets that this host is without, and
	// sweepAfter is how long it must be without one.
	sweepEvery = time.Minute
	sweepAfter = 30 * time.Second
	// maxVotes bounds the rows of one write.
	maxVotes = 1000
)

// votes are the writes of this host.
type votes struct {
	ready   map[*item]struct{} // to be written
	sending bool               // a write is in progress
	next    time.Time          // the earliest next write
	retry   backoff.Backoff
	sweep   time.Duration // when in each sweepEvery this host writes what it is without
	done    chan report
}

// vote is the write of one row.
type vote struct {
	item  *item
	write fleet.Write
}

// report is the end of a write.
type report struct {
	votes []vote
	took  time.Duration
	err   error
}

func newVotes() votes {
	return votes{ready: map[*item]struct{}{}, sweep: rand.N(sweepEvery), done: make(chan report, 1), retry: backoff.Backoff{Lo: time.Second, Hi: 30 * time.Second}}
}

// finding returns what this host votes for.
func (it *item) finding() finding {
	switch {
	case !it.wanted:
		return finding{}
	case it.own.Health == vip.Unknown && it.own.Outcome == probe.Local:
		return finding{} // as with commands that aren't allowed here
	case it.probing == 0 || it.own.Health != vip.Healthy && it.own.Health != vip.Unhealthy:
		return finding{health: vip.Unknown}
	}
	return finding{health: it.own.Health, since: it.own.Since.Time().UnixMilli(), reason: cut(it.own.Reason, maxReason)}
}

// vote returns what this host writes about an item.
func (s *Share) vote(it *item) (Verdict, action) {
	if it.target.Private() || !s.mode.shares() {
		return Verdict{}, keep
	}
	b := ballot{me: s.Node, probers: s.members.probers(it.group), row: it.row, own: it.finding()}
	return b.next()
}

// voteAt returns when an action is due.
func (s *Share) voteAt(it *item, do action) time.Time {
	rank := s.members.rank(it.group, s.Node)
	after := func(n int, d time.Duration) time.Duration { return time.Duration(max(n, 0)) * d }
	evidence := it.evidenceAt()
	switch do {
	case begin:
		return evidence.Add(after(rank, rankDelay))
	case agree:
		return later(evidence, it.judgedAt).Add(agreeDelay)
	case abstain, conclude:
		return s.sweepAt(it.since.Add(sweepAfter))
	}
	switch needed := majority(len(s.members.seats[it.group])); {
	case it.ownAt.Before(it.judgedAt): // the others were quicker, or this host finds something else
		return it.judgedAt.Add(it.target.Window() + after(rank, rankDelay))
	case rank >= needed: // the others probably see the same
		return evidence.Add(rankDelay)
	}
	return evidence
}

// evidenceAt returns when this host's own result was or will be one of its probes.
func (it *item) evidenceAt() time.Time {
	if it.inferred {
		return it.ownAt.Add(it.target.Window())
	}
	return it.ownAt
}

// sweepAt returns the next time at or after t at which this host writes what it is without.
func (s *Share) sweepAt(t time.Time) time.Time {
	first := s.mode.began.Add(s.votes.sweep)
	if t.Before(first) {
		return first
	}
	return first.Add((t.Sub(first) + sweepEvery - 1) / sweepEvery * sweepEvery)
}

func later(a, b time.Time) time.Time {
	if b.After(a) {
		return b
	}
	return a
}

// plan sets when an item is looked at again, and whether it is to be written now.
func (s *Share) plan(it *item, now time.Time) {
	s.due.Drop(it)
	idle := len(s.votes.ready) == 0 && !s.votes.sending
	delete(s.votes.ready, it)
	if it.wanted && it.probing == 0 && !it.row.known() {
		if at := it.orphanAt(); at.After(now) {
			s.due.Set(it, at)
		}
	}
	if it.writing || s.mode.stale {
		return
	}
	_, do := s.vote(it)
	if do == keep {
		return
	}
	if at := s.voteAt(it, do); at.After(now) {
		s.due.Hasten(it, at)
	} else {
		if idle && s.votes.next.Before(now) {
			s.votes.next = now.Add(rand.N(firstDelay))
		}
		s.votes.ready[it] = struct{}{}
	}
}

// nextVotes returns when there is something to write; the zero Time if there is nothing.
func (s *Share) nextVotes() time.Time {
	if len(s.votes.ready) == 0 || s.votes.sending {
		return time.Time{}
	}
	return s.votes.next
}

// takeVotes returns what is to be written now.
func (s *Share) takeVotes(now time.Time) (out []vote) {
	if len(s.votes.ready) == 0 || s.votes.sending || now.Before(s.votes.next) {
		return nil
	}
	for it := range s.votes.ready {
		if len(out) == maxVotes {
			break
		}
		delete(s.votes.ready, it)
		verdict, do := s.vote(it)
		write := s.Verdicts.Remove(it.key, it.index)
		if do == keep {
			continue
		}
		if do != conclude {
			var err error
			if write, err = s.Verdicts.Put(it.key, it.index, verdict); err != nil {
				s.Log.Error("health of a target not shared", "target", it.key, "err", err)
				continue
			}
		}
		it.writing = true
		out = append(out, vote{it, write})
	}
	s.votes.sending = len(out) > 0
	return out
}

// commit writes votes, each on its own: one that collides with another host's is decided again.
func (s *Share) commit(ctx context.Context, list []vote) {
	batches := make([]*fleet.Batch, len(list))
	for i := range list {
		batches[i] = &fleet.Batch{Writes: []fleet.Write{list[i].write}}
	}
	began := time.Now()
	err := s.Tree.Commit(ctx, batches)
	s.votes.done <- report{list, time.Since(began), err}
}

// sent takes in the end of a write.
func (s *Share) sent(r report) {
	s.mu.Lock()
	defer s.mu.Unlock()
	now := time.Now()
	s.votes.sending, s.votes.next = false, now.Add(max(writePause/2+rand.N(writePause), 2*r.took))
	if r.err == nil {
		s.votes.retry.Reset()
	} else {
		s.votes.next = now.Add(s.votes.retry.Next())
		if !errors.Is(r.err, context.Canceled) {
			s.Log.Warn("health of targets not shared; trying again", "targets", len(r.votes), "err", r.err)
		}
	}
	for _, v := range r.votes {
		it := v.item
		it.writing = false
		if row, ok := s.Verdicts.Get(it.key); ok { // the feed may be behind
			it.set(&row.Value, row.Index, now)
		} else {
			it.set(nil, 0, now)
		}
		s.look(it)
		s.drop(it)
	}
}

// cut returns at most the first n bytes of a text.
func cut(text string, n int) string { return strings.ToValidUTF8(text[:min(len(text), n)], "") }
