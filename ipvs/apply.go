package ipvs

import (
	"context"
	"errors"
	"fmt"
	"slices"

	"github.com/ironvip/ironvip/vip"
)

// item is one update on its way through Apply.
type item struct {
	update *updateOf
	key    vip.FrontendKey
	old    *vip.Frontend // what was held; nil: nothing
	repair bool          // nothing is taken for granted

	want    *state  // nil: to be removed
	have    *state  // what the kernel has
	unread  bool    // have is not known
	owned   bool    // a service at this key is ours
	more    bool    // another round is needed though nothing went wrong
	blocked bool    // the service itself can't be made as wanted
	clashes bool    // it is somebody else's
	refused []error // by the kernel, in the last round
	errs    []error // all else
}

func (it *item) err() error {
	errs := append(it.errs, it.refused...)
	switch len(errs) {
	case 0:
		return nil
	case 1:
		return errs[0]
	}
	return fmt.Errorf("%w (and %d more)", errs[0], len(errs)-1)
}

// Apply implements reconcile.Target. It costs as many messages as parts that
// change, in a few sends for the whole batch.
func (t *Target) Apply(ctx context.Context, batch []updateOf) error {
	err := t.apply(ctx, batch)
	for i := range batch {
		u := &batch[i]
		if err != nil || u.Err != nil {
			t.suspect[u.Key] = struct{}{}
		} else {
			delete(t.suspect, u.Key)
		}
	}
	return err
}

func (t *Target) apply(ctx context.Context, batch []updateOf) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	if !t.loaded {
		if _, err := t.load(ctx); err != nil {
			return err
		}
	}
	items := t.accept(batch)
	if err := t.claim(ctx, items); err != nil {
		return err
	}
	if slices.ContainsFunc(items, func(it *item) bool { return it.repair }) {
		if err := t.device.ensure(); err != nil {
			return err
		}
		t.tune()
	}

	up, down := make(change, 3*len(items)), change{}
	for _, it := range items {
		t.raise(up, it)
	}
	for _, it := range items { // after all were looked at: they may share addresses
		if !it.clashes {
			t.held.set(it.key, it.update.New)
		}
	}
	if err := t.filter(ctx, up); err != nil {
		return err
	}
	if err := t.dropAddresses(ctx, items); err != nil {
		return err
	}
	if err := t.program(ctx, items); err != nil {
		return err
	}
	if err := t.addAddresses(ctx, items); err != nil {
		return err
	}
	for _, it := range items {
		t.lower(down, it)
	}
	if err := t.fw.apply(ctx, down); errors.Is(err, errNoTable) {
		t.broken = true // gone meanwhile: so is what was to go; the next Apply builds it
	} else if err != nil {
		return err
	}
	for _, it := range items {
		it.update.Err = it.err()
	}
	return nil
}

// accept turns a batch into items, and answers those updates that this
// dataplane can't carry out.
func (t *Target) accept(batch []updateOf) []*item {
	items := make([]*item, 0, len(batch))
	v6 := false
	for i := range batch {
		u := &batch[i]
		u.Err = nil
		it := &item{update: u, key: u.Key, old: t.held.frontends[u.Key]}
		_, it.repair = t.suspect[u.Key]
		it.repair = it.repair || u.Repair || (u.Old == nil) != (it.old == nil)
		it.owned = it.old != nil || t.opt.Owns(u.Key.Addr)
		it.unread = it.repair
		if u.New != nil {
			if u.Err = unsupported(u.New); u.Err != nil {
				continue
			}
			want := desired(u.New)
			it.want = &want
			v6 = v6 || u.Key.Addr.Is6()
		}
		if !it.repair && u.Old != nil {
			have := desired(u.Old)
			it.have = &have
		}
		items = append(items, it)
	}
	if v6 && !t.v6 {
		t.v6 = true
		t.tune()
	}
	return items
}

// claim makes sure that what is about to be recorded as ours is not a service
// of somebody else's: afterwards the record would say otherwise.
func (t *Target) claim(ctx context.Context, items []*item) error {
	for _, it := range items {
		if it.owned || it.want == nil {
			continue
		}
		s, err := t.kernel.service(ctx, it.key)
		if err != nil {
			return err
		}
		if s != nil {
			it.clash(s)
		}
		it.unread = false
	}
	return nil
}

func (it *item) clash(s *service) {
	it.clashes = true
	it.errs = append(it.errs, vip.Problem{
		Code:    vip.CodePortTaken,
		Message: fmt.Sprintf("clash with a foreign ipvs service on %s (scheduler %s), which is left alone", it.key, s.sched),
		Hint:    fmt.Sprintf("see ipvsadm -Ln; remove it with ipvsadm -D, or use another port than %d", it.key.Port),
	})
}
