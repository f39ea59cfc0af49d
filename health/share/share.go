// Package share divides the health probes of a fleet among its hosts, and combines what they find.
//
// It is between the health stage and the probe engine: the stage starts and stops targets, and reads
// the table of results that this package writes. A large fleet has three probers for each target,
// and each host on which a backend of the target runs probes it, too. A host that probes a target
// uses its own result, because its own network path matters. The others use the verdict on which the
// probers agree, a row of the fleet's tree. Only changes are written.
//
// In a small fleet, and with Probers "all", each host probes everything itself, and nothing is
// shared. A host that is cut off from the store probes everything itself at a reduced rate.
// docs/decisions/11 has the reasons and the costs.
//
// Source code organization:
//
//   - assign.go: which hosts probe a target, as pure code
//   - verdict.go: the rows, and their keys
//   - ballot.go: what a prober writes, as pure code
//   - share.go: the state, and the loop that follows the tables
//   - policy.go: which targets this host probes, and which result counts
//   - write.go: when votes are due, and writing them
//   - dispute.go: where it finds something else than the fleet
package share

import (
	"cmp"
	"context"
	"log/slog"
	"sync"
	"time"

	"github.com/ironvip/ironvip/fleet"
	"github.com/ironvip/ironvip/fleet/roster"
	"github.com/ironvip/ironvip/health/probe"
	"github.com/ironvip/ironvip/internal/delayqueue"
	"github.com/ironvip/ironvip/internal/parallel"
	"github.com/ironvip/ironvip/internal/table"
	"github.com/ironvip/ironvip/internal/wake"
	"github.com/ironvip/ironvip/vip"
)

// Engine runs the probes of this host. A *probe.Engine implements it.
type Engine interface {
	Start(probe.Target, probe.Use)
	Stop(probe.Target)
	Run(context.Context) error
}

// Tree is the part of a *fleet.Tree that is used beside the rows.
type Tree interface {
	fleet.Committer
	StaleSince() (why, advice string, since time.Time)
	StatusChanged() <-chan struct{}
}

// Options are the dependencies of a Share. All are required except Log.
type Options struct {
	Node    string
	Probers Probers

	Engine  Engine
	Own     table.Reader[probe.Target, probe.Result] // what the engine writes
	Results *table.Table[probe.Target, probe.Result] // of probe.NewResults; the share is its only writer

	Members  table.Reader[string, roster.Row]
	WasThere func() bool // whether this host was among them before this run; called by Run
	Verdicts *fleet.Collection[Verdict]
	Tree     Tree
	Log      *slog.Logger
}

// Share implements the prober of a health stage. It is safe for concurrent use.
type Share struct {
	Options
	wake     wake.Signal   // the stage has started or stopped a target
	assigned chan struct{} // closed: see Assigned

	mu      sync.Mutex
	members assignment
	targets map[probe.Target]*item // those of the stage
	items   map[string]*item       // those and those of the rows, by key
	grouped [groups]map[*item]struct{}
	due     delayqueue.Queue[*item] // items that have to be looked at again
	mode    mode
	changed map[*item]struct{} // with another result; not published yet
	next    time.Time          // the earliest next publication
	votes   votes

	probes   int                // the items that this host probes
	disputed map[*item]struct{} // see item.disputes
}

// item is a target, or a row of a target that this host doesn't have.
type item struct {
	key    string
	group  int
	target probe.Target // the zero Target: of a row only

	namespace string // of the target

	wanted  bool      // by the stage
	local   bool      // a backend of it runs on this host
	since   time.Time // when wanted became this
	probing int       // how many times longer the interval is; 0: this host doesn't probe it

	own      probe.Result // while probing
	ownAt    time.Time    // when own.Health became this, on this host
	inferred bool         // own is where the probes began, and not yet their result

	row      *Verdict  // nil: none
	index    uint64    // of the row
	judgedAt time.Time // when row.Health became this, on this host
	lostAt   time.Time // when there was no verdict any more

	result  probe.Result // as published
	writing bool         // a write of the row is in progress
}

const (
	// publishPause is the least time between two writes of results: a mass failure reaches a host in
	// many entries of the log, and each write costs downstream work.
	publishPause = 200 * time.Millisecond
	// idle is the longest time between two turns.
	idle = time.Hour
)

