package ipam

import (
	"context"
	"errors"
	"fmt"
	"slices"

	"github.com/ironvip/ironvip/vip"
)

// draft is a set of changes that are planned and not durable yet. What it
// takes it marks in the index's bitmaps, so that nothing is planned twice;
// everything else shows in the draft alone until it is booked.
type draft struct {
	a       *Allocator
	pending map[Resource]*Lease // what a lease is to become; never nil
	order   []Resource
	claimed map[vip.ServiceKey][]Resource
	shares  map[shareKey][]Resource // addresses that this draft makes shareable
	marked  []Resource              // bits set by this draft
	cursors map[*number]number      // where cursors were
}

func newDraft(a *Allocator) *draft {
	return &draft{
		a:       a,
		pending: make(map[Resource]*Lease),
		claimed: make(map[vip.ServiceKey][]Resource),
		shares:  make(map[shareKey][]Resource),
		cursors: make(map[*number]number),
	}
}

// lease returns the lease of r as planned, or as it is.
func (d *draft) lease(r Resource) (Lease, bool) {
	if l := d.pending[r]; l != nil {
		return *l, true
	}
	l, _, ok := d.a.leases.Get(r)
	return l, ok
}

// of returns the leases that a service holds and those that cool for it.
func (d *draft) of(k vip.ServiceKey) (held, cooling []Lease) {
	for _, list := range [][]Resource{d.a.index.owned[k], d.claimed[k]} {
		for _, r := range list {
			l, ok := d.lease(r)
			switch {
			case !ok:
			case l.HeldBy(k) >= 0:
				if !slices.ContainsFunc(held, func(h Lease) bool { return h.Resource == r }) {
					held = append(held, l)
				}
			case l.State == Cooling && l.Holders[0].Service == k:
				cooling = append(cooling, l)
			}
		}
	}
	return held, cooling
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

// set plans that the lease of its resource becomes l, for one of its holders.
func (d *draft) set(l Lease, by vip.ServiceKey) {
	r := l.Resource
	if d.pending[r] == nil {
		d.order = append(d.order, r)
		if _, _, there := d.a.leases.Get(r); !there {
			set, k := d.a.index.set(r)
			set.add(k)
			d.marked = append(d.marked, r)
		}
	}
	d.pending[r] = &l
	d.claimed[by] = append(d.claimed[by], r)
	if k := shareOf(&l); k.key != "" {
		d.shares[k] = append(d.shares[k], r)
	}
}

// move sets a cursor, in a way that can be undone.
func (d *draft) move(cursor *number, to number) {
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
	if _, _, there := d.a.leases.Get(r); !there {
		set, k := d.a.index.set(r)
		set.remove(k)
	}
}

// commit makes the draft durable, and then visible, each change alone. It
// returns why single changes failed, or why all did. A lease that turned out
// to be other than expected is booked as it is. The caller holds write.
func (d *draft) commit(ctx context.Context) (failed map[Resource]error, err error) {
	if len(d.order) == 0 {
		return nil, nil
	}
	ops := make([]Op, 0, len(d.order))
	for _, r := range d.order {
		op := Op{New: d.pending[r]}
		if l, _, ok := d.a.leases.Get(r); ok {
			op.Old = &l
		}
		ops = append(ops, op)
	}
	failed, err = d.a.commit(ctx, ops)
	d.a.mu.Lock()
	defer d.a.mu.Unlock()
	if err != nil {
		d.undo()
		return nil, err
	}
	for r := range failed {
		d.unmark(r)
	}
	return failed, nil
}

// commit writes ops to the store and books what became durable.
func (a *Allocator) commit(ctx context.Context, ops []Op) (failed map[Resource]error, err error) {
	if err := a.store.Commit(ctx, ops); err != nil {
		return nil, err
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
		if failed == nil {
			failed = make(map[Resource]error)
		}
		failed[r] = op.Err
		if conflict := (*ConflictError)(nil); errors.As(op.Err, &conflict) {
			a.log.Warn("a lease was changed by someone else", "resource", r)
			a.book(r, conflict.Actual)
		}
	}
	a.nudge()
	return failed, nil
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
