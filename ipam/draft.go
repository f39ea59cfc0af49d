package ipam

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"

	"github.com/ironvip/ironvip/vip"
)

// draft is a set of changes that are planned and not durable yet. What it
// takes it marks in the index's bitmaps, so that nothing is planned twice;
// everything else shows in the draft alone until it is booked.
type draft struct {
	a       *Allocator
	ops     []Op                    // in order; several on one resource build on each other
	pending map[Resource]*Lease     // what a lease is to become; never nil
	holding []Resource              // what the service in hand holds as planned
	shares  map[shareKey][]Resource // addresses that this draft makes shareable
	marked  []Resource              // bits set by this draft
	cursors map[*number]number      // where cursors were
	waits   bool                    // the service in hand waits for another host to give it what is new
	moved   moved                   // the move of a cursor for the choice in hand
	drawn   []moved                 // the moves for ops, by their places
}

// newDraft returns one of no changes yet, with room for those of n services.
func newDraft(a *Allocator, n int) *draft {
	return &draft{
		a:       a,
		ops:     make([]Op, 0, n),
		pending: make(map[Resource]*Lease, n),
		shares:  make(map[shareKey][]Resource),
		marked:  make([]Resource, 0, n),
		cursors: make(map[*number]number),
		drawn:   make([]moved, 0, n),
	}
}

// lease returns the lease of r as planned, or as it is.
func (d *draft) lease(r Resource) (Lease, bool) {
	if l := d.pending[r]; l != nil {
		return *l, true
	}
	return d.a.lease(r)
}

// of returns the leases that a service holds and those that cool for it, before
// anything is planned for it.
func (d *draft) of(k vip.ServiceKey) (held, cooling []Lease) {
	for r := range d.a.index.owned.Of(k) {
		l, ok := d.lease(r)
		switch {
		case !ok:
		case l.HeldBy(k) >= 0:
			held = append(held, l)
		case l.State == Cooling && l.Holders[0].Service == k:
			cooling = append(cooling, l)
		}
	}
	if d.a.node != "" {
		slices.SortFunc(held, olderFirst) // whoever chooses among them chooses alike
	}
	return held, cooling
}

func olderFirst(a, b Lease) int {
	return cmp.Or(cmp.Compare(a.Since, b.Since), a.Resource.Addr.Compare(b.Resource.Addr),
		cmp.Compare(a.Resource.NodePort, b.Resource.NodePort), cmp.Compare(a.Resource.Protocol, b.Resource.Protocol))
}

// shared returns the addresses that are shared under k, planned ones last.
func (d *draft) shared(k shareKey) []Resource {
	var out []Resource
	for _, a := range d.a.index.shares[k] {
		out = append(out, Resource{Addr: a})
	}
	for _, r := range d.shares[k] {
		if !slices.Contains(out, r) {
			out = append(out, r)
		}
	}
	return out
}

// set plans that the lease of its resource becomes l, for the service in hand,
// one of its holders, and returns which of the draft's ops that is. Nobody changes
// l from here on.
func (d *draft) set(l *Lease, by vip.ServiceKey) int {
	r := l.Resource
	op, moves := Op{New: l}, moved{}
	if now, there := d.lease(r); there {
		op.Old = new(now)
	} else {
		set, k := d.a.index.set(r)
		set.add(k)
		d.marked = append(d.marked, r)
	}
	if op.Old == nil || op.Old.HeldBy(by) < 0 {
		held := d.holding
		op.Claim = &Claim{Service: by, Holds: held[:len(held):len(held)]}
		d.holding = append(held, r)
		moves, d.moved = d.moved, moves
	}
	d.ops, d.drawn = append(d.ops, op), append(d.drawn, moves)
	d.pending[r] = l
	if k := shareOf(l); k.key != "" {
		d.shares[k] = append(d.shares[k], r)
	}
	return len(d.ops) - 1
}

