package proxy

import (
	"fmt"
	"slices"
	"sync"
	"sync/atomic"
	"time"
)

// A backend that stops to answer is doubted before its first client gives up: it has answered nobody
// for a while, its clients wait longer than is usual, and the other backends answer theirs, so that
// this is no chance (see unlikely). New clients then skip it, but it isn't ejected: a client that waits
// may still get its answer, which ends the doubt. If clients give up, silence.go ejects it.
//
// A connection costs two atomic additions more. The counts are compared only at intervals, when a client
// asks.

const (
	// stallLooks is how often an endpoint is looked at within the least wait of a client.
	stallLooks = 4
	// doubtTime is how long a doubted backend is skipped until one client tries it, which is lost if the
	// backend still doesn't answer. Many clients give up within it.
	doubtTime = 3 * time.Second
)

// stall is what an endpoint and the others of its frontend have been asked and have answered since the
// endpoint answered last.
type stall struct {
	next atomic.Int64 // when to look again, by Target.now

	mu    sync.Mutex
	since census
	marks []mark // the counts of an endpoint at later looks; at most enough for one wait
}

// census is the counts of an endpoint and of the others at a moment. Answered includes the connections
// that the backend has ended without a byte.
type census struct {
	asked, answered             uint64
	othersAsked, othersAnswered int64
}

type mark struct {
	at    int64
	asked uint64
}

// takeCensus returns the counts of now. What is counted meanwhile may be missing; the others then seem to
// be asked more, and to answer less.
func (e *endpoint) takeCensus() census {
	own, all := &e.answers, &e.frontend.answers
	allAnswered := all.heard()
	c := census{asked: own.asked.Load(), answered: own.heard()}
	c.othersAsked = int64(all.asked.Load() - c.asked)
	c.othersAnswered = int64(allAnswered - c.answered)
	return c
}

// heard returns the connections in which the client has sent something, and the backend has answered or
// ended the connection.
func (a *answers) heard() uint64 { return a.given.Load() + a.closed.Load() }

// isAsked takes in that a client has sent its first bytes, which the backend has not answered yet.
func (e *endpoint) isAsked(now int64) {
	e.frontend.answers.asked.Add(1)
	e.answers.asked.Add(1)
	s := e.stall.Load()
	if s == nil {
		e.stall.CompareAndSwap(nil, new(stall))
		s = e.stall.Load()
	}
	if now >= s.next.Load() && s.mu.TryLock() {
		n, heard := e.look(s, now), s.since.answered
		s.mu.Unlock()
		if n > 0 {
			e.stalls(n, heard)
		}
	}
}

// look compares the counts, and returns how many clients in a row have no answer, if that is no chance,
// or 0. The caller holds s.mu.
func (e *endpoint) look(s *stall, now int64) int {
	wait := max(int64(leastWait), waitFactor*e.frontend.pace.mean.Load())
	s.next.Store(now + wait/stallLooks)
	c := e.takeCensus()
	if c.answered != s.since.answered || s.marks == nil {
		s.since, s.marks = c, append(s.marks[:0], mark{now, c.asked})
		return 0
	}
	if len(s.marks) > stallLooks+1 {
		s.marks = slices.Delete(s.marks, 0, 1)
	}
	s.marks = append(s.marks, mark{now, c.asked})
	if !e.frontend.backends.Load().anyClient {
		return 0 // its clients may be different from others
	}
	given, asked := c.othersAnswered-s.since.othersAnswered, c.othersAsked-s.since.othersAsked
	for _, m := range slices.Backward(s.marks) {
		if now-m.at >= wait { // those who had asked by then have waited for that long
			if n := int(m.asked - s.since.asked); unlikely(n, given, asked-given, chance) {
				return n
			}
			return 0
		}
	}
	return 0
}

// stalls takes in that clients wait for an answer while the other backends answer theirs. Heard is what
// the backend had answered. Only a further answer ends the doubt.
func (e *endpoint) stalls(clients int, heard uint64) {
	x := e.outlier
	x.in.mu.Lock()
	defer x.in.mu.Unlock()
	if x.ejected || x.doubted || !x.mayEject() || !x.fails(fmt.Sprintf("no answer yet to %d clients, while other backends answer", clients)) {
		return
	}
	if e.answers.heard() == heard { // after fails: from then on, an answer waits for the lock
		x.proof = answered
		x.skip(doubtTime)
	}
}
