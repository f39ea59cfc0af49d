package consulstore

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/ironvip/ironvip/internal/fleet"
	"github.com/ironvip/ironvip/ipam"
)

const (
	// maxChunk is how many operations go to the tree at once: as many as it packs into
	// one transaction.
	maxChunk = 112
	// quick is how soon an answer must come for the next chunk to be larger: one of
	// twice the size has plenty of time then.
	quick = time.Second
)

// errSmaller says that there was no answer in time, and that it is to be tried
// with less.
var errSmaller = errors.New("less at once may be written")

// errLate says that the rest of a commit is left for the next.
var errLate = fmt.Errorf("%w: it took all the time there is for one commit to write what came before", ipam.ErrSlow)

// write writes groups, a chunk after the other and none after until, and tells their outcomes. It
// returns whether any was written, and what is to be judged again. Of a chunk without
// an answer nothing is known, so that after it all that is left is to be judged again:
// with errSmaller in smaller chunks, or not before Consul is there again.
func (s *Store) write(ctx context.Context, until time.Time, groups []*group) (wrote bool, again []*attempt, err error) {
	for len(groups) > 0 {
		chunk, size := s.take(groups)
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
			err = s.pace(len(batches), size, time.Since(began), err)
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

// take returns the groups that go into the next chunk, at least one, and how many
// operations they are.
func (s *Store) take(groups []*group) (chunk []*group, size int) {
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

// pace judges by a chunk's outcome how large the next ones are: a Consul that is
// slow for what it is asked is asked for half, so that some of it gets done. It returns
// the outcome, as write does.
func (s *Store) pace(batches, size int, took time.Duration, err error) error {
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
