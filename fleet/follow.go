package fleet

import (
	"context"
	"errors"
	"fmt"
	"time"

	"golang.org/x/time/rate"

	"github.com/ironvip/ironvip/fleet/kv"
	"github.com/ironvip/ironvip/fleet/treelog"
	"github.com/ironvip/ironvip/internal/backoff"
	"github.com/ironvip/ironvip/internal/event"
)

const (
	// GracePeriod is how long a starting tree waits for the store before it uses the cache, and how
	// long a Commit waits for a store that has just become unavailable.
	GracePeriod = 2 * time.Second

	readTimeout = 60 * time.Second // of a full read

	// Reads of the log are apart on average by perHostPause for each host of the fleet, within
	// bounds. The first ones after a quiet time are not delayed.
	perHostPause = 500 * time.Microsecond
	minPause     = time.Millisecond
	maxPause     = 2 * time.Second
	burst        = 10
)

// follower keeps the tables current. Its state belongs to its goroutine.
type follower struct {
	tree   *Tree
	cursor uint64        // the index of the last answer
	pace   *rate.Limiter // of reads of the log
	early  bool          // the last blocking query returned before its time without a change

	next time.Time // when to search, if this host is the leader
}

// verdict is the result of reading the log.
type verdict int

const (
	inStep   verdict = iota
	lost             // the log doesn't go on where the tables are: replace them by the whole tree
	doubtful         // the answer may be old: read the log again from Consul's leader
)

// errKicked ends a blocking query because the store may be unavailable.
var errKicked = errors.New("asked again")

func (f *follower) run(ctx context.Context) {
	select {
	case <-f.tree.Joined():
	case <-ctx.Done():
		return
	}
	wait := kv.NewBackoff()
	todo, ask := lost, true // ask: read at once, not with a blocking query
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
		case next == doubtful:
			next, ask = inStep, true
		case next == inStep:
			f.fresh()
			wait.Reset()
			ask = f.early
		case todo != inStep: // twice in a row
			backoff.Sleep(ctx, wait.Next())
		}
		todo = next
	}
}

// step reads the whole tree if that is to be done, and otherwise follows the log. It returns the
// next todo.
func (f *follower) step(ctx context.Context, todo verdict, ask bool) (next verdict, err error) {
	if ask || todo != inStep {
		f.tree.setAsked(false) // by this read
	}
	if todo != inStep {
		f.early = false
		if next, err = f.replace(ctx); err != nil {
			answer(f.tree.takeRereads(), err)
			return todo, err
		}
		return next, nil
	}
	if asked := f.tree.takeRereads(); len(asked) > 0 || f.isDue() {
		if next, err = f.search(ctx, asked); err != nil || next != inStep {
			return next, err
		}
	}
	return f.look(ctx, ask)
}

func (f *follower) fresh() {
	if away := f.tree.status.SetFresh(); away > 0 {
		f.tree.log.Info("in touch with "+f.tree.o.KV.Engine().Name, "index", f.cursor, "after", away.Round(time.Millisecond))
		f.tree.o.Events.Add(event.Event{Kind: "fleet_fresh", Message: fmt.Sprintf("in touch with %s again after %v", f.tree.o.KV.Engine().Name, away.Round(time.Millisecond))})
	}
}

// look reads the head of the log, with a blocking query unless ask is set, and applies what is new.
func (f *follower) look(ctx context.Context, ask bool) (verdict, error) {
	t := f.tree
	f.pace.SetLimit(paceOf(t.Hosts()))
	if err := f.pace.Wait(ctx); err != nil {
		return inStep, err
	}
	q := kv.Query{Consistent: true}
	held, cancel := context.WithCancel(ctx)
	defer cancel()
	if !ask {
		t.setHeld(cancel) // before what the query depends on is read: it may change
		q = kv.Query{After: max(f.cursor, 1), Wait: kv.HeldFor, Stale: t.trust.Any()}
		if due := f.due(); !due.IsZero() {
			q.Wait = max(min(q.Wait, time.Until(due)), time.Millisecond)
		}
	}
	before := t.position()
	head, index, early, err := kv.Watch(held, t.o.KV, t.keys.Head, q)
	t.setHeld(nil)
	switch {
	case err != nil && held.Err() != nil && ctx.Err() == nil:
		return inStep, errKicked
	case err != nil:
		return inStep, err
	case index < f.cursor:
		return f.verify(q, lost), nil
	}
	f.early = early
	at := t.position()
	var entries []treelog.Entry
	if head == nil || head.Index < before.Index || head.Index >= at.Index { // otherwise this host has written since
		var ok bool
		switch entries, ok, err = t.store.Since(ctx, at, head, q); {
		case err != nil:
			return inStep, err
		case !ok:
			return f.verify(q, lost), nil
		}
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	t.advance(entries)
	f.pass(index)
	return inStep, nil
}

// verify returns what to do after a verdict. A verdict on an answer of a server that may be behind
// is worth nothing: read again from Consul's leader, consistently. A server that has just become
// the leader after all were restarted may not have applied its log yet.
func (f *follower) verify(q kv.Query, v verdict) verdict {
	if q.Consistent || v == inStep {
		return v
	}
	if q.Stale {
		f.tree.trust.Lagged()
	}
	return doubtful
}

// paceOf is the rate of reads of the log by each of that many hosts. Consul takes a tenth of a
// millisecond of CPU for one, and in a storm of changes another one or two for the entries before
// the newest. At this rate all hosts together take less than one of its processors.
func paceOf(hosts int) rate.Limit {
	return rate.Every(min(max(time.Duration(hosts)*perHostPause, minPause), maxPause))
}

// pass moves the cursor. The caller holds the tree's lock.
func (f *follower) pass(index uint64) {
	f.cursor = index
	f.tree.high = max(f.tree.high, index)
	if f.tree.lookups == 0 {
		f.tree.known.drop(index)
	}
}

// setHeld sets the function that ends the blocking query, nil after it. The query ends at once if
// the store is to be asked.
func (t *Tree) setHeld(end context.CancelFunc) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.held = end; end != nil && t.asked {
		end()
	}
}

// setAsked sets whether the store is to be asked, instead of waiting for a change.
func (t *Tree) setAsked(asked bool) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.asked = asked
}

// kick makes the follower read the store at once, at most twice a second. It is called when the store was
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

// interrupt makes the follower read the store at once. The caller holds mu.
func (t *Tree) interrupt() {
	t.asked = true
	t.endHeld()
	t.kicks.Set()
}

// wake makes the follower ask the store once its present request has ended, at once if that is a blocking
// query.
func (t *Tree) wake() {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.asked = true
	t.endHeld()
}

// endHeld ends the blocking query. The caller holds mu.
func (t *Tree) endHeld() {
	if t.held != nil {
		t.held()
	}
}