// New returns a share without targets. It probes while Run runs.
func New(o Options) *Share {
	if o.Log == nil {
		o.Log = slog.New(slog.DiscardHandler)
	}
	s := &Share{Options: o, wake: wake.New(), assigned: make(chan struct{}), members: newAssignment(o.Probers.count()), targets: map[probe.Target]*item{},
		items: map[string]*item{}, changed: map[*item]struct{}{}, disputed: map[*item]struct{}{}}
	for g := range s.grouped {
		s.grouped[g] = map[*item]struct{}{}
	}
	s.mode.hosts = map[string]struct{}{}
	s.votes = newVotes()
	return s
}

// Start adds a target, with its row in the results when it returns. For a target that is already there, it
// changes whether one of its backends runs on this host.
func (s *Share) Start(t probe.Target, use probe.Use) {
	s.mu.Lock()
	defer s.mu.Unlock()
	it := s.targets[t]
	if it == nil {
		it = s.item(Key(t))
		it.target, it.namespace, it.wanted, it.since = t, use.Namespace, true, time.Now()
		if !it.row.known() {
			it.lostAt = it.since
		}
		s.targets[t] = it
		it.result = it.first(use.Begins)
		s.Results.Set(it.result)
	}
	it.local = use.Local
	s.look(it)
	s.wake.Set()
}

// first returns the result that a target begins with: the verdict, or that of an earlier run.
func (it *item) first(former probe.Result) probe.Result {
	switch {
	case it.row.known():
		return it.row.result(it.target)
	case former.Health == 0:
		former = probe.Result{Health: vip.Unknown, Since: vip.InstantOf(time.Now())}
	}
	former.Target, former.Origin = it.target, probe.Own
	return former
}

// Stop removes a target and its row of the results.
func (s *Share) Stop(t probe.Target) {
	s.mu.Lock()
	defer s.mu.Unlock()
	it := s.targets[t]
	if it == nil {
		return
	}
	it.wanted, it.local, it.since = false, false, time.Now()
	s.look(it) // ends its probes
	delete(s.targets, t)
	delete(s.changed, it)
	it.target, it.result = probe.Target{}, probe.Result{}
	s.Results.Delete(t)
	s.drop(it)
	s.wake.Set()
}

// Assigned is closed when Run knows which targets this host probes, and probes them. A host that is new
// has to wait for others, up to firstHosts, or in a large fleet, until its leader has listed it.
func (s *Share) Assigned() <-chan struct{} { return s.assigned }

// item returns the item of a key, with the row that there is.
func (s *Share) item(key string) *item {
	it := s.items[key]
	if it == nil {
		it = &item{key: key, group: groupOf(key), since: time.Now()}
		s.items[key] = it
		s.grouped[it.group][it] = struct{}{}
		if row, ok := s.Verdicts.Get(key); ok {
			it.set(&row.Value, row.Index, it.since)
		}
	}
	return it
}

// drop forgets an item that has no target and no row.
func (s *Share) drop(it *item) {
	if it.wanted || it.row != nil || it.writing {
		return
	}
	delete(s.items, it.key)
	delete(s.grouped[it.group], it)
	s.due.Drop(it)
}

// Run probes and votes until the context ends, and returns its error, or that of the engine.
func (s *Share) Run(ctx context.Context) error {
	running, ctx := parallel.NewGroup(ctx)
	running.Go(func() error { return cmp.Or(s.Engine.Run(ctx), ctx.Err()) })
	running.Go(func() error { return s.loop(ctx, running) })
	return running.Wait()
}

