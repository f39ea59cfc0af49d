package fleetstore

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/ironvip/ironvip/fleet"
	"github.com/ironvip/ironvip/ipam"
)

const (
	// maxChunk is how many operations go to the tree at once: as many as fit one transaction.
	maxChunk = 112
	// quick is how soon an answer must come for the next chunk to be larger.
	quick = time.Second
)

// errSmaller says that there was no answer in time, and that smaller chunks may succeed.
var errSmaller = errors.New("a smaller write may succeed")

// errLate says that the rest of a commit is left for the next.
var errLate = fmt.Errorf("%w: the earlier writes of this commit took too long", ipam.ErrSlow)

// write writes groups, one chunk after the other and none after until, and sets their outcomes. It
// returns whether any was written, and the attempts to plan again. The outcome of a chunk without an
// answer is unknown. It and all that follow are planned again: with errSmaller in smaller chunks,
// otherwise once the store is available.
func (s *Store) write(ctx context.Context, until time.Time, groups []*group) (wrote bool, again []*attempt, err error) {
	for len(groups) > 0 {
		chunk, size := s.nextChunk(groups)
		switch {
		case size == 0:
		case !time.Now().Before(until):
			err = errLate
		default:
			var batches []*fleet.Batch
			for _, g := range chunk {
				if g.batch != nil {
					batches = append(batches, g.batch)
				}
			}
			began := time.Now()
			err = s.tree.Commit(ctx, batches)
			err = s.resize(len(batches), size, time.Since(began), err)
		}
		if err != nil {
			for _, g := range groups {
				again = append(again, g.attempts...)
			}
			return wrote, again, err
		}
		for _, g := range chunk {
			again = append(again, s.finish(g)...)
		}
		wrote = wrote || size > 0
		groups = groups[len(chunk):]
	}
	return wrote, again, nil
}

// nextChunk returns the groups of the next chunk, at least one, and their number of operations.
func (s *Store) nextChunk(groups []*group) (chunk []*group, size int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for i, g := range groups {
		n := 0
		if g.batch != nil {
			for _, w := range g.batch.Writes {
				n += w.Ops()
			}
		}
		if size > 0 && size+n > s.chunk {
			return groups[:i], size
		}
		size += n
	}
	return groups, size
}

// resize sets the size of the next chunks by the outcome of one: half of it for a store that is too
// slow, so that some of it gets done. It returns the outcome.
func (s *Store) resize(batches, size int, took time.Duration, err error) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	switch {
	case err == nil && took < quick:
		s.chunk = min(2*s.chunk, maxChunk)
	case errors.Is(err, fleet.ErrNoAnswer):
		s.chunk = max(min(s.chunk, size)/2, 1)
		if batches > 1 {
			return fmt.Errorf("%w: %w", errSmaller, err)
		}
	}
	return err
}
