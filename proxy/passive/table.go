// Package passive is the passive health of backends: what the connections of clients show of them.
//
// Its input is results: a connect that failed, a reset, an answer, a client that gave up. Its output is which backends
// clients should skip for now, as a time that schedulers read (Backend.Avoid), and rows and events for people. It ejects
// at most half of the backends of a frontend, and tries each again by itself. It counts and compares with a clock, and
// has no sockets: package proxy reports the results.
//
// Table has a Backend for each address of a service. A Frontend compares its Members, which are its backends; Request is
// what one connection knows. Run writes the rows.
package passive

import (
	"slices"
	"sync"
	"time"

	"github.com/ironvip/ironvip/internal/delayqueue"
	"github.com/ironvip/ironvip/internal/wake"
	"github.com/ironvip/ironvip/plane/reconcile"
	"github.com/ironvip/ironvip/vip"
)

// Table has the addresses of the backends of all services. Its lock is taken only when what is
// known of one of them changes. Its methods may be called concurrently.
type Table struct {
	now func() int64

	mu       sync.Mutex
	backends map[vip.PassiveKey]*Backend
	failing  map[vip.PassiveKey]*Backend      // those with a failed connection
	ended    delayqueue.Queue[vip.PassiveKey] // ejections, by the time when they end without a client
	changed  map[vip.PassiveKey]struct{}      // rows to write
	wake     wake.Signal                      // of Run
}

// New returns an empty Table. now is a monotonic clock in nanoseconds: the one of all times here.
func New(now func() int64) *Table {
	return &Table{now: now, backends: make(map[vip.PassiveKey]*Backend), failing: make(map[vip.PassiveKey]*Backend), changed: make(map[vip.PassiveKey]struct{}), wake: wake.New()}
}

// Service is what the backends of a service share.
type Service struct {
	wake func()    // called with the lock of the Table when clients that wait should look at a backend again
	told time.Time // when its last ejections were reported
}

// NewService returns a Service. Wake is called with the lock of the Table when an ejection has ended. It must not block.
func NewService(wake func()) *Service { return &Service{wake: wake} }

// Frontend is what is compared among the backends of a frontend. The zero value is ready.
type Frontend struct {
	answers answers
	pace    pace
	usable  []*Member // guarded by Table.mu
}

// Member is a backend of a frontend. All frontends of the service share the Backend of its address.
type Member struct {
	*Backend
	frontend *Frontend
	service  *Service
	answers  answers

	// guarded by Table.mu
	streak streak
	usable bool
}

// Join makes m, which is new, the member of a frontend of a service for a backend. The caller ends this with Leave.
func (t *Table) Join(m *Member, key vip.PassiveKey, f *Frontend, s *Service) {
	t.mu.Lock()
	defer t.mu.Unlock()
	x := t.backends[key]
	if x == nil {
		x = &Backend{table: t, key: key}
		t.backends[key] = x
	}
	m.Backend, m.frontend, m.service = x, f, s
	x.members = append(x.members, m)
}

// Leave ends what Join has begun. Further calls do nothing. It costs O(frontends of the service).
func (m *Member) Leave() {
	x, t := m.Backend, m.table
	t.mu.Lock()
	defer t.mu.Unlock()
	x.members = slices.DeleteFunc(x.members, func(other *Member) bool { return other == m })
	if len(x.members) > 0 || t.backends[x.key] != x {
		return
	}
	delete(t.backends, x.key)
	delete(t.failing, x.key)
	t.ended.Drop(x.key)
	x.ejected, x.doubted = false, false // what its last connections do has no effect any more
	if x.since != 0 {
		x.note()
	}
}

// Use sets the members of a frontend that clients are sent to. If these are fewer than before, ejections end.
func (t *Table) Use(f *Frontend, usable []*Member) {
	t.mu.Lock()
	defer t.mu.Unlock()
	for _, m := range f.usable {
		m.usable = false
	}
	for _, m := range usable {
		m.usable = true
	}
	f.usable = usable
	skipped := f.skipped()
	for _, m := range usable {
		if 2*skipped <= len(usable) {
			return
		}
		if m.isSkipped() {
			m.readmit()
			skipped--
		}
	}
}

// skipped returns how many of the usable backends are ejected or doubted. The caller holds Table.mu.
func (f *Frontend) skipped() (n int) {
	for _, m := range f.usable {
		if m.isSkipped() {
			n++
		}
	}
	return n
}

// Failures returns what was counted of each address with a failed connection, since the service has it. It costs
// O(result).
func (t *Table) Failures() map[vip.PassiveKey]reconcile.Failures {
	t.mu.Lock()
	defer t.mu.Unlock()
	out := make(map[vip.PassiveKey]reconcile.Failures, len(t.failing))
	for key, x := range t.failing {
		out[key] = reconcile.Failures{Last: x.failed, Reason: x.failure, Connects: x.connectFailures.Load(), Resets: x.earlyResets.Load(), Unanswered: x.unanswered.Load(), Retries: x.retries.Load(), Ejections: x.ejections.Load()}
	}
	return out
}