// loop follows the tables, and votes, until the context ends.
func (s *Share) loop(ctx context.Context, running parallel.Group) error {
	members, rows, own := s.Members.Watch(), s.Verdicts.Rows().Watch(), s.Own.Watch()
	defer members.Close()
	defer rows.Close()
	defer own.Close()
	timer := time.NewTimer(0)
	defer timer.Stop()
	s.mu.Lock()
	s.mode.began, s.mode.fresh = time.Now(), !s.WasThere()
	s.mu.Unlock()
	for assigned := false; ctx.Err() == nil; {
		touch := s.Tree.StatusChanged() // before the status is read
		s.mu.Lock()
		hosts, hostsChanged := members.TryNext()
		for i := range hosts {
			s.memberChanged(&hosts[i])
		}
		s.setMode(time.Now())
		verdicts, verdictsChanged := rows.TryNext()
		for i := range verdicts {
			s.rowChanged(&verdicts[i])
		}
		results, resultsChanged := own.TryNext()
		for i := range results {
			s.ownChanged(&results[i])
		}
		now := time.Now()
		for it := range s.due.Due(now) {
			s.due.Drop(it)
			s.look(it)
		}
		send := s.takeVotes(now)
		next := s.publish(now)
		if _, at, ok := s.due.First(); ok {
			next = earliest(next, at)
		}
		next = earliest(next, earliest(s.mode.next, s.nextVotes()))
		known := s.isAssigned()
		s.mu.Unlock()
		if len(send) > 0 {
			running.Run(ctx, func(ctx context.Context) { s.commit(ctx, send) })
		}
		if len(hosts)+len(verdicts)+len(results) > 0 {
			continue
		}
		if known && !assigned {
			assigned = true
			close(s.assigned)
		}
		timer.Reset(max(time.Until(next), time.Millisecond))
		select {
		case <-ctx.Done():
		case <-timer.C:
		case <-s.wake:
		case <-touch:
		case <-hostsChanged:
		case <-verdictsChanged:
		case <-resultsChanged:
		case r := <-s.votes.done:
			s.sent(r)
		}
	}
	return context.Cause(ctx)
}

// earliest returns the earlier of two times; the zero Time is never.
func earliest(a, b time.Time) time.Time {
	if a.IsZero() || !b.IsZero() && b.Before(a) {
		return b
	}
	return a
}

// memberChanged takes in a host that joins or leaves.
func (s *Share) memberChanged(c *table.Change[roster.Row]) {
	node := roster.NodeOf(c.Value.Key)
	if node == "" {
		return
	}
	if c.Deleted {
		delete(s.mode.hosts, node)
	} else {
		s.mode.hosts[node] = struct{}{}
	}
	change := s.members.add
	if c.Deleted || c.Value.Value.NoProbes {
		change = s.members.remove
	}
	for _, g := range change(node) {
		for it := range s.grouped[g] {
			s.look(it)
		}
	}
}

// rowChanged takes in another verdict.
func (s *Share) rowChanged(c *table.Change[Row]) {
	if c.Deleted && s.items[c.Value.Key] == nil {
		return
	}
	it, now := s.item(c.Value.Key), time.Now()
	if c.Deleted {
		it.set(nil, 0, now)
	} else {
		it.set(&c.Value.Value, c.Value.Index, now)
	}
	s.look(it)
	s.drop(it)
}

// set sets the row of an item; nil if there is none.
func (it *item) set(row *Verdict, index uint64, now time.Time) {
	if it.row.known() && !row.known() {
		it.lostAt = now
	}
	if row != nil && (it.row == nil || it.row.Health != row.Health) {
		it.judgedAt = now
	}
	it.row, it.index = row, index
}

// ownChanged takes in a result of this host's probes.
func (s *Share) ownChanged(c *table.Change[probe.Result]) {
	it := s.targets[c.Value.Target]
	if it == nil || it.probing == 0 || c.Deleted {
		return
	}
	s.setOwn(it, c.Value, it.inferred && c.Value == it.own)
	s.look(it)
}

// setOwn sets the result of this host's probes. With inferred, it is where they begin.
func (s *Share) setOwn(it *item, r probe.Result, inferred bool) {
	if it.own.Health != r.Health {
		it.ownAt = time.Now()
	}
	it.own, it.inferred = r, inferred
}

// publish writes changed results if it is time, and returns when to call it again at the latest.
func (s *Share) publish(now time.Time) (next time.Time) {
	switch {
	case len(s.changed) == 0:
		return now.Add(idle)
	case now.Before(s.next):
		return s.next
	}
	rows := make([]probe.Result, 0, len(s.changed))
	for it := range s.changed {
		rows = append(rows, it.result)
	}
	s.Results.SetAll(rows)
	clear(s.changed)
	s.next = now.Add(publishPause)
	return now.Add(idle)
}

// look decides again about an item: whether to probe it, its result, and its vote. It costs O(1).
func (s *Share) look(it *item) {
	now := time.Now()
	s.setProbing(it, now)
	if it.disputes() {
		s.disputed[it] = struct{}{}
	} else {
		delete(s.disputed, it)
	}
	if it.wanted {
		if r := s.resultOf(it); r != it.result {
			it.result = r
			s.changed[it] = struct{}{}
		}
	}
	s.plan(it, now)
}
