package fleet

import (
	"context"

	"golang.org/x/sync/errgroup"

	"github.com/ironvip/ironvip/internal/fleet/consulkv"
)

// position returns the place in the log up to which the tables are current.
func (t *Tree) position() position {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.at
}

// positionOf returns the position of a reader that has read everything up to the head. If that
// can't be decoded or doesn't exist, the next entry is the first of a new log.
func positionOf(head *consulkv.Pair) position {
	if head == nil {
		return position{}
	}
	e, err := decodeEntry(head.Value, head.Index)
	if err != nil {
		return position{index: head.Index}
	}
	return e.position
}

// since returns the entries of the log after a position, with all values. Head is the newest one,
// nil if there is none. Stale allows any of Consul's servers to answer.
func (t *Tree) since(ctx context.Context, at position, head *consulkv.Pair, stale bool) (entries []entry, v verdict, err error) {
	newest, v := newestAfter(at, head)
	if newest == nil {
		return nil, v, nil
	}
	ring := map[uint64]entry{}
	if newest.ring || newest.seq > at.seq+1 {
		if err := t.readRing(ctx, at.seq+1, newest.seq, ring, consulkv.Query{Stale: stale}); err != nil {
			return nil, lost, err
		}
	}
	if entries, v = chain(at, newest, ring); v != inStep {
		return nil, v, nil
	}
	return entries, inStep, t.fetch(ctx, entries)
}

// readRing reads the entries of a range of numbers that the ring has.
func (t *Tree) readRing(ctx context.Context, from, to uint64, ring map[uint64]entry, q consulkv.Query) error {
	ctx, cancel := context.WithTimeout(ctx, consulkv.CallTimeout)
	defer cancel()
	for seq := from; seq <= to; seq += segmentSize - (seq-1)%segmentSize {
		pairs, _, err := consulkv.ListAll(ctx, t.o.KV, t.paths.segment(seq), q)
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
	for len(entries) > 0 && entries[0].seq <= t.at.seq {
		entries = entries[1:]
	}
	for len(entries) > 0 {
		t.compare(entries[0])
		// Up to the next entry with digests, to be compared then.
		n := 1
		for n < len(entries) && entries[n].digests == nil {
			n++
		}
		for _, c := range newestChanges(entries[:n]) {
			t.apply(c)
		}
		t.at, entries = entries[n-1].position, entries[n:]
	}
	t.high = max(t.high, t.at.index)
}
