package fleet

import (
	"context"
	"time"

	"github.com/ironvip/ironvip/fleet/kv"
)

// A writer that is slower than the others would lose every collision: the head has moved on before
// its transaction arrives. After some collisions it therefore creates a key, the turn, which
// depends on nothing that it must read first. Every transaction requires that there is no turn,
// except that of the turn's owner, which removes it. The others collide with the turn meanwhile.

const (
	// turnAfter is after how many collisions a writer takes the turn.
	turnAfter = 4
	// turnFor is for how long the others respect a turn, from when they first read it. Its owner
	// may be gone.
	turnFor = 3 * time.Second
)

// turn is what a writer knows of it. It belongs to the writer's goroutine.
type turn struct {
	collisions int       // in a row
	own        uint64    // the index of the writer's own turn; 0 if it has none
	other      uint64    // the index of another's, as it was read
	since      time.Time // when it was first read
}

// turnCondition is the operation of a transaction on the turn.
func (w *writer) turnCondition() kv.Op {
	if w.turn.own != 0 {
		return kv.Op{Verb: kv.DeleteCas, Key: w.tree.keys.Turn, Index: w.turn.own}
	}
	return kv.Op{Verb: kv.CheckGone, Key: w.tree.keys.Turn}
}

// collide counts a collision. After many, it takes the turn, or ends that of another writer that
// has lasted for too long. It reports whether it has just taken the turn.
func (w *writer) collide(ctx context.Context) (taken bool) {
	t, turn := w.tree, &w.turn
	turn.own = 0 // nobody else could have written during a turn of this writer: it is over
	if turn.collisions++; turn.collisions < turnAfter {
		return false
	}
	ctx, cancel := context.WithTimeout(ctx, kv.CallTimeout)
	defer cancel()
	out, err := t.o.KV.Txn(ctx, []kv.Op{{Verb: kv.Cas, Key: t.keys.Turn, Value: []byte(w.id)}})
	switch {
	case err != nil:
		turn.since = time.Time{} // look whether it is taken
	case len(out.Refused) == 0:
		turn.own, turn.since = out.Index, time.Time{}
		return true
	case turn.since.IsZero() || time.Since(turn.since) > turnFor:
		w.endOtherTurn(ctx)
	}
	return false
}

// endOtherTurn removes another writer's turn if it is the same as turnFor ago. A turn of this writer
// is one that it took without an answer.
func (w *writer) endOtherTurn(ctx context.Context) {
	t, turn := w.tree, &w.turn
	pair, _, err := t.o.KV.Get(ctx, t.keys.Turn, kv.Query{Consistent: true})
	switch {
	case err != nil || pair == nil:
		turn.since = time.Time{}
	case string(pair.Value) == w.id:
		turn.own = pair.Index
	case turn.since.IsZero() || pair.Index != turn.other:
		turn.other, turn.since = pair.Index, time.Now()
	default:
		_, _ = t.o.KV.Txn(ctx, []kv.Op{{Verb: kv.DeleteCas, Key: t.keys.Turn, Index: pair.Index}})
		turn.since = time.Time{}
	}
}

// endTurn forgets the collisions. It gives back the writer's own turn, unless a transaction of its
// has removed it.
func (w *writer) endTurn(ctx context.Context, removed bool) {
	own := w.turn.own
	if w.turn = (turn{}); own == 0 || removed {
		return
	}
	ctx, cancel := context.WithTimeout(ctx, kv.CallTimeout)
	defer cancel()
	_, _ = w.tree.o.KV.Txn(ctx, []kv.Op{{Verb: kv.DeleteCas, Key: w.tree.keys.Turn, Index: own}})
}
