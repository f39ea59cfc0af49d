package ipvs

import (
	"context"
	"errors"
	"slices"

	"github.com/ironvip/ironvip/plane/kernel/filter"
)

// Apply implements reconcile.Target. It costs as many messages as parts that
// change, in a few sends for the whole batch.
func (t *Target) Apply(ctx context.Context, batch []updateOf) error {
	err := t.inOrder(ctx, batch)
	clear(t.buffers.items) // they may point to much memory
	for i := range batch {
		u := &batch[i]
		if err != nil || u.Err != nil {
			t.suspect[u.Key] = struct{}{}
		} else if len(t.suspect) > 0 {
			delete(t.suspect, u.Key)
		}
	}
	return err
}

// inOrder applies a batch. If it has ranges of ports that come and others that go, the latter go first: the table rejects
// ranges that overlap, and nothing would show that a service by mark is ours if its element went before it.
func (t *Target) inOrder(ctx context.Context, batch []updateOf) error {
	goes := func(u updateOf) bool { return u.Key.Ranged() && u.New == nil }
	if !slices.ContainsFunc(batch, goes) || !slices.ContainsFunc(batch, func(u updateOf) bool { return u.Key.Ranged() && u.New != nil }) {
		return t.apply(ctx, batch)
	}
	for _, going := range []bool{true, false} {
		var part []updateOf
		var at []int
		for i, u := range batch {
			if goes(u) == going {
				part, at = append(part, u), append(at, i)
			}
		}
		if err := t.apply(ctx, part); err != nil {
			return err
		}
		for i, u := range part {
			batch[at[i]].Err = u.Err
		}
	}
	return nil
}

// apply runs a batch through the phases. An error concerns the whole batch. The
// errors of single updates are in their results.
func (t *Target) apply(ctx context.Context, batch []updateOf) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	if !t.adopted {
		if _, err := t.readState(ctx); err != nil {
			return err
		}
	}
	if t.expiryOff {
		t.expireAgain()
	}
	items := t.accept(batch)
	if err := t.checkOwnership(ctx, items); err != nil {
		for _, it := range items {
			if it.newMark {
				t.marks.release(it.key) // nothing has it yet
			}
		}
		return err
	}
	if slices.ContainsFunc(items, func(it *item) bool { return it.repair || it.key.Whole() }) {
		t.setSysctls()
	}

	up := make(filter.Change, 3*len(items))
	for _, it := range items {
		t.addBefore(up, it)
	}
	for _, it := range items { // after addBefore has compared all: they may share addresses
		if !it.result.blocked {
			t.records.Set(it.key, it.update.New)
		}
	}
	if err := t.stages(ctx, items, up); err != nil {
		for _, it := range items {
			if it.update.New == nil {
				t.records.Set(it.key, it.old) // parts of it may exist, and they are ours
			}
			t.loosenHairpins(it)
		}
		return err
	}
	for _, it := range items {
		it.update.Err = it.err()
	}
	return nil
}

// stages changes the kernel in the order in which no packet goes astray: rules before
// backends when a frontend comes, rules last when it goes.
func (t *Target) stages(ctx context.Context, items []*item, up filter.Change) error {
	if err := t.updateTable(ctx, up); err != nil {
		return err
	}
	for _, stage := range []func(context.Context, []*item) error{
		t.program, t.addTunnels, t.removeTunnels,
	} {
		if err := stage(ctx, items); err != nil {
			return err
		}
	}
	down := t.removalsAfter(items, up)
	if err := t.fw.Apply(ctx, down); errors.Is(err, filter.ErrNoTable) {
		t.broken = true // the elements are gone with it; the next Apply rebuilds it
	} else if err != nil {
		return err
	}
	clear(t.looseHairpins)
	t.releaseMarks(items)
	return nil
}