// moved is where a cursor was; the zero moved is of none.
type moved struct {
	cursor  *number
	was, to number
}

// move sets a cursor, in a way that can be undone.
func (d *draft) move(cursor *number, to number) {
	d.moved = moved{cursor, *cursor, to}
	if _, moved := d.cursors[cursor]; !moved {
		d.cursors[cursor] = *cursor
	}
	*cursor = to
}

// undo takes back every mark. The caller holds both locks.
func (d *draft) undo() {
	for _, r := range d.marked {
		d.unmark(r)
	}
	for cursor, was := range d.cursors {
		*cursor = was
	}
}

// unmark frees what the draft took in vain.
func (d *draft) unmark(r Resource) {
	if d.a.leases.Row(r) == nil && !d.a.isBlocked(r) {
		set, k := d.a.index.set(r)
		set.remove(k)
	}
}

// commit makes the draft durable, by the way given, and then visible, each op
// alone; each op's Err says how it went. The error is why all failed. The caller
// holds write.
func (d *draft) commit(ctx context.Context, by commit) error {
	if len(d.ops) == 0 {
		return nil
	}
	err := d.a.commitBy(ctx, d.ops, by)
	d.a.mu.Lock()
	defer d.a.mu.Unlock()
	if err != nil {
		d.undo()
		return err
	}
	for i := len(d.ops) - 1; i >= 0; i-- {
		if d.ops[i].Err == nil {
			continue
		}
		d.unmark(d.ops[i].resource())
		// What nobody got is next again, lest trying uses up a pool.
		if m := d.drawn[i]; m.cursor != nil && *m.cursor == m.to {
			*m.cursor = m.was
		}
	}
	return nil
}

// slow returns an error that one of the ops has because the store is slow.
func (d *draft) slow() error {
	for i := range d.ops {
		if errors.Is(d.ops[i].Err, ErrSlow) {
			return d.ops[i].Err
		}
	}
	return nil
}

// commit is a Store's Commit, or what does the same.
type commit func(ctx context.Context, ops []Op) error

// commit writes ops to the store and books what became durable.
func (a *Allocator) commit(ctx context.Context, ops []Op) error {
	return a.commitBy(ctx, ops, a.store.Commit)
}

// commitBy makes ops durable and books what became so, and what turned out to be
// other than expected. Each op's Err says how it went.
func (a *Allocator) commitBy(ctx context.Context, ops []Op, by commit) error {
	if len(ops) == 0 {
		return nil
	}
	err := by(ctx, ops)
	a.commits++
	if err != nil {
		return err
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	for i := range ops {
		op := &ops[i]
		r := op.resource()
		if op.Err == nil {
			a.book(r, op.New)
			continue
		}
		if conflict := (*ConflictError)(nil); errors.As(op.Err, &conflict) {
			a.log.Log(ctx, a.conflictLevel(), "a lease was changed by someone else", "resource", r, "conflict", conflict)
			a.learn(r, conflict.Actual)
			for _, c := range conflict.Others {
				a.learn(c.Resource, c.Lease)
			}
		}
	}
	a.nudge()
	return nil
}

// conflictLevel is how loud to be about a change by somebody else, which is
// nothing unusual where hosts share a store.
func (a *Allocator) conflictLevel() slog.Level {
	if a.node == "" {
		return slog.LevelWarn
	}
	return slog.LevelDebug
}

func (o *Op) resource() Resource {
	if o.New != nil {
		return o.New.Resource
	}
	return o.Old.Resource
}

// storeProblem says that a service goes without because of the store.
func storeProblem(err error) vip.Problem {
	p := vip.Problem{Code: vip.CodeStore, Message: fmt.Sprintf("the lease could not be stored: %v", err), Hint: "what the service holds stays; this is tried again"}
	var inner vip.Problem
	if errors.As(err, &inner) && inner.Hint != "" {
		p.Hint = inner.Hint
	}
	return p
}
