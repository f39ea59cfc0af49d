package fleet

import (
	"context"

	"golang.org/x/sync/errgroup"

	"github.com/ironvip/ironvip/internal/fleet/consulkv"
	"github.com/ironvip/ironvip/internal/fleet/treelog"
)

// position returns the place in the log up to which the tables are current.
func (t *Tree) position() treelog.Position {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.at
}

// since returns the entries of the log after a position, with all values. Head is the newest one,
// nil if there is none, read with the query's consistency.
func (t *Tree) since(ctx context.Context, at treelog.Position, head *consulkv.Pair, q consulkv.Query) (entries []treelog.Entry, v verdict, err error) {
	newest, ok := treelog.After(at, head)
	switch {
	case !ok:
		return nil, lost, nil
	case newest == nil:
		return nil, inStep, nil
	}
	ring := treelog.Ring{}
	if newest.NeedsRing(at) {
		if err := t.readRing(ctx, at.Seq+1, newest.Seq, ring, consulkv.Query{Stale: q.Stale, Consistent: q.Consistent}); err != nil {
			return nil, lost, err
		}
	}
	if entries, ok = treelog.Chain(at, newest, ring); !ok {
		return nil, lost, nil
	}
	return entries, inStep, t.fetch(ctx, entries)
}

// readRing reads the entries of a range of numbers that the ring has.
func (t *Tree) readRing(ctx context.Context, from, to uint64, ring treelog.Ring, q consulkv.Query) error {
	ctx, cancel := context.WithTimeout(ctx, consulkv.CallTimeout)
	defer cancel()
	for segment := range treelog.Segments(from, to) {
		pairs, _, err := consulkv.ListAll(ctx, t.o.KV, t.paths.ring+segment, q)
		if err != nil {
			return err
		}
		ring.Add(t.paths.ring, pairs)
	}
	return nil
}

// fetch reads the values that the log only names.
func (t *Tree) fetch(ctx context.Context, entries []treelog.Entry) error {
	group, ctx := errgroup.WithContext(ctx)
	group.SetLimit(parallelGets)
	for _, e := range entries {
		for i := range e.Changes {
			if c := &e.Changes[i]; c.Fetch {
				group.Go(func() (err error) {
					*c, err = t.get(ctx, c.Path)
					return err
				})
			}
		}
	}
	return group.Wait()
}

// advance applies entries of the log, as far as they are after the tables' position: this host may
// have written some of them meanwhile. The caller holds mu.
func (t *Tree) advance(entries []treelog.Entry) {
	for len(entries) > 0 && entries[0].Seq <= t.at.Seq {
		entries = entries[1:]
	}
	for len(entries) > 0 {
		t.compare(entries[0])
		// Up to the next entry with digests, to be compared then.
		n := 1
		for n < len(entries) && entries[n].Digests == nil {
			n++
		}
		for _, c := range treelog.Latest(entries[:n]) {
			t.apply(c)
		}
		t.at, entries = entries[n-1].Position, entries[n:]
	}
	t.high = max(t.high, t.at.Index)
}
