package fleet

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
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

	heldFor     = 15 * time.Second // how long a blocking query waits for a change
	callTimeout = 5 * time.Second  // of any other request
	readTimeout = 60 * time.Second // of a full read

	// rereadEvery is the time between full reads, for what was written without the journal. A
	// fifth of it is jitter.
	rereadEvery = 5 * time.Minute
	// longAway is how long the journal may go unread before a full read replaces it.
	longAway = time.Minute

	// Reads of the journal are minPause apart on average, with bursts allowed, and noNewsPause
	// after one that returned early without a change.
	minPause    = time.Millisecond
	burst       = 50
	noNewsPause = 100 * time.Millisecond

	parallelGets = 8
)

// follower keeps the tables current. Its state belongs to its goroutine.
type follower struct {
	tree    *Tree
	cursor  uint64 // the journal up to this index is in the tables
	streams streams
	looked  time.Time     // when the journal was read last
	reread  time.Time     // when the next full read is due
	swept   time.Time     // when it searched for idle streams
	pace    *rate.Limiter // of reads of the journal
	// early says that the last blocking query returned before its time without a change. Consul
	// does that when a snapshot is restored; the next blocking query would wait until the index
	// has passed the former one.
	early bool
}

// verdict is the result of reading the journal.
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
			if next == inStep && time.Since(f.looked) > longAway {
				next = missed
			}
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

// step does a full read if todo requires one, otherwise it follows the journal. It returns the next
// todo.
func (f *follower) step(ctx context.Context, todo verdict, ask bool) (verdict, error) {
	asked := f.tree.takeRereads()
	if todo == inStep && (len(asked) > 0 || time.Now().After(f.reread)) {
		todo = missed
	}
	if todo == inStep {
		return f.look(ctx, ask)
	}
	f.early = false
	next, err := f.readAll(ctx, todo == restored)
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
	if f.looked.Sub(f.swept) > time.Minute && f.tree.Mine() {
		f.swept = f.looked
		f.sweep(ctx)
	}
	if away := f.tree.status.setFresh(); away > 0 {
		f.tree.log.Info("in touch with consul", "index", f.cursor, "after", away.Round(time.Millisecond))
		f.tree.o.Events.Add(event.Event{Kind: "fleet_fresh", Message: fmt.Sprintf("in touch with consul again after %v", away.Round(time.Millisecond))})
	}
}

// look reads the journal, with a blocking query unless ask is set, and applies what is new.
func (f *follower) look(ctx context.Context, ask bool) (verdict, error) {
	t := f.tree
	if err := f.pace.Wait(ctx); err != nil {
		return inStep, err
	}
	q, timeout := Query{}, callTimeout
	if !ask {
		q.After = max(f.cursor, 1)
		q.Wait = max(min(heldFor, time.Until(f.reread)), time.Millisecond)
		timeout = q.Wait + q.Wait/8 + callTimeout // Consul adds up to a sixteenth
	}
	held, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	if !ask {
		t.setKick(cancel)
	}
	began := time.Now()
	pairs, index, err := list(held, t.o.KV, t.paths.journal, q)
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
	t.mu.Lock()
	own := t.own
	t.mu.Unlock()
	news, next := f.streams.read(t.paths, pairs, f.cursor, own, time.Now())
	t.status.setJunk(inJournal, misplaced(news.junk))
	if next == inStep {
		next, err = f.complete(ctx, &news)
	}
	if err != nil {
		f.streams = nil // they are ahead of the tables
		return missed, err
	}
	if next != inStep {
		return next, nil
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	for _, c := range newest(news.changes) {
		t.apply(c)
	}
	f.pass(index)
	return inStep, nil
}

// pass moves the cursor. The caller holds the tree's lock.
func (f *follower) pass(index uint64) {
	f.cursor = index
	f.tree.high = max(f.tree.high, index)
	if f.tree.lookups == 0 {
		f.tree.known.drop(index)
	}
}

// complete reads the changes that are not in the heads of the journal.
func (f *follower) complete(ctx context.Context, n *news) (verdict, error) {
	t := f.tree
	for _, g := range n.gaps {
		slots, err := f.slots(ctx, g)
		if err != nil {
			return missed, err
		}
		if v := n.fill(t.paths, g, slots); v != inStep {
			return v, nil
		}
	}
	if len(n.gaps) > 0 || len(n.changes) > 1 {
		n.order()
	}
	return inStep, f.fetch(ctx, n.changes)
}

// slots reads the slots of a gap that exist.
func (f *follower) slots(ctx context.Context, g gap) ([]Pair, error) {
	t := f.tree
	ctx, cancel := context.WithTimeout(ctx, callTimeout)
	defer cancel()
	pairs := make([]*Pair, g.to-g.from+1)
	group, ctx := errgroup.WithContext(ctx)
	group.SetLimit(parallelGets)
	for i := range pairs {
		group.Go(func() (err error) {
			pairs[i], _, err = t.o.KV.Get(ctx, t.paths.slot(g.stream, g.from+uint64(i)), Query{})
			return err
		})
	}
	if err := group.Wait(); err != nil {
		return nil, err
	}
	var there []Pair
	for _, p := range pairs {
		if p != nil {
			there = append(there, *p)
		}
	}
	return there, nil
}

// sweep removes a stream that is no longer used.
func (f *follower) sweep(ctx context.Context) {
	t := f.tree
	name, head := f.streams.idle(f.looked)
	if name == "" {
		return
	}
	call, cancel := context.WithTimeout(ctx, callTimeout)
	defer cancel()
	pairs, _, err := list(call, t.o.KV, t.paths.stream(name), Query{})
	if err != nil {
		return // it is tried again a minute later
	}
	old := []Pair{{Key: t.paths.head(name), Index: head}}
	for _, p := range pairs {
		if e, err := decodeEntry(p.Value, p.Index); err == nil && t.paths.slot(name, e.seq) == p.Key {
			old = append(old, p)
		}
	}
	t.writer.sweep(ctx, old)
}

// fetch reads the values that the journal only names.
func (f *follower) fetch(ctx context.Context, changes []change) error {
	t := f.tree
	group, ctx := errgroup.WithContext(ctx)
	group.SetLimit(parallelGets)
	for i := range changes {
		if c := &changes[i]; c.fetch {
			group.Go(func() (err error) {
				*c, err = t.get(ctx, c.path)
				return err
			})
		}
	}
	return group.Wait()
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

// readAll reads the whole tree. With replace, it overwrites the tables; otherwise newer values,
// from commits since the read began, are kept.
func (f *follower) readAll(ctx context.Context, replace bool) (verdict, error) {
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
	// The journal first: what is written between the two reads is in the second one, and again in
	// the journal's next answer.
	entries, cursor, err := list(ctx, t.o.KV, t.paths.journal, Query{Consistent: true})
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
	if err := t.checkMark(ctx, r.mark()); err != nil {
		return inStep, err
	}
	former := f.streams
	f.streams = nil
	news, _ := f.streams.read(t.paths, entries, cursor, ownHead{}, time.Now())
	f.streams.keepTimes(former)
	t.status.setJunk(inJournal, misplaced(news.junk))
	t.mu.Lock()
	defer t.mu.Unlock()
	if replace {
		t.known = tombstones{index: map[string]uint64{}}
		t.high, t.own = 0, ownHead{}
		t.epoch++
	}
	t.merge(r, upTo, replace)
	f.pass(cursor)
	t.high = max(t.high, upTo)
	t.cache.settle(t)
	t.ready()
	f.reread = time.Now().Add(rereadEvery*9/10 + rand.N(rereadEvery/5))
	return inStep, nil
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
