package passive

import (
	"math"
	"sync/atomic"
	"time"
)

// A backend that accepts connections and never answers, such as a stopped program, is found by its
// clients: they have sent something, got no byte, and give up. In many protocols, this is normal: a
// long poll ends in this way, and a server of logs never answers. Therefore, a backend is compared
// with the others of its frontend: it is ejected only if they answer, if it answers nobody, and if
// this is no chance. The price of a connection that is answered is a few atomic operations.

// leastWait and waitFactor bound how long a client must have waited: that many times as long as the
// answers of the frontend usually take. A client that ends its direction with its request, and still
// waits for the answer, has not given up.
const (
	leastWait  = 100 * time.Millisecond
	waitFactor = 4
)

// Bounds of unlikely. Clients that come seldom are few chances to be wrong, so each may be a larger one.
const (
	leastStreak = 3
	chance      = 1e-8 // of a backend like the others to be taken for a silent one, by one client
	seldom      = 2e-4 // the same, for each second beyond the first between the clients of a streak
	mostChance  = 1e-3
)

// answers counts the connections of a frontend, or of one of its members, in which the client has
// sent something.
type answers struct {
	given   atomic.Uint64 // those with a byte of the backend
	missing atomic.Uint64 // those that the client gave up before
}

// pace is how fast the first bytes of a frontend's backends come.
type pace struct {
	last atomic.Int64 // when one came, by Table.now
	mean atomic.Int64 // how long the last few took
}

// compared is what was counted of a member and of the others of its frontend.
type compared struct {
	own            uint64 // answers
	given, missing int64  // of the others
}

// compare returns the counts of now. Connections that are counted meanwhile may be missing: each is
// added to the frontend first.
func (m *Member) compare() compared {
	own, all := &m.answers, &m.frontend.answers
	given, missing := own.given.Load(), own.missing.Load()
	return compared{given, int64(all.given.Load() - given), int64(all.missing.Load() - missing)}
}

// streak is the connections of a member in a row that were given up without an answer.
type streak struct {
	n           int
	began       compared // at the begin of the first one
	first, last int64    // when the first one asked, and when the last one was given up, by Table.now
}

// chance returns the chance that may decide now.
func (s *streak) chance() float64 {
	between := time.Duration((s.last - s.first) / int64(s.n))
	return min(max(chance, (between-time.Second).Seconds()*seldom), mostChance)
}

// unlikely reports whether n connections in a row without an answer can't be chance, if during this
// time that many clients of the other backends got an answer, and that many gave up. It is Fisher's
// exact test: of all ways to distribute the connections without an answer, how many give the backend
// only such connections? It costs O(1).
func unlikely(n int, given, missing int64, chance float64) bool {
	if n < leastStreak || given <= 0 {
		return false
	}
	silent := float64(n) + float64(max(missing, 0)) // two counts aren't read at the same instant
	return logChoose(silent, float64(n))-logChoose(silent+float64(given), float64(n)) <= math.Log(chance)
}

// logChoose returns the logarithm of the number of ways to choose k of n.
func logChoose(n, k float64) float64 {
	a, _ := math.Lgamma(n + 1)
	b, _ := math.Lgamma(k + 1)
	c, _ := math.Lgamma(n - k + 1)
	return a - b - c
}

// Request is what a connection knows about its first bytes. One goroutine at a time calls its methods, except Ask and
// IsAnswered, which may be called concurrently.
type Request struct {
	asked    atomic.Int64 // when the client's bytes were last passed on, by Table.now; 0: none were
	answered atomic.Bool  // by the backend, with at least a byte
	late     atomic.Bool  // the client had given up before
	before   compared     // when the connection began
	missing  bool         // counted as such
	evidence bool         // taken as evidence; at most once
}

// Begin takes in that the connection to m has begun.
func (r *Request) Begin(m *Member) { r.before = m.compare() }

// Ask takes in that bytes of the client were passed on.
func (r *Request) Ask(now int64) { r.asked.Store(now) }

// IsAnswered reports whether the backend has sent at least a byte.
func (r *Request) IsAnswered() bool { return r.answered.Load() }

// Answer takes in that bytes of the backend m were passed on. An answer to the end of the client,
// such as an error because the client is gone, is none.
func (r *Request) Answer(m *Member, now int64) {
	if r.answered.Load() {
		return
	}
	r.answered.Store(true)
	if r.late.Load() {
		return
	}
	if asked := r.asked.Load(); asked != 0 {
		m.frontend.answers.given.Add(1)
		m.answers.given.Add(1)
		pace := &m.frontend.pace
		pace.last.Store(now)
		took, mean := now-asked, pace.mean.Load()
		if mean != 0 {
			took = mean + (took-mean)/8
		}
		pace.mean.Store(took) // a simultaneous one may be lost
	}
	m.Answered()
}

// GiveUp takes in that the client has ended its direction, or the connection, without an answer of m. The
// backend is suspect if it has answered nobody since the connection began, and others have answered
// in the second half of the time for which the client has waited. Otherwise all of them may be slow,
// for example because of a database that they share. Where nobody else asked meanwhile, this can't be
// told of one client, but of a streak of clients one after the other.
func (r *Request) GiveUp(m *Member) {
	asked := r.asked.Load()
	if asked == 0 || r.answered.Load() || r.evidence {
		return
	}
	all, pace := &m.frontend.answers, &m.frontend.pace
	if !r.missing {
		r.missing = true
		all.missing.Add(1)
		m.answers.missing.Add(1)
	}
	now := m.table.now()
	waited := now - asked
	if waited < max(int64(leastWait), waitFactor*pace.mean.Load()) {
		return
	}
	r.late.Store(true)
	if m.answers.given.Load() == r.before.own {
		r.evidence = m.gaveUp(r.before, asked, now, pace.last.Load() >= now-waited/2)
	}
}

// gaveUp takes in a connection that was given up now, and ejects the backend if that is no chance.
// Before is what was counted when the connection began, and asked when its client did. It reports whether
// the connection is evidence: others were answered meanwhile, or it came after the last one of the streak.
func (m *Member) gaveUp(before compared, asked, now int64, others bool) bool {
	x, counts := m.Backend, m.compare()
	x.table.mu.Lock()
	defer x.table.mu.Unlock()
	s := &m.streak
	if !others && s.n > 0 && asked < s.last {
		return false
	}
	x.unanswered.Add(1)
	if s.n++; s.n == 1 {
		s.began, s.first = before, asked
	}
	s.last = now
	x.good.Store(false) // an answer ends the streak
	if x.ejected && x.proof > accepted || unlikely(s.n, counts.given-s.began.given, counts.missing-s.began.missing, s.chance()) {
		x.fail("no answer before the client gave up", answered)
	}
	return true
}
