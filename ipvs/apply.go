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
	mark   uint32        // of its packets where its service is one by mark, else 0
	old    *vip.Frontend // what was held; nil: nothing
	repair bool          // nothing is taken for granted

	want    *state            // nil: to be removed
	have    *state            // what the kernel has
	unread  bool              // have is not known
	owned   bool              // a service at this key is ours
	drawn   bool              // the mark is new
	ousts   []vip.FrontendKey // ranges of ports that go, so that this one can come
	asked   bool              // for a service that wasn't there; whether it came about isn't known
	more    bool              // another round is needed though nothing went wrong
	blocked bool              // the service itself can't be made as wanted
	clashes bool              // it is somebody else's
	vacated bool              // its service is deleted already, see vacate
	refused []error           // by the kernel, in the last round
	errs    []error           // all else
	clients error             // what keeps clients at backends that left; all else is done
	placed  bool              // its address is put on the device

	wanted, known, made state // what want and have point to
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
	clear(t.room.items) // what they point to may be large
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

func (t *Target) apply(ctx context.Context, batch []updateOf) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	if !t.loaded {
		if _, err := t.load(ctx); err != nil {
			return err
		}
	}
	if t.keeping {
		t.expireAgain()
	}
	items := t.accept(batch)
	err := t.claim(ctx, items)
	if err == nil {
		err = t.vacate(ctx, items)
	}
	if err != nil {
		for _, it := range items {
			if it.drawn {
				t.marks.release(it.key) // nobody knows whether it was free
			}
		}
		return err
	}
	if slices.ContainsFunc(items, func(it *item) bool { return it.repair }) {
		if err := t.ensureDevice(); err != nil {
			return err
		}
		t.tune()
	}

	up := make(change, 3*len(items))
	for _, it := range items {
		t.raise(up, it)
	}
	for _, it := range items { // after all were looked at: they may share addresses
		if !it.clashes {
			t.held.set(it.key, it.update.New)
		}
	}
	if err := t.stages(ctx, items, up); err != nil {
		for _, it := range items {
			if it.update.New == nil {
				t.held.set(it.key, it.old) // may be there still, and is ours
			}
			for _, a := range t.hairpinsAround(it) {
				t.loose[a] = struct{}{}
			}
		}
		return err
	}
	for _, it := range items {
		if it.update.Err = it.err(); it.update.Err == nil {
			it.update.Err = it.clients
		}
	}
	return nil
}

// stages changes the kernel: what lets packets in last on the way up, first on
// the way down.
func (t *Target) stages(ctx context.Context, items []*item, up change) error {
	if err := t.filter(ctx, up); err != nil {
		return err
	}
	if err := t.dropAddresses(ctx, items); err != nil {
		return err
	}
	if err := t.program(ctx, items); err != nil {
		return err
	}
	if err := t.openTunnels(ctx, items); err != nil {
		return err
	}
	if err := t.addAddresses(ctx, items); err != nil {
		return err
	}
	if err := t.closeTunnels(ctx, items); err != nil {
		return err
	}
	down := t.lowerAll(items, up)
	for a := range t.loose {
		if t.held.hairpins[a] == 0 {
			down[addrElement(setHairpin, a)] = false
		}
	}
	if err := t.fw.apply(ctx, down); errors.Is(err, errNoTable) {
		t.broken = true // gone meanwhile: so is what was to go; the next Apply builds it
	} else if err != nil {
		return err
	}
	clear(t.loose)
	t.releaseMarks(items)
	return nil
}

