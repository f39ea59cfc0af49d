package ipvs

import (
	"context"
	"fmt"
	"net/netip"
	"slices"

	"golang.org/x/sys/unix"

	"github.com/ironvip/ironvip/internal/netlink"
	"github.com/ironvip/ironvip/vip"
)

// rounds bounds how often an item is read back and tried again in one Apply.
const rounds = 4

// program carries out the items' changes of services and destinations.
func (t *Target) program(ctx context.Context, items []*item) error {
	todo := make([]*item, 0, len(items))
	for _, it := range items {
		if !it.clashes && !it.vacated && !stray(it.key) {
			todo = append(todo, it)
		}
	}
	for round := 0; len(todo) > 0; round++ {
		if round == rounds {
			for _, it := range todo {
				it.errs = append(it.errs, fmt.Errorf("program %s: somebody else keeps changing it", it.key))
			}
			break
		}
		n := 0
		for _, it := range todo {
			n += 1 + it.want.size() + it.have.size()
		}
		ops := slices.Grow(t.room.ops[:0], n)
		for i, it := range todo {
			if it.unread {
				have, err := t.kernel.state(ctx, it.key, it.mark)
				if err != nil {
					return err
				}
				// What came about while an answer was lost, and is what was asked for.
				it.owned = it.owned || it.asked && have != nil && have.service == *it.want.begin() && len(have.dests) == 0
				if have != nil && !it.owned {
					if it.unread = false; it.want != nil {
						it.clash(&have.service)
					}
					continue
				}
				it.have = have
				it.lost(t.stale)
			}
			it.refused, it.unread, it.more = nil, false, false
			ops = it.plan(ops, i)
		}
		err := t.carryOut(ctx, ops, todo)
		clear(ops)
		t.room.ops = ops
		if err != nil {
			return err
		}
		todo = slices.DeleteFunc(todo, func(it *item) bool { return it.clashes || it.blocked || !it.unread && !it.more })
	}
	t.forgetFlows(ctx, items)
	return nil
}

// vacate deletes the services of ranges of ports that others take the place of.
// Their records go with the transaction that lets the others in, and a service by
// mark that an agent leaves without a record, as it is killed, is nobody's. What
// takes the place of one that can't be deleted waits.
func (t *Target) vacate(ctx context.Context, items []*item) error {
	var going []*item
	for _, it := range items {
		for _, k := range it.ousts {
			i := slices.IndexFunc(items, func(other *item) bool { return other.key == k })
			if !slices.Contains(going, items[i]) {
				going = append(going, items[i])
			}
		}
	}
	if len(going) == 0 {
		return nil
	}
	if err := t.program(ctx, going); err != nil {
		return err
	}
	left := map[vip.FrontendKey]bool{}
	for _, it := range going {
		it.vacated = true
		left[it.key] = it.err() != nil
	}
	for _, it := range items {
		if i := slices.IndexFunc(it.ousts, func(k vip.FrontendKey) bool { return left[k] }); i >= 0 {
			it.clashes, it.errs = true, append(it.errs, stillThere(it.key, it.ousts[i]))
		}
	}
	return nil
}

// carryOut runs ops. While destinations move, the kernel drops the packets of
// their connections instead of ending these. Where it can't be told to, nothing
// moves, and the items say so.
func (t *Target) carryOut(ctx context.Context, ops []op, todo []*item) error {
	moves := func(o op) bool { return o.moves }
	if slices.ContainsFunc(ops, moves) {
		if f := t.sysctl.set(keepConnections); f.OK {
			// The end of the context must not come between the two halves of a move.
			ctx = context.WithoutCancel(ctx)
			defer t.expireAgain()
		} else {
			for _, o := range ops {
				if it := todo[o.item]; o.moves && !slices.Contains(it.errs, f.err()) {
					it.errs = append(it.errs, f.err())
				}
			}
			ops = slices.DeleteFunc(ops, moves)
		}
	}
	defer t.resume(ctx, t.pause(ctx, ops, todo))
	return t.kernel.run(ctx, ops, func(i int, err error) { todo[ops[i].item].outcome(&ops[i], err, t.stale) })
}

// expireAgain ends what carryOut began. Where that fails, each Apply tries again,
// and Actual says so.
func (t *Target) expireAgain() {
	f := t.sysctl.set(expireConnections)
	if f.OK && !t.keeping {
		return
	}
	t.keeping = !f.OK
	if _, known := t.findings.get(f.Name); known {
		t.findings.set(f)
	}
	if !f.OK {
		t.opt.Log.Warn("clients of deleted backends wait for a timeout until this sysctl can be set again", "sysctl", f.Name, "detail", f.Detail)
	}
}

