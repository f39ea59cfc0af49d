package fleet

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/ironvip/ironvip/internal/backoff"
	"github.com/ironvip/ironvip/internal/event"
)

const (
	// Patience is how long a starting tree waits for Consul before it begins with
	// what it remembers, and how long a Commit waits for a Consul that has just
	// gone away.
	Patience = 2 * time.Second

	heldFor     = 15 * time.Second // how long a question waits for a change
	callTimeout = 5 * time.Second  // how long any other may take
	readTimeout = 60 * time.Second // and the reading of everything

	// rereadEvery is when everything is read anew, for what was written past the
	// journal. A fifth of it is drawn.
	rereadEvery = 5 * time.Minute
	// longAway is after how long without a look everything is read anew.
	longAway = time.Minute

	// Looks at the journal are minPause apart in the long run, with a burst
	// allowed, and noNewsPause after one that came back early with nothing new.
	minPause    = time.Millisecond
	burst       = 50
	noNewsPause = 100 * time.Millisecond

	parallelGets = 8
)

// follower keeps the tables in step with Consul. Its state belongs to its
// goroutine.
type follower struct {
	tree   *Tree
	cursor uint64 // all of the journal up to here is in the tables
	lanes  lanes
	looked time.Time // when it was in touch last
	reread time.Time // when to read everything next
	swept  time.Time // when it looked for idle lanes
	bucket bucket
	// early says that the last held question came back before its time and with
	// nothing new. That is what Consul does when a snapshot is restored; asked again
	// it would wait until the index has passed the former one.
	early bool
}

// verdict is what a look at the journal comes to.
type verdict int

const (
	inStep   verdict = iota
	missed           // some entries are gone unread: the tree has to be read
	restored         // the store's past has changed: what is known counts no more
)

// errKicked ends a held question because somebody has reason to doubt that
// Consul is there.
var errKicked = errors.New("asked again")

func (f *follower) run(ctx context.Context) {
	select {
	case <-f.tree.joined:
	case <-ctx.Done():
		return
	}
	wait := newBackoff()
	todo, ask := restored, true // ask: don't wait for a change
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

// step does what there is to do, or waits for a change, and returns what to do
// next.
func (f *follower) step(ctx context.Context, todo verdict, ask bool) (verdict, error) {
	asked := f.tree.whoAsked()
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
	case next != inStep: // not this time
		f.tree.askAgain(asked)
	default:
		f.fresh(ctx) // before the survey, for which nobody who starts has to wait
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

// look reads the journal, if ask is not set once it has changed, and brings
// what is new in it into the tables.
func (f *follower) look(ctx context.Context, ask bool) (verdict, error) {
	t := f.tree
	if !backoff.Sleep(ctx, f.bucket.take(time.Now())) {
		return inStep, ctx.Err()
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
	news, next := f.lanes.read(t.paths, pairs, f.cursor, own, time.Now())
	t.status.setJunk(inJournal, misplaced(news.junk))
	if next == inStep {
		next, err = f.complete(ctx, &news)
	}
	if err != nil {
		f.lanes = nil // what was noted as read is not
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
		f.tree.known.bury(index)
	}
}

// complete reads what the heads of the journal don't have of the news.
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

// slots reads the slots that the entries of a gap should be in, as far as there is
// anything.
func (f *follower) slots(ctx context.Context, g gap) ([]Pair, error) {
	t := f.tree
	ctx, cancel := context.WithTimeout(ctx, callTimeout)
	defer cancel()
	pairs := make([]*Pair, g.to-g.from+1)
	group, ctx := errgroup.WithContext(ctx)
	group.SetLimit(parallelGets)
	for i := range pairs {
		group.Go(func() (err error) {
			pairs[i], _, err = t.o.KV.Get(ctx, t.paths.slot(g.lane, g.from+uint64(i)), Query{})
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

// sweep has a lane removed that nobody uses any more.
func (f *follower) sweep(ctx context.Context) {
	t := f.tree
	name, head := f.lanes.idle(f.looked)
	if name == "" {
		return
	}
	call, cancel := context.WithTimeout(ctx, callTimeout)
	defer cancel()
	pairs, _, err := list(call, t.o.KV, t.paths.lane(name), Query{})
	if err != nil {
		return // there is another time
	}
	old := []Pair{{Key: t.paths.head(name), Index: head}}
	for _, p := range pairs {
		if e, err := decodeEntry(p.Value, p.Index); err == nil && t.paths.slot(name, e.seq) == p.Key {
			old = append(old, p)
		}
	}
	t.writer.sweep(ctx, old)
}

// fetch reads what the journal only names.
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

// Look has the folder's table know what is at key by now, also what another host has
// written a moment ago. It returns within 20 seconds, as Commit does. The error wraps
// ErrUnavailable.
func (t *Tree) Look(ctx context.Context, folder, key string) error {
	ctx, cancel := context.WithTimeout(ctx, commitTimeout)
	defer cancel()
	// Not while everything is read anew to replace what is known: this may be older.
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

// lookUp has graves kept until the reading of single keys is in the tables, which
// its result says.
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

// notNil keeps an empty value from being taken for none.
func notNil(b []byte) []byte {
	if b == nil {
		return []byte{}
	}
	return b
}

// readAll reads everything. With replace set, what is known until now doesn't
// count; else what a commit has written since is kept.
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
	// The journal first: what is written between the two readings is in the
	// second one, and will be in the journal's next answer.
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
	former := f.lanes
	f.lanes = nil
	news, _ := f.lanes.read(t.paths, entries, cursor, ownHead{}, time.Now())
	f.lanes.remember(former)
	t.status.setJunk(inJournal, misplaced(news.junk))
	t.mu.Lock()
	defer t.mu.Unlock()
	if replace {
		t.known = graves{index: map[string]uint64{}}
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

// setKick sets what ends the held question, so that Consul is asked at once.
func (t *Tree) setKick(cancel context.CancelFunc) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.held = cancel; cancel != nil && len(t.asked) > 0 {
		cancel()
	}
}

// kick has Consul asked at once, at most twice a second: somebody found it
// missing, or needs it.
func (t *Tree) kick() {
	t.mu.Lock()
	defer t.mu.Unlock()
	if time.Since(t.lastKick) < 500*time.Millisecond {
		return
	}
	t.lastKick = time.Now()
	t.interrupt()
}

// interrupt ends whatever the follower waits for. The caller holds mu.
func (t *Tree) interrupt() {
	if t.held != nil {
		t.held()
	}
	select {
	case t.kicks <- struct{}{}:
	default:
	}
}

// bucket spaces out what may come in bursts.
type bucket struct {
	tokens float64
	filled time.Time
}

// take takes a token and returns how long to wait for it.
func (b *bucket) take(now time.Time) time.Duration {
	if b.filled.IsZero() {
		b.tokens = burst
	}
	b.tokens = min(burst, b.tokens+float64(now.Sub(b.filled))/float64(minPause)) - 1
	b.filled = now
	if b.tokens >= 0 {
		return 0
	}
	return time.Duration(-b.tokens * float64(minPause))
}
