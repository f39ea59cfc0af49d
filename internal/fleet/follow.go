package fleet

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"time"

	"golang.org/x/time/rate"

	"golang.org/x/sync/errgroup"

	"github.com/ironvip/ironvip/internal/backoff"
	"github.com/ironvip/ironvip/internal/event"
)

const (
	// GracePeriod is how long a starting tree waits for Consul before it uses the cache, and how
	// long a Commit waits for a Consul that has just become unavailable.
	GracePeriod = 2 * time.Second

	heldFor     = 5 * time.Minute  // how long a blocking query waits for a change
	callTimeout = 5 * time.Second  // of any other request
	readTimeout = 60 * time.Second // of a full read

	// rereadEvery is the time between full reads by the leader, for what was written without the
	// log. A fifth of it is jitter.
	rereadEvery = 5 * time.Minute
	// Reads of the log are minPause apart on average, with bursts allowed, and noNewsPause
	// after one that returned early without a change.
	minPause    = time.Millisecond
	burst       = 50
	noNewsPause = 100 * time.Millisecond

	parallelGets = 8
)

// follower keeps the tables current. Its state belongs to its goroutine.
type follower struct {
	tree   *Tree
	cursor uint64        // the index of the last answer
	looked time.Time     // when the log was read last
	reread time.Time     // when the next full read is due, if this host is the leader
	pace   *rate.Limiter // of reads of the log
	// early says that the last blocking query returned before its time without a change. Consul
	// does that when a snapshot is restored; the next blocking query would wait until the index
	// has passed the former one.
	early bool
}

// verdict is the result of reading the log.
type verdict int

const (
	inStep   verdict = iota
	missed           // entries were missed: read the whole tree
	restored         // a snapshot was restored: replace the tables
)

// errKicked ends a blocking query because Consul may be unavailable.
var errKicked = errors.New("asked again")

func (f *follower) run(ctx context.Context) {
	select {
	case <-f.tree.joined:
	case <-ctx.Done():
		return
	}
	wait := newBackoff()
	todo, ask := restored, true // ask: read at once, not with a blocking query
	for ctx.Err() == nil {
		next, err := f.step(ctx, todo, ask)
		switch {
		case ctx.Err() != nil:
			return
		case errors.Is(err, errKicked):
			ask = true
		case err != nil:
			f.tree.setStale(err)
			ask = true
			backoff.Nap(ctx, wait.Next(), f.tree.kicks)
		case next == inStep:
			f.fresh(ctx)
			wait.Reset()
			ask = f.early
		case todo != inStep: // twice in a row
			backoff.Sleep(ctx, wait.Next())
		}
		todo = next
	}
}

// step does a full read if todo requires one, otherwise it follows the log. It returns the next
// todo.
func (f *follower) step(ctx context.Context, todo verdict, ask bool) (verdict, error) {
	asked := f.tree.takeRereads()
	// The leader looks for writes that are not in the log, and appends them for the other hosts.
	search := todo == inStep && (len(asked) > 0 || f.tree.Mine() && time.Now().After(f.reread))
	if todo == inStep && !search {
		return f.look(ctx, ask)
	}
	f.early = false
	next, err := f.readAll(ctx, todo == restored, search)
	switch {
	case err != nil:
		answer(asked, err)
		return todo, err
	case next != inStep: // read again first
		f.tree.requeueRereads(asked)
	default:
		f.fresh(ctx) // before the survey, so that a start doesn't wait for it
		f.tree.survey(ctx)
		answer(asked, nil)
	}
	return next, nil
}

// setStale reports that the tables may be old.
func (t *Tree) setStale(err error) {
	advice, message := "", err.Error()
	if a, is := errors.AsType[*advised](err); is {
		advice, message = a.do, message+": "+a.do
	}
	if t.status.setStale(err.Error(), advice) {
		t.log.Warn("out of touch with consul: going on with what is known", "err", message)
		t.o.Events.Add(event.Event{Kind: "fleet_stale", Message: message})
	}
}

func (f *follower) fresh(ctx context.Context) {
	f.looked = time.Now()
	if away := f.tree.status.setFresh(); away > 0 {
		f.tree.log.Info("in touch with consul", "index", f.cursor, "after", away.Round(time.Millisecond))
		f.tree.o.Events.Add(event.Event{Kind: "fleet_fresh", Message: fmt.Sprintf("in touch with consul again after %v", away.Round(time.Millisecond))})
	}
}

