package fleet

import (
	"context"
	"math/rand/v2"
	"slices"
	"time"

	"github.com/ironvip/ironvip/fleet/consulkv"
	"github.com/ironvip/ironvip/fleet/treelog"
)

const (
	// searchEvery is the time between the leader's searches for what was written without the log,
	// and searchSoon that to the first one after a start from a snapshot: Consul remembers a removal
	// for 15 minutes only. A fifth of it is jitter.
	searchEvery = 5 * time.Minute
	searchSoon  = 20 * time.Second
	// searchAgain is the time after a search that has failed.
	searchAgain = time.Minute
)

// search is a comparison of the tables with the whole tree, for what was written without the log,
// and a survey of foreign keys. It reads in a goroutine of its own, because a slow Consul takes up to
// readTimeout for that, and the follower goes on meanwhile. The follower merges the result: the
// tables keep what they got since then.
type search struct {
	tree     *Tree
	compares bool         // otherwise it only surveys
	asked    []chan error // callers of Reread
	leads    bool         // this host was the leader at the start
	differed bool         // the leader's digests were others
	high     uint64       // what the tables had reached at the start
	silent   bool         // the follower waits for it
	cancel   context.CancelFunc
	forget   func() // ends the time for which tombstones are kept

	done chan struct{} // closed once the rest is set

	unchanged bool // the tree is as at the last search: there is nothing to merge
	whole     wholeTree
	logged    map[string]bool // paths that the log names after that; nil: not known
	err       error
	barred    bool // err says that the tree isn't this fleet's
}

// startSearch starts a search if one is due, was asked for, or this host is a new leader, and none is
// in progress.
func (f *follower) startSearch(ctx context.Context) {
	t := f.tree
	if f.search != nil {
		return
	}
	s := &search{tree: t, leads: t.Mine(), asked: t.takeRereads(), silent: f.barred, done: make(chan struct{})}
	s.compares = len(s.asked) > 0 || f.isDue()
	elected := s.leads && !f.leads
	if f.leads = s.leads; !s.compares && !elected {
		return
	}
	s.forget = t.lookUp()
	t.mu.Lock()
	if s.high = t.high; s.compares { // digests that arrive from now on may know more than this search
		s.differed, t.compared.differs = !t.compared.differs.IsZero(), time.Time{}
	}
	t.mu.Unlock()
	ctx, s.cancel = context.WithTimeout(ctx, readTimeout)
	f.search = s
	f.searches.Run(ctx, s.run)
}

func (s *search) run(ctx context.Context) {
	defer s.cancel()
	if s.compares {
		s.err = s.read(ctx)
	}
	if s.err == nil && (s.leads || len(s.asked) > 0) {
		s.tree.survey(ctx)
	}
	close(s.done)
	if !s.silent {
		s.tree.mu.Lock()
		defer s.tree.mu.Unlock()
		s.tree.interrupt()
	}
}

// read reads the whole tree. The leader doesn't, unless it was asked to, if the tree has not changed
// since it did so last.
func (s *search) read(ctx context.Context) (err error) {
	t := s.tree
	if s.leads && len(s.asked) == 0 {
		_, index, err := t.o.KV.Level(ctx, t.keys.Tree)
		if err != nil {
			return err
		}
		t.mu.Lock()
		s.unchanged = index == t.compared.searched && !s.differed
		t.mu.Unlock()
		if s.unchanged {
			return nil
		}
	}
	if s.whole, err = t.readKeys(ctx); err != nil {
		return err
	}
	if err = t.verify(ctx, &s.whole); err != nil {
		s.barred = ctx.Err() == nil
		return err
	}
	if s.leads || len(s.asked) > 0 {
		s.logged, err = t.loggedSince(ctx, s.whole.at)
	}
	return err
}

// abandonSearch ends a search in progress before the tables are replaced: its result is about what
// they were. Its callers get another one.
func (f *follower) abandonSearch() {
	s := f.search
	if s == nil {
		return
	}
	f.search = nil
	s.cancel()
	s.forget()
	f.tree.requeueRereads(s.asked)
}

// finishSearch merges the result of a search if it has ended. A search that fails is repeated
// later, because the log may be readable. An error says that the tree isn't this fleet's.
func (f *follower) finishSearch() (verdict, error) {
	s := f.search
	if s == nil {
		return inStep, nil
	}
	select {
	case <-s.done:
	default:
		return inStep, nil
	}
	f.search = nil
	defer s.forget()
	switch f.barred = s.barred; {
	case s.err != nil:
		if !s.barred {
			f.scheduleSearch(searchAgain)
		}
		f.differAgain(s)
		answer(s.asked, s.err)
		if s.barred {
			return inStep, s.err
		}
	case !s.compares:
	case !s.unchanged && s.whole.index < s.high: // commits since then are not in it: a backup was restored
		f.tree.requeueRereads(s.asked)
		return lost, nil
	default:
		if !s.unchanged {
			f.merge(s)
		}
		f.scheduleSearch(searchEvery)
		answer(s.asked, nil)
	}
	return inStep, nil
}

// differAgain has a search repeated that the digests have caused.
func (f *follower) differAgain(s *search) {
	f.tree.mu.Lock()
	defer f.tree.mu.Unlock()
	if s.differed && f.tree.compared.differs.IsZero() {
		f.tree.compared.differs = time.Now()
		if !s.barred {
			f.tree.compared.differs = time.Now().Add(searchAgain)
		}
	}
}

// merge corrects the tables. If this host was the leader or was asked to search, it appends what it
// has found to the log for the other hosts, also if another host is the leader by now: that one has
// not found it yet.
func (f *follower) merge(s *search) {
	t, w := f.tree, s.whole
	t.mu.Lock()
	defer t.mu.Unlock()
	changed := t.merge(w.reading, w.index, false) // newer values in the tables are kept
	if s.logged != nil {
		t.writer.publish(slices.DeleteFunc(changed, func(path string) bool { return s.logged[path] }), w.treeIndex)
	}
	if w.at.Index > t.at.Index { // otherwise the follower is further
		t.at = w.at
		f.pass(w.cursor)
	}
	t.high = max(t.high, w.index)
}

func (f *follower) scheduleSearch(after time.Duration) {
	f.next = time.Now().Add(after*9/10 + rand.N(after/5))
}

// due returns when the tables are to be compared with the tree: regularly on the leader, and on a
// host with other digests. The zero time means never, or that a search is in progress.
func (f *follower) due() time.Time {
	if f.search != nil {
		return time.Time{}
	}
	f.tree.mu.Lock()
	due := f.tree.compared.differs
	f.tree.mu.Unlock()
	if f.tree.Mine() && (due.IsZero() || f.next.Before(due)) {
		due = f.next
	}
	return due
}

func (f *follower) isDue() bool {
	due := f.due()
	return !due.IsZero() && !time.Now().Before(due)
}

// loggedSince returns the paths that the log names after a position. A full read that finds another
// path changed has found a write without the log. It returns nil if the log doesn't reach back.
func (t *Tree) loggedSince(ctx context.Context, at treelog.Position) (map[string]bool, error) {
	head, _, err := t.o.KV.Get(ctx, t.keys.Head, consulkv.Query{Consistent: true})
	if err != nil {
		return nil, err
	}
	entries, ok, err := t.kv.Since(ctx, at, head, consulkv.Query{Consistent: true})
	if err != nil || !ok {
		return nil, err
	}
	paths := map[string]bool{}
	for _, e := range entries {
		for _, c := range e.Changes {
			paths[c.Path] = true
		}
	}
	return paths, nil
}
