package registry

import (
	"context"
	"errors"
	"math/rand/v2"
	"slices"
	"time"

	"github.com/ironvip/ironvip/internal/backoff"
)

// Op is the change of one key in a transaction.
type Op[V any] struct {
	Key string
	// Apply reads the newest value of the key on this host and returns an edit of it, or nil for no
	// edit. It must not have side effects, because Transact calls it again after a conflict. It may
	// return ErrConfirm while confirmed is false.
	Apply func(confirmed bool) (*Edit[V], error)

	Edit *Edit[V] // of the last Apply
	Err  error    // of the last Apply, or the reason why the edit was not written
}

// ErrConfirm is returned by an Apply that would write nothing, or refuse the change, because of a
// value that another host may have just changed. Transact then fetches the value and calls Apply
// with confirmed set.
var ErrConfirm = errors.New("read the value again")

// maxAttempts bounds the attempts of a transaction that conflicts every time. Among conflicting
// writers, one succeeds each time.
const maxAttempts = 40

// Transact applies the ops to the newest values. It commits the edits if these values have not
// changed in the meantime. Otherwise it tries again, with backoff. Each op is committed on its own.
// With atomic set, all ops are written, or none if one has an Err. After each commit, written
// receives the indexes of the written ops. The caller holds the locks of the keys. The error is a
// *StoreError for all ops that were not written.
func Transact[V any](ctx context.Context, s Store[V], ops []*Op[V], atomic bool, written func(ops []int)) error {
	todo := make([]int, len(ops))
	for i := range ops {
		todo[i] = i
	}
	wrote := false
	for try := 0; ; try++ {
		var edited []int
		refused := false
		for _, i := range todo {
			op := ops[i]
			op.apply(ctx, s)
			refused = refused || op.Err != nil
			if op.Edit != nil {
				edited = append(edited, i)
			}
		}
		if len(edited) == 0 || atomic && refused {
			return nil
		}
		of := [][]int{edited} // the indexes of each batch
		if !atomic {
			of = slices.Collect(slices.Chunk(edited, 1))
		}
		batches := make([]*Batch[V], len(of))
		for n, part := range of {
			batches[n] = &Batch[V]{Edits: make([]Edit[V], len(part))}
			for j, i := range part {
				batches[n].Edits[j] = *ops[i].Edit
			}
		}
		if err := s.Commit(ctx, batches); err != nil {
			if wrote {
				err = Partly(err)
			}
			return err
		}
		var done, again []int
		for n, b := range batches {
			for j, i := range of[n] {
				op := ops[i]
				op.Edit = &b.Edits[j]
				if b.Err == nil {
					done = append(done, i)
				} else if op.Err = conflict(s, op.Key, b.Err, try); op.Err == nil {
					again = append(again, i)
				}
			}
		}
		if len(done) > 0 {
			wrote = true
			written(done)
		}
		if len(again) == 0 || atomic && len(again) < len(edited) {
			return nil
		}
		if try > 2 && !backoff.Sleep(ctx, rand.N(time.Millisecond<<min(try, 6))) {
			for _, i := range again {
				ops[i].Err = ctx.Err()
			}
			return nil
		}
		if !atomic {
			todo = again
		}
	}
}

// apply computes the op's edit.
func (op *Op[V]) apply(ctx context.Context, s Store[V]) {
	op.Edit, op.Err = op.Apply(false)
	if op.Err != ErrConfirm {
		return
	}
	if op.Err = s.Fetch(ctx, op.Key); op.Err == nil {
		op.Edit, op.Err = op.Apply(true)
	}
}

// conflict returns why one of the keys of a batch refused with err can't be tried again, or nil if
// it can.
func conflict[V any](s Store[V], key string, err error, try int) error {
	var outdated *OutdatedError
	switch {
	case !errors.As(err, &outdated):
		return err
	case slices.Contains(outdated.Keys, key) && s.Unreadable(key):
		return &ConflictError{Service: ServiceOf(key), Unreadable: true}
	case try >= maxAttempts:
		return &ConflictError{Service: ServiceOf(key)}
	}
	return nil
}
