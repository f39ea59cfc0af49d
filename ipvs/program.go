package ipvs

import (
	"context"
	"fmt"
	"net/netip"
	"slices"

	"github.com/ironvip/ironvip/vip"
	"golang.org/x/sys/unix"
)

// rounds bounds how often an item is read back and tried again in one Apply.
const rounds = 4

// program carries out the items' changes of services and destinations.
func (t *Target) program(ctx context.Context, items []*item) error {
	stale := flows{}
	todo := make([]*item, 0, len(items))
	for _, it := range items {
		if !it.clashes && !stray(it.key) {
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
		var ops []op
		for i, it := range todo {
			if it.unread {
				have, err := t.kernel.state(ctx, it.key)
				if err != nil {
					return err
				}
				if have != nil && !it.owned {
					if it.unread = false; it.want != nil {
						it.clash(&have.service)
					}
					continue
				}
				it.have = have
			}
			it.refused, it.unread, it.more = nil, false, false
			ops = it.plan(ops, i)
		}
		err := t.kernel.run(ctx, ops, func(i int, err error) { todo[ops[i].item].outcome(&ops[i], err, stale) })
		if err != nil {
			return err
		}
		todo = slices.DeleteFunc(todo, func(it *item) bool { return it.clashes || it.blocked || !it.unread && !it.more })
	}
	if err := deleteFlows(ctx, stale, &t.stats); err != nil {
		// Clients may be answered by a backend that left until their entries
		// expire; the services themselves are right.
		t.opt.Log.Warn("stale udp clients remain", "err", err)
	}
	return nil
}

// plan appends the item's next changes.
func (it *item) plan(ops []op, i int) []op {
	if it.want != nil && it.have == nil && !it.owned {
		// Destinations may follow once the service is known to be ours.
		it.more = true
		return append(ops, op{cmd: cmdNewService, service: &it.want.service, item: i})
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
			it.have = &state{service: *o.service}
			stale.add(it.key, netip.AddrPort{}) // of clients that asked too early
		case cmdDelService:
			if it.have == nil || len(it.have.dests) > 0 { // else they went with the destinations
				stale.add(it.key, netip.AddrPort{})
			}
		case cmdDelDest:
			stale.add(it.key, o.dest.addr)
		}
		return
	case errUnknown:
		it.unread = true
		return
	}
	switch {
	case err == unix.ESRCH && o.cmd == cmdDelService:
	case err == unix.ENOENT && o.cmd == cmdDelDest:
	case err == unix.EEXIST, err == unix.ESRCH, err == unix.ENOENT && o.cmd == cmdSetDest:
		it.unread = true // not as it was believed to be
	case o.cmd == cmdNewService || o.cmd == cmdSetService || o.cmd == cmdDelService:
		it.blocked, it.unread, it.more = true, false, false
		it.refused = append(it.refused, explain(o, err))
	default:
		it.refused = append(it.refused, explain(o, err))
	}
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
