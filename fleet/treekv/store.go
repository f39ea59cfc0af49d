// Package treekv has the fleet's tree as it is in the store: its keys, and the requests that
// read its log and its values, and that read and write the snapshot that starting hosts share.
//
// It keeps no state and has no copy of the tree: callers pass their place in the log. Package fleet
// has the tables, follows the log and appends to it.
//
// Source code organization:
//
//   - keys.go: the keys
//   - store.go: the log, and single values
//   - snapshot.go, snapshotwriter.go: the snapshot
package treekv

import (
	"context"

	"github.com/ironvip/ironvip/fleet/kv"
	"github.com/ironvip/ironvip/fleet/treelog"
	"github.com/ironvip/ironvip/internal/parallel"
)

// ParallelGets bounds the requests for single keys that a host has in progress at the same time.
const ParallelGets = 8

// Store is the tree in the store. It is safe for concurrent use.
type Store struct {
	KV   kv.Store
	Keys Keys
}

// Value reads one path of the tree, with everything that was written before the call. The change
// has the value's index, or if there is none, an index up to which that is so.
func (s Store) Value(ctx context.Context, path string) (treelog.Change, error) {
	ctx, cancel := context.WithTimeout(ctx, kv.CallTimeout)
	defer cancel()
	pair, index, err := s.KV.Get(ctx, s.Keys.Tree+path, kv.Query{Consistent: true})
	switch {
	case err != nil:
		return treelog.Change{}, err
	case pair == nil:
		return treelog.Change{Path: path, Index: index}, nil
	}
	return treelog.Change{Path: path, Index: pair.Index, Value: NotNil(pair.Value)}, nil
}

// NotNil distinguishes an empty value from a removal.
func NotNil(b []byte) []byte {
	if b == nil {
		return []byte{}
	}
	return b
}

// Since returns the entries of the log after a position, with all values. Head is the newest one,
// nil if there is none, read with the query's consistency. It isn't ok if the log doesn't go on from
// the position.
func (s Store) Since(ctx context.Context, at treelog.Position, head *kv.Pair, q kv.Query) (entries []treelog.Entry, ok bool, err error) {
	newest, ok := treelog.After(at, head)
	if !ok || newest == nil {
		return nil, ok, nil
	}
	ring := treelog.Ring{}
	if newest.NeedsRing(at) {
		if err := s.readRing(ctx, at.Seq+1, newest.Seq, ring, kv.Query{Stale: q.Stale, Consistent: q.Consistent}); err != nil {
			return nil, false, err
		}
	}
	if entries, ok = treelog.Chain(at, newest, ring); !ok {
		return nil, false, nil
	}
	return entries, true, s.fetch(ctx, entries)
}

// readRing reads the entries of a range of numbers that the ring has.
func (s Store) readRing(ctx context.Context, from, to uint64, ring treelog.Ring, q kv.Query) error {
	ctx, cancel := context.WithTimeout(ctx, kv.CallTimeout)
	defer cancel()
	for segment := range treelog.Segments(from, to) {
		pairs, _, err := s.KV.List(ctx, s.Keys.Ring+segment, q)
		if err != nil {
			return err
		}
		ring.Add(s.Keys.Ring, pairs)
	}
	return nil
}

// fetch reads the values that the log only names.
func (s Store) fetch(ctx context.Context, entries []treelog.Entry) error {
	group, ctx := parallel.NewGroup(ctx)
	group.SetLimit(ParallelGets)
	for _, e := range entries {
		for i := range e.Changes {
			if c := &e.Changes[i]; c.Fetch {
				group.Go(func() (err error) {
					*c, err = s.Value(ctx, c.Path)
					return err
				})
			}
		}
	}
	return group.Wait()
}