// accept turns a batch into items, and answers those updates that this
// dataplane can't carry out.
func (t *Target) accept(batch []updateOf) []*item {
	t.room.items = slices.Grow(t.room.items[:0], len(batch))[:len(batch)]
	clear(t.room.items)
	items := make([]*item, 0, len(batch))
	needs := t.needs
	dests := 0
	for i := range batch {
		for _, f := range []*vip.Frontend{batch[i].Old, batch[i].New} {
			if f != nil {
				dests += len(f.Backends)
			}
		}
	}
	// Of the batch before nothing is left that points to these.
	t.room.dests = slices.Grow(t.room.dests[:0], dests)
	for i := range batch {
		u := &batch[i]
		u.Err = nil
		it := &t.room.items[i]
		it.update, it.key, it.old = u, u.Key, t.held.frontends[u.Key]
		_, it.repair = t.suspect[u.Key]
		it.repair = it.repair || u.Repair || (u.Old == nil) != (it.old == nil)
		it.mark = t.marks.get(u.Key)
		it.owned = it.old != nil || t.opt.Owns(u.Key.Addr)
		it.unread = it.repair
		if byMark(u.Key) {
			// Without a mark there is no service.
			it.owned, it.unread = it.mark != 0, it.repair && it.mark != 0
		}
		if u.New != nil {
			if u.Err = unsupported(u.New); u.Err == nil {
				u.Err = t.admit(it, batch[:i], batch[i+1:])
			}
			if u.Err != nil {
				continue
			}
			needs = needs.with(u.New)
		}
		if !it.repair && u.Old != nil && u.Old.Kind != vip.OnRealServer {
			it.known = t.desired(u.Old, it.mark)
			it.have = &it.known
			// In which order they were added doesn't matter until it does.
			it.unread = it.want != nil && it.want.sched != it.have.sched && ordered(it.want.sched)
		}
		items = append(items, it)
	}
	if needs != t.needs {
		t.needs = needs
		t.tune()
	}
	return items
}

// admit finds a place for what an item wants: its mark, where it is to have one,
// and its range of ports, which no other may overlap.
func (t *Target) admit(it *item, before, after []updateOf) (err error) {
	f := it.update.New
	if f.Key.Ranged() {
		if it.ousts, err = t.overlaps(f, before, after); err != nil {
			return err
		}
	}
	if hasMark(f) && it.mark == 0 {
		if it.mark, err = t.marks.draw(f.Key); err != nil {
			return err
		}
		it.drawn = true
	}
	if f.Kind != vip.OnRealServer {
		it.wanted = t.desired(f, it.mark)
		it.want = &it.wanted
	}
	return nil
}

// desired is desired, in the room for a batch.
func (t *Target) desired(f *vip.Frontend, mark uint32) state {
	first := len(t.room.dests)
	t.room.dests = appendDests(t.room.dests, f)
	return state{service: desiredService(f, mark), dests: slices.Clip(t.room.dests[first:])}
}

// overlaps returns the ranges of ports that f takes the place of: those that it
// overlaps and that go with the same batch, whose other updates come before and
// after. Any other is an error. It costs O(ranges of the address and batch).
func (t *Target) overlaps(f *vip.Frontend, before, after []updateOf) (ousts []vip.FrontendKey, err error) {
	space := portSpaceOf(f)
	clash := func(k vip.FrontendKey) bool { return k != f.Key && portsOf(k).Overlaps(portsOf(f.Key)) }
	for _, u := range before {
		if u.New != nil && u.Err == nil && u.Key.Ranged() && portSpaceOf(u.New) == space && clash(u.Key) {
			return nil, stillThere(f.Key, u.Key)
		}
	}
	for _, k := range t.held.ranges[space] {
		goes := func(u updateOf) bool { return u.Key == k && u.New == nil }
		switch {
		case !clash(k):
		case slices.ContainsFunc(before, goes) || slices.ContainsFunc(after, goes):
			ousts = append(ousts, k)
		default:
			return nil, stillThere(f.Key, k)
		}
	}
	return ousts, nil
}

// stillThere says that a range of ports can't come before another one goes.
func stillThere(k, other vip.FrontendKey) error {
	return vip.Problem{
		Code:    vip.CodePortTaken,
		Message: fmt.Sprintf("the ports of %s overlap those of %s, which is still there", k, other),
		Hint:    "it is tried again until the other has gone",
	}
}

// claim makes sure that what is about to be recorded as ours is not a service
// or a listener of somebody else's: afterwards the record would say otherwise.
func (t *Target) claim(ctx context.Context, items []*item) error {
	for _, it := range items {
		if it.owned || it.want == nil {
			continue
		}
		if it.update.New.Kind == vip.OnHost {
			if err := t.ports.free(it.key); err != nil {
				it.clashes, it.errs = true, append(it.errs, err)
				continue
			}
		}
		s, err := t.kernel.service(ctx, it.key, it.mark)
		for err == nil && s != nil && it.mark != 0 {
			// Somebody else goes by that mark. There are others.
			t.marks.avoid(it.mark)
			if it.mark, err = t.marks.draw(it.key); err != nil {
				it.clashes, it.errs = true, append(it.errs, err)
				break
			}
			it.wanted.fwmark = it.mark
			s, err = t.kernel.service(ctx, it.key, it.mark)
		}
		if it.clashes {
			continue
		}
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
