package ipvs

import (
	"context"
	"fmt"
	"slices"

	"github.com/ironvip/ironvip/ipvs/internal/kernel"
	"github.com/ironvip/ironvip/plane/kernel/filter"
	"github.com/ironvip/ironvip/plane/kernel/usage"
	"github.com/ironvip/ironvip/vip"
)

// The first two phases of Apply: accept decides what each update needs, without
// the kernel, and checkOwnership looks for foreign services and sockets in its
// place.

// accept turns a batch into items. It rejects the updates that this dataplane
// can't carry out.
func (t *Target) accept(batch []updateOf) []*item {
	t.buffers.items = slices.Grow(t.buffers.items[:0], len(batch))[:len(batch)]
	clear(t.buffers.items)
	items := make([]*item, 0, len(batch))
	needs := t.optional
	t.buffers.dests = t.buffers.dests[:0] // nothing of the last batch points to these any more
	for i := range batch {
		u := &batch[i]
		u.Err = nil
		it := &t.buffers.items[i]
		it.update, it.key, it.old = u, u.Key, t.records.Frontends[u.Key]
		_, it.repair = t.suspect[u.Key]
		it.repair = it.repair || u.Repair || (u.Old == nil) != (it.old == nil)
		it.mark = t.marks.get(u.Key)
		s := &it.service
		s.owned = it.old != nil || t.opt.Owns(u.Key.Addr)
		s.unread = it.repair
		if filter.ByMark(u.Key) {
			// Without a mark there is no service.
			s.owned, s.unread = it.mark != 0, it.repair && it.mark != 0
		}
		if u.New != nil {
			if u.Err = Unsupported(u.New); u.Err == nil {
				u.Err = t.admit(it, batch[:i])
			}
			if u.Err != nil {
				continue
			}
			needs = needs.with(u.New)
		}
		if !it.repair && u.Old != nil && u.Old.Kind != vip.OnRealServer {
			s.known = t.desired(u.Old, it.mark)
			s.have = &s.known
			// The order of the destinations matters only to the new scheduler, so it
			// isn't recorded.
			s.unread = s.want != nil && s.want.Scheduler != s.have.Scheduler && dependsOnOrder(s.want.Scheduler)
		}
		items = append(items, it)
	}
	if needs != t.optional || len(t.records.Frontends) == 0 { // without a frontend, drift of the sysctls isn't repaired
		t.optional = needs
		t.setSysctls()
	}
	return items
}

// admit finds a place for what an item wants: a mark if its service is one by
// mark, and a range of ports that no other range overlaps.
func (t *Target) admit(it *item, before []updateOf) (err error) {
	f := it.update.New
	for _, u := range before {
		if u.New != nil && u.Err == nil && usage.Clash(f, u.New) {
			return usage.PortsStillUsed(f.Key, u.Key)
		}
	}
	if err := t.records.Overlaps(f, func(vip.FrontendKey) bool { return false }); err != nil {
		return err
	}
	if hasMark(f) && it.mark == 0 {
		if it.mark, err = t.marks.draw(f.Key); err != nil {
			return err
		}
		it.newMark = true
	}
	if f.Kind != vip.OnRealServer {
		it.service.wanted = t.desired(f, it.mark)
		it.service.want = &it.service.wanted
	}
	return nil
}

// desired calls the function desired with the memory for a batch.
func (t *Target) desired(f *vip.Frontend, mark uint32) kernel.State {
	first := len(t.buffers.dests)
	t.buffers.dests = appendDests(t.buffers.dests, f)
	return kernel.State{Service: desiredService(f, mark), Dests: slices.Clip(t.buffers.dests[first:])}
}

// checkOwnership blocks items in the place of a foreign service or socket. It must
// come before anything is recorded: afterwards the record says that the service is
// ours.
func (t *Target) checkOwnership(ctx context.Context, items []*item) error {
	for _, it := range items {
		if it.service.owned || it.service.want == nil {
			continue
		}
		if it.update.New.Kind == vip.OnHost {
			if err := t.free(it.key); err != nil {
				it.block(err)
				continue
			}
		}
		s, _, err := t.kernel.Service(ctx, it.key, it.mark)
		for err == nil && s != nil && it.mark != 0 {
			// A foreign service has that mark. Try another one.
			t.marks.markForeign(it.mark)
			if it.mark, err = t.marks.draw(it.key); err != nil {
				it.block(err)
				break
			}
			it.service.wanted.Mark = it.mark
			s, _, err = t.kernel.Service(ctx, it.key, it.mark)
		}
		if it.result.blocked {
			continue
		}
		if err != nil {
			return err
		}
		if s != nil {
			it.block(clash(it.key, s))
		}
		it.service.unread = false
	}
	return nil
}

// clash is the error of a frontend in the place of a foreign service.
func clash(k vip.FrontendKey, s *kernel.Service) error {
	return vip.Problem{
		Code:    vip.CodePortTaken,
		Message: fmt.Sprintf("clash with a foreign ipvs service on %s (scheduler %s), which is left alone", k, s.Scheduler),
		Hint:    fmt.Sprintf("see ipvsadm -Ln; remove it with ipvsadm -D, or use another port than %d", k.Port),
	}
}
