package fleet

import (
	"maps"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/ironvip/ironvip/internal/fleet/membership"
	"github.com/ironvip/ironvip/vip"
)

// maxProblems bounds what Problems lists.
const maxProblems = 100

// status is what a tree reports about itself.
type status struct {
	mu        sync.Mutex
	stale     string
	advice    string // the hint for stale; "" means to check Consul
	duplicate *membership.DuplicateNodeError
	since     time.Time
	touch     chan struct{} // closed while in touch
	problems  map[string]vip.Problem
	junk      map[junkPlace]map[string]vip.Problem // by key
	changed   chan struct{}
}

func newStatus() *status {
	return &status{stale: "not read yet", since: time.Now(), touch: make(chan struct{}),
		problems: map[string]vip.Problem{}, junk: map[junkPlace]map[string]vip.Problem{}, changed: make(chan struct{})}
}

// wake wakes the readers. The caller holds mu.
func (s *status) wake() {
	close(s.changed)
	s.changed = make(chan struct{})
}

// why is why the tables may be old and can't be written, "" when they are current. The caller
// holds mu.
func (s *status) why() (reason, advice string) {
	if s.duplicate != nil {
		return s.duplicate.Error(), s.duplicate.Hint()
	}
	return s.stale, s.advice
}

// update changes what why depends on, and returns the reasons before and after.
func (s *status) update(change func()) (before, after string) {
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
		s.wake()
	}
	return before, after
}

// setStale reports whether the tree was in touch until now. Advice is the hint, "" to check Consul.
func (s *status) setStale(why, advice string) (was bool) {
	before, _ := s.update(func() { s.stale, s.advice = why, advice })
	return before == ""
}

// setFresh returns for how long the tree was out of touch; 0 when it was in, or still is out.
func (s *status) setFresh() (away time.Duration) {
	before, after := s.update(func() { s.stale, away = "", time.Since(s.since) })
	if before == "" || after != "" {
		return 0
	}
	return away
}

// setDuplicate notes the other live host with this host's id or name, or with nil that there is
// none.
func (s *status) setDuplicate(e *membership.DuplicateNodeError) {
	s.update(func() { s.duplicate = e })
	problem := vip.Problem{}
	if e != nil {
		problem = e.Problem()
	}
	s.setProblem("duplicate", problem)
}

// inTouch returns a channel that is closed while the tree is in touch, and since when it isn't.
func (s *status) inTouch() (touch <-chan struct{}, since time.Time) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.touch, s.since
}

// setProblem sets the problem of a name, or clears it if p has no message.
func (s *status) setProblem(name string, p vip.Problem) {
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
	s.wake()
}

// junkPlace is where foreign keys were found.
type junkPlace int

const (
	inTree junkPlace = iota
	inLog
	inNodes
	beside // anywhere else below the prefix
)

// setJunk replaces the problems of foreign keys in one place.
func (s *status) setJunk(where junkPlace, now map[string]vip.Problem) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if !maps.Equal(s.junk[where], now) {
		s.junk[where] = now
		s.wake()
	}
}

// removal is the hint to remove a key.
func removal(key string) string { return removalBy("consul kv delete ", key) }

// removalOfAll is the hint to remove all keys below a prefix.
func removalOfAll(prefix string) string { return removalBy("consul kv delete -recurse ", prefix) }

func removalBy(command, key string) string {
	return ": " + command + shellword(key) + "; noticed within 5 minutes, or by ironvip source resync rest"
}

// shellword quotes a word for a shell if necessary.
func shellword(s string) string {
	plain := func(r rune) bool {
		return r >= 'a' && r <= 'z' || r >= 'A' && r <= 'Z' || r >= '0' && r <= '9' || strings.ContainsRune("/._-:", r)
	}
	if strings.ContainsFunc(s, func(r rune) bool { return !plain(r) }) {
		return "'" + strings.ReplaceAll(s, "'", `'\''`) + "'"
	}
	return s
}

// keyProblem is the problem of a key in Consul.
func keyProblem(key string, err error, hint string) vip.Problem {
	return vip.Problem{Code: vip.CodeInvalid, Place: "consul:" + key, Message: err.Error(), Hint: hint}
}

// list returns the problems of the tree as a whole and those of foreign keys, unordered.
func (s *status) list() (whole, keys []vip.Problem) {
	s.mu.Lock()
	defer s.mu.Unlock()
	whole = slices.Collect(maps.Values(s.problems))
	for _, junk := range s.junk {
		keys = slices.AppendSeq(keys, maps.Values(junk))
	}
	return whole, keys
}

// problemsChanged wakes the readers of Problems.
func (s *status) problemsChanged() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.wake()
}

// Duplicate returns which other live host has this host's id or name, or nil.
func (t *Tree) Duplicate() *membership.DuplicateNodeError {
	t.status.mu.Lock()
	defer t.status.mu.Unlock()
	return t.status.duplicate
}

// Stale returns why the tables may be old, or "" if they are current.
func (t *Tree) Stale() string {
	why, _, _ := t.StaleSince()
	return why
}

// StaleSince is Stale with the time since when, and with a hint if there is more to do than to
// check Consul.
func (t *Tree) StaleSince() (why, advice string, since time.Time) {
	t.status.mu.Lock()
	defer t.status.mu.Unlock()
	why, advice = t.status.why()
	return why, advice, t.status.since
}

// StatusChanged returns a channel that is closed when Stale or Problems change. Every change
// replaces it.
func (t *Tree) StatusChanged() <-chan struct{} {
	t.status.mu.Lock()
	defer t.status.mu.Unlock()
	return t.status.changed
}