// forgetFlows deletes the connection tracking entries that have become wrong
// since that last worked. Where it doesn't, the items are done but for that.
func (t *Target) forgetFlows(ctx context.Context, items []*item) {
	err := t.flows.delete(ctx, t.stale)
	if isConntrackNetlinkMissing(err) {
		// No retry helps. A later batch tries again.
		t.report(noConntrackNetlink)
		err = nil
	} else if err == nil && len(t.stale) > 0 {
		t.findings.repaired(noConntrackNetlink.Name)
	}
	if err == nil {
		clear(t.stale)
		return
	}
	left := map[vip.FrontendKey]bool{}
	for x := range t.stale {
		left[x.frontend] = true
	}
	for _, it := range items {
		if left[it.key] {
			it.clients = fmt.Errorf("clients of %s may stay with backends that left: %w", it.key, err)
		}
	}
}

// plan appends the item's next changes.
func (it *item) plan(ops []op, i int) []op {
	if it.want != nil && it.have == nil && !it.owned {
		// Destinations may follow once the service is known to be ours.
		it.more = true
		return append(ops, op{cmd: cmdNewService, service: it.want.begin(), item: i})
	}
	return plan(ops, i, it.have, it.want)
}

// outcome books what became of one change.
func (it *item) outcome(o *op, err error, stale flows) {
	if it.blocked || it.clashes {
		return // what follows a service that isn't there fails by itself
	}
	switch err {
	case nil:
		switch o.cmd {
		case cmdNewService:
			it.owned = true
			it.made = state{service: *o.service}
			it.have = &it.made
			stale.add(it.key, netip.AddrPort{}) // of clients that asked too early
		default:
			it.left(o, stale)
		}
		return
	case netlink.ErrUnknown:
		it.unread = true
		it.asked = it.asked || o.cmd == cmdNewService
		return
	}
	switch {
	case err == unix.ESRCH && o.cmd == cmdDelService, err == unix.ENOENT && o.cmd == cmdDelDest:
		it.left(o, stale) // whoever took it away left its clients
	case err == unix.EEXIST, err == unix.ESRCH, err == unix.ENOENT && o.cmd == cmdSetDest:
		it.unread = true // not as it was believed to be
	case o.cmd == cmdNewService || o.cmd == cmdSetService || o.cmd == cmdDelService:
		it.blocked, it.unread, it.more = true, false, false
		it.refused = append(it.refused, explain(o, err))
	default:
		it.refused = append(it.refused, explain(o, err))
	}
}

// left notes which clients may be with a backend that a change took away.
func (it *item) left(o *op, stale flows) {
	switch {
	case o.moves: // it comes back
	case o.cmd == cmdDelDest:
		stale.add(it.key, o.dest.addr)
	case o.cmd == cmdDelService && (it.have == nil || len(it.have.dests) > 0): // else they went with the destinations
		stale.add(it.key, netip.AddrPort{})
	}
}

// lost notes the clients of backends that were believed to be there, have gone
// without our doing, and aren't to come back.
func (it *item) lost(stale flows) {
	for _, f := range []*vip.Frontend{it.old, it.update.Old} {
		if f == nil {
			continue
		}
		for _, b := range f.Backends {
			if !it.have.serves(b.Addr) && !it.want.serves(b.Addr) {
				stale.add(it.key, b.Addr)
			}
		}
	}
}

// size is the number of destinations; nil has none.
func (s *state) size() int {
	if s == nil {
		return 0
	}
	return len(s.dests)
}

// serves reports whether a backend is a destination; nil has none.
func (s *state) serves(backend netip.AddrPort) bool {
	if s == nil {
		return false
	}
	_, found := slices.BinarySearchFunc(s.dests, dest{addr: backend}, compareDests)
	return found
}

// explain says what an error of the kernel means.
func explain(o *op, err error) error {
	p := vip.Problem{Code: vip.CodeDataplane, Message: fmt.Sprintf("%s: %v", o, err)}
	service := o.cmd == cmdNewService || o.cmd == cmdSetService
	switch {
	case err == unix.ENOENT && service:
		p.Message = fmt.Sprintf("%s: the kernel has no scheduler %q", o, o.service.sched)
		p.Hint = "modprobe ip_vs_" + o.service.sched
	case err == unix.EINVAL && !service:
		p.Hint = "the kernel refuses multicast, broadcast and link-local addresses as backends, and any while no interface is up"
	case err == unix.EPERM || err == unix.EACCES:
		p.Hint = "the agent needs CAP_NET_ADMIN"
	case err == unix.EAFNOSUPPORT:
		p.Hint = "this kernel's ipvs has no IPv6"
	}
	return p
}
