package probepath

import (
	"context"
	"errors"
	"fmt"
	"slices"

	"go4.org/netipx"
	"golang.org/x/sys/unix"

	"github.com/ironvip/ironvip/ipvs/internal/kernel"
	"github.com/ironvip/ironvip/plane/kernel/filter"
	"github.com/ironvip/ironvip/plane/kernel/host"
	"github.com/ironvip/ironvip/vip"
)

// Apply implements reconcile.Target. A path costs a transaction of two elements and two messages
// to IPVS, or one for its removal.
func (t *Target) Apply(ctx context.Context, batch []updateOf) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	if !t.adopted {
		if _, err := t.readState(ctx); err != nil {
			return err
		}
	}
	t.checkConntrack()
	up, drawn, changes, dests := filter.Change{}, []vip.ProbePath(nil), []change(nil), []change(nil)
	for i := range batch {
		u := &batch[i]
		u.Err = nil
		t.publish(u.Key, 0)
		mark, known := t.record[u.Key]
		if u.New != nil && !known {
			if mark, u.Err = t.draw(u.Key); u.Err != nil {
				continue
			}
			drawn = append(drawn, u.Key)
		}
		if t.Owns(mark) {
			changes = append(changes, change{kernel.CmdDelService, u.Key, mark, i})
		}
		if u.New != nil {
			setElements(up, u.Key, mark, true)
			changes = append(changes, change{kernel.CmdNewService, u.Key, mark, i})
			dests = append(dests, change{kernel.CmdNewDest, u.Key, mark, i})
		}
	}
	if err := t.addElements(ctx, up); err != nil {
		for _, p := range drawn {
			t.forget(p) // nothing has them yet, or the next read finds them
			t.adopted = false
		}
		return err
	}
	if err := t.change(ctx, batch, changes); err != nil {
		t.adopted = false // the next read finds which services are ours
		return err
	}
	// Only now, because the service may be a foreign one.
	dests = slices.DeleteFunc(dests, func(c change) bool { return batch[c.item].Err != nil })
	if err := t.change(ctx, batch, dests); err != nil {
		return err
	}
	down := filter.Change{}
	for i := range batch {
		u := &batch[i]
		mark, known := t.record[u.Key]
		switch {
		case !known:
		case u.New == nil && u.Err == nil, t.isForeign(mark):
			setElements(down, u.Key, mark, false)
			t.forget(u.Key)
		case u.New != nil && u.Err == nil:
			t.publish(u.Key, mark)
		}
	}
	return t.removeElements(ctx, down)
}

func setElements(c filter.Change, p vip.ProbePath, mark uint32, present bool) {
	for _, e := range filter.ProbeElements(p.VIP, p.Backend, mark) {
		c[e] = present
	}
}

// change sends changes to IPVS.
func (t *Target) change(ctx context.Context, batch []updateOf, all []change) error {
	if len(all) == 0 {
		return nil
	}
	return t.services.Change(ctx, all, func(i int, err error) { t.outcome(&batch[all[i].item], &all[i], err) })
}

// outcome takes in the kernel's answer to one change.
func (t *Target) outcome(u *updateOf, c *change, err error) {
	switch {
	case c.cmd == kernel.CmdNewService && err == nil:
		t.ours[c.mark] = struct{}{}
	case c.cmd == kernel.CmdDelService && (err == nil || err == unix.ESRCH):
		delete(t.ours, c.mark)
	}
	switch {
	case err == nil || u.Err != nil: // the changes after a failed one fail, too
	case c.cmd == kernel.CmdDelService && err == unix.ESRCH: // another program has deleted it
	case c.cmd == kernel.CmdNewService && err == unix.EEXIST:
		t.foreign[c.mark] = struct{}{}
		u.Err = vip.Problem{Code: vip.CodeDataplane, Message: fmt.Sprintf("%s: a foreign service has that mark; the next attempt takes another one", c)}
	default:
		p := vip.Problem{Code: vip.CodeDataplane, Message: fmt.Sprintf("%s: %v", c, err)}
		switch {
		case err == unix.ENOENT && c.cmd == kernel.CmdNewService:
			p.Message, p.Hint = fmt.Sprintf("%s: the kernel has no scheduler %q", c, vip.DefaultScheduler), "modprobe ip_vs_"+vip.DefaultScheduler.String()
		case err == unix.EPERM || err == unix.EACCES:
			p.Hint = "the agent needs CAP_NET_ADMIN"
		}
		u.Err = p
	}
}

// Owns reports whether the service by a mark is ours, as far as the Target has read or made it.
func (t *Target) Owns(mark uint32) bool {
	_, ours := t.ours[mark]
	return ours
}

func (t *Target) isForeign(mark uint32) bool {
	_, foreign := t.foreign[mark]
	return foreign
}

// addElements adds elements to the table, or rebuilds it with all recorded paths.
func (t *Target) addElements(ctx context.Context, up filter.Change) error {
	if len(up) == 0 {
		return nil
	}
	if !t.broken {
		err := t.table.Apply(ctx, up)
		if !errors.Is(err, filter.ErrNoTable) {
			return err
		}
		t.broken = true
	}
	all := filter.Change{}
	for p, mark := range t.record {
		setElements(all, p, mark, true)
	}
	err := t.table.Rebuild(ctx, &netipx.IPSet{}, all)
	if t.broken = err != nil; errors.Is(err, filter.ErrNoTable) {
		// The kernel answers ENOENT for a missing module, too.
		if missing := t.table.Missing(ctx); missing != nil {
			return missing
		}
	}
	return err
}

// removeElements removes elements, and with the last path the table.
func (t *Target) removeElements(ctx context.Context, down filter.Change) error {
	switch {
	case len(down) == 0:
		return nil
	case len(t.record) == 0:
		t.broken = true
		return t.table.Remove(ctx)
	case t.broken:
		return nil // the next addition rebuilds it
	}
	err := t.table.Apply(ctx, down)
	if errors.Is(err, filter.ErrNoTable) {
		t.broken, err = true, nil
	}
	return err
}

// checkConntrack checks that IPVS leaves packets to connection tracking, which knows the backend of
// an answer. Without it each probe would fail. The dataplane sets it.
func (t *Target) checkConntrack() {
	f := t.sysctl.Check(host.Setting{Key: "ipv4/vs/conntrack", Value: "1", Why: "answers to probes need connection tracking of ipvs connections"})
	var err error
	if !f.OK {
		err = f.Err()
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	t.blocked = err
}