// look reads the head of the log, with a blocking query unless ask is set, and applies what is new.
func (f *follower) look(ctx context.Context, ask bool) (verdict, error) {
	t := f.tree
	if err := f.pace.Wait(ctx); err != nil {
		return inStep, err
	}
	q, timeout := Query{}, callTimeout
	if !ask {
		q.After = max(f.cursor, 1)
		q.Wait = heldFor
		if t.Mine() {
			q.Wait = max(min(heldFor, time.Until(f.reread)), time.Millisecond)
		}
		timeout = q.Wait + q.Wait/8 + callTimeout // Consul adds up to a sixteenth
	}
	held, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	if !ask {
		t.setKick(cancel)
	}
	began, before := time.Now(), t.position()
	head, index, err := t.o.KV.Get(held, t.paths.head, q)
	t.setKick(nil)
	switch {
	case err != nil && errors.Is(held.Err(), context.Canceled) && ctx.Err() == nil:
		return inStep, errKicked
	case err != nil:
		return inStep, err
	case index < f.cursor:
		return restored, nil
	}
	if f.early = !ask && index == f.cursor && time.Since(began) < q.Wait/2; f.early {
		backoff.Sleep(ctx, noNewsPause)
	}
	at := t.position()
	var entries []entry
	if head == nil || head.Index < before.index || head.Index >= at.index { // otherwise this host has written since
		var next verdict
		if entries, next, err = t.since(ctx, at, head); err != nil || next != inStep {
			return next, err
		}
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	t.advance(entries)
	f.pass(index)
	return inStep, nil
}

// position returns the place in the log up to which the tables are current.
func (t *Tree) position() position {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.at
}

// since returns the entries of the log after a position, with all values. Head is the newest one,
// nil if there is none.
func (t *Tree) since(ctx context.Context, at position, head *Pair) (entries []entry, v verdict, err error) {
	if head == nil && at.index == 0 || head != nil && positionOf(head) == at {
		return nil, inStep, nil
	}
	newest, v, err := newestAfter(at, head)
	if err != nil { // reported by the full read
		return nil, missed, nil
	}
	if v != inStep {
		return nil, v, nil
	}
	ring := map[uint64]entry{}
	if newest.ring || newest.seq > at.seq+1 {
		if err := t.readRing(ctx, at.seq+1, newest.seq, ring); err != nil {
			return nil, missed, err
		}
	}
	if entries, v = chain(at, newest, ring); v != inStep {
		return nil, v, nil
	}
	return entries, inStep, t.fetch(ctx, entries)
}

// readRing reads the entries of a range of numbers that the ring has.
func (t *Tree) readRing(ctx context.Context, from, to uint64, ring map[uint64]entry) error {
	ctx, cancel := context.WithTimeout(ctx, callTimeout)
	defer cancel()
	for seq := from; seq <= to; seq += segmentSize - (seq-1)%segmentSize {
		pairs, _, err := list(ctx, t.o.KV, t.paths.segment(seq), Query{})
		if err != nil {
			return err
		}
		t.paths.addEntries(ring, pairs)
	}
	return nil
}

// fetch reads the values that the log only names.
func (t *Tree) fetch(ctx context.Context, entries []entry) error {
	group, ctx := errgroup.WithContext(ctx)
	group.SetLimit(parallelGets)
	for _, e := range entries {
		for i := range e.changes {
			if c := &e.changes[i]; c.fetch {
				group.Go(func() (err error) {
					*c, err = t.get(ctx, c.path)
					return err
				})
			}
		}
	}
	return group.Wait()
}

// advance applies entries of the log, as far as they are after the tables' position: this host may
// have written some of them meanwhile. The caller holds mu.
func (t *Tree) advance(entries []entry) {
	if len(entries) == 0 || entries[len(entries)-1].seq <= t.at.seq {
		return
	}
	for _, c := range newestChanges(entries) {
		t.apply(c)
	}
	t.at = entries[len(entries)-1].position
	t.high = max(t.high, t.at.index)
}

// pass moves the cursor. The caller holds the tree's lock.
func (f *follower) pass(index uint64) {
	f.cursor = index
	f.tree.high = max(f.tree.high, index)
	if f.tree.lookups == 0 {
		f.tree.known.drop(index)
	}
}

// Look reads one key into the folder's table, with everything that was written before the call. It
// returns within 20 seconds, as Commit does. The error wraps ErrUnavailable.
func (t *Tree) Look(ctx context.Context, folder, key string) error {
	ctx, cancel := context.WithTimeout(ctx, commitTimeout)
	defer cancel()
	// Not during a full read that replaces the tables: this value may be older.
	if err := t.reading.take(ctx); err != nil {
		return fmt.Errorf("%w: %w", ErrUnavailable, err)
	}
	defer t.reading.give()
	defer t.lookUp()()
	c, err := t.get(ctx, folder+"/"+key)
	if err != nil {
		return fmt.Errorf("%w: %w", ErrUnavailable, err)
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	t.apply(c)
	return nil
}

// lookUp keeps tombstones until end is called, after a read of single keys was applied.
func (t *Tree) lookUp() (end func()) {
	count := func(n int) {
		t.mu.Lock()
		defer t.mu.Unlock()
		t.lookups += n
	}
	count(1)
	return func() { count(-1) }
}

// get reads one path of the tree.
func (t *Tree) get(ctx context.Context, path string) (change, error) {
	ctx, cancel := context.WithTimeout(ctx, callTimeout)
	defer cancel()
	pair, index, err := t.o.KV.Get(ctx, t.paths.tree+path, Query{Consistent: true})
	switch {
	case err != nil:
		return change{}, err
	case pair == nil:
		return change{path: path, index: index}, nil
	}
	return change{path: path, index: pair.Index, value: notNil(pair.Value)}, nil
}

// notNil distinguishes an empty value from a removal.
func notNil(b []byte) []byte {
	if b == nil {
		return []byte{}
	}
	return b
}

// readAll reads the whole tree. With replace, it overwrites the tables; otherwise newer values, from
// commits since the read began, are kept. With search, it appends what the log lacks to it.
func (f *follower) readAll(ctx context.Context, replace, search bool) (verdict, error) {
	t := f.tree
	if replace {
		if err := t.reading.take(ctx); err != nil {
			return inStep, err
		}
		defer t.reading.give()
	}
	ctx, cancel := context.WithTimeout(ctx, readTimeout)
	defer cancel()
	t.mu.Lock()
	high := t.high
	t.mu.Unlock()
	// The head first: what is written between the two reads is in the second one, and again in the
	// log's next entries.
	head, cursor, err := t.o.KV.Get(ctx, t.paths.head, Query{Consistent: true})
	if err != nil {
		return inStep, err
	}
	r := t.newReading()
	index, err := t.o.KV.List(ctx, t.paths.tree, Query{Consistent: true}, r.take)
	r.wait()
	if err != nil {
		return inStep, err
	}
	upTo := max(cursor, index)
	if !replace && upTo < high {
		return restored, nil
	}
	at, junk := positionOf(head), map[string]error{}
	if head != nil && at.seq == 0 { // the next write overwrites it
		_, junk[t.paths.head] = decodeEntry(head.Value, head.Index)
	}
	t.status.setJunk(inLog, misplaced(junk))
	if err := t.checkMark(ctx, r.mark(), at); err != nil {
		return inStep, err
	}
	logged, err := t.loggedSince(ctx, at, search)
	if err != nil {
		return inStep, err
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	if replace {
		t.known = tombstones{index: map[string]uint64{}}
		t.high, t.at = 0, position{}
	}
	changed := t.merge(r, upTo, replace)
	if logged != nil {
		t.writer.publish(slices.DeleteFunc(changed, func(path string) bool { return logged[path] }))
	}
	if at.index > t.at.index || replace {
		t.at = at
	}
	f.pass(cursor)
	t.high = max(t.high, upTo)
	t.cache.settle(t)
	t.ready()
	f.reread = time.Now().Add(rereadEvery*9/10 + rand.N(rereadEvery/5))
	return inStep, nil
}

// loggedSince returns the paths that the log names after a position, or nil if these are not to be
// searched for, or can't be known. A full read that finds another path changed has found a write
// that is not in the log.
func (t *Tree) loggedSince(ctx context.Context, at position, search bool) (map[string]bool, error) {
	if !search {
		return nil, nil
	}
	head, _, err := t.o.KV.Get(ctx, t.paths.head, Query{Consistent: true})
	if err != nil {
		return nil, err
	}
	entries, v, err := t.since(ctx, at, head)
	if err != nil || v != inStep {
		return nil, err
	}
	paths := map[string]bool{}
	for _, e := range entries {
		for _, c := range e.changes {
			paths[c.path] = true
		}
	}
	return paths, nil
}

// positionOf returns the position of a reader that has read everything up to the head. If that can't
// be decoded or doesn't exist, the next entry is the first of a new log.
func positionOf(head *Pair) position {
	if head == nil {
		return position{}
	}
	e, err := decodeEntry(head.Value, head.Index)
	if err != nil {
		return position{index: head.Index}
	}
	return e.position
}

// setKick sets the function that ends the blocking query, so that Consul is read at once.
func (t *Tree) setKick(cancel context.CancelFunc) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.held = cancel; cancel != nil && len(t.rereads) > 0 {
		cancel()
	}
}

// kick makes the follower read Consul at once, at most twice a second. It is called when Consul was
// found unavailable, or is needed.
func (t *Tree) kick() {
	t.mu.Lock()
	defer t.mu.Unlock()
	if time.Since(t.lastKick) < 500*time.Millisecond {
		return
	}
	t.lastKick = time.Now()
	t.interrupt()
}

// interrupt ends the follower's wait. The caller holds mu.
func (t *Tree) interrupt() {
	if t.held != nil {
		t.held()
	}
	select {
	case t.kicks <- struct{}{}:
	default:
	}
}
