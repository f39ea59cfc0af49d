// Package treestatus is what this host's copy of the fleet's tree reports about itself: whether it is
// in touch with the store, and what is wrong with the tree, with hints for the operator.
//
// Its state is set by the copy and read by the API, and it does no I/O.
package treestatus

import (
	"maps"
	"slices"
	"sync"
	"time"

	"github.com/ironvip/ironvip/fleet/membership"
	"github.com/ironvip/ironvip/internal/wake"
	"github.com/ironvip/ironvip/vip"
)

// Status is what a copy of the tree reports about itself. It is safe for concurrent use.
type Status struct {
	mu        sync.Mutex
	stale     string
	advice    string // the hint for stale; "" means to check the store
	duplicate *membership.DuplicateNodeError
	since     time.Time
	touch     chan struct{} // closed while in touch
	problems  map[string]vip.Problem
	changed   wake.Broadcast
}

// New returns the status of a copy that has not been read.
func New() *Status {
	return &Status{stale: "not read yet", since: time.Now(), touch: make(chan struct{}),
		problems: map[string]vip.Problem{}}
}

// why is why the tables may be old and can't be written, "" when they are current. The caller
// holds mu.
func (s *Status) why() (reason, advice string) {
	if s.duplicate != nil {
		return s.duplicate.Error(), s.duplicate.Hint()
	}
	return s.stale, s.advice
}

// update changes what why depends on, and returns the reasons before and after.
func (s *Status) update(change func()) (before, after string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	before, _ = s.why()
	change()
	after, _ = s.why()
	switch {
	case before == "" && after != "":
		s.touch, s.since = make(chan struct{}), time.Now()
	case before != "" && after == "":
		close(s.touch)
	}
	if before != after {
		s.changed.Send()
	}
	return before, after
}

// SetStale reports whether the tree was in touch until now. Advice is the hint, "" to check the store.
func (s *Status) SetStale(why, advice string) (was bool) {
	before, _ := s.update(func() { s.stale, s.advice = why, advice })
	return before == ""
}

// SetFresh returns for how long the tree was out of touch; 0 when it was in, or still is out.
func (s *Status) SetFresh() (away time.Duration) {
	before, after := s.update(func() { s.stale, away = "", time.Since(s.since) })
	if before == "" || after != "" {
		return 0
	}
	return away
}

// SetDuplicate notes the other live host with this host's id or name, or with nil that there is
// none.
func (s *Status) SetDuplicate(e *membership.DuplicateNodeError) {
	s.update(func() { s.duplicate = e })
	problem := vip.Problem{}
	if e != nil {
		problem = e.Problem()
	}
	s.SetProblem("duplicate", problem)
}

// InTouch returns a channel that is closed while the tree is in touch, and since when it isn't.
func (s *Status) InTouch() (touch <-chan struct{}, since time.Time) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.touch, s.since
}

// SetProblem sets the problem of a name, or clears it if p has no message.
func (s *Status) SetProblem(name string, p vip.Problem) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.problems[name] == p {
		return
	}
	if p.Message == "" {
		delete(s.problems, name)
	} else {
		s.problems[name] = p
	}
	s.changed.Send()
}

// Problems returns the problems of the tree as a whole, unordered.
func (s *Status) Problems() []vip.Problem {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.Collect(maps.Values(s.problems))
}

// Notify wakes the readers after a change of problems that the copy keeps itself.
func (s *Status) Notify() { s.changed.Send() }

// Duplicate returns which other live host has this host's id or name, or nil.
func (s *Status) Duplicate() *membership.DuplicateNodeError {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.duplicate
}

// Stale returns why the tables may be old, or "" if they are current, since when, and a hint if
// there is more to do than to check the store.
func (s *Status) Stale() (why, advice string, since time.Time) {
	s.mu.Lock()
	defer s.mu.Unlock()
	why, advice = s.why()
	return why, advice, s.since
}

// Changed returns a channel that is closed when the status changes. Every change replaces it.
func (s *Status) Changed() <-chan struct{} { return s.changed.Next() }
