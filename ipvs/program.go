package ipvs

import (
	"context"
	"fmt"
	"net/netip"
	"slices"

	"golang.org/x/sys/unix"

	"github.com/ironvip/ironvip/internal/netlink"
	"github.com/ironvip/ironvip/ipvs/internal/kernel"
	"github.com/ironvip/ironvip/plane/kernel/cleanup"
	"github.com/ironvip/ironvip/vip"
)

// rounds bounds how often one Apply reads a service again and retries.
const rounds = 4

// program changes the items' services and destinations.
func (t *Target) program(ctx context.Context, items []*item) error {
	todo := make([]*item, 0, len(items))
	for _, it := range items {
		if !it.result.blocked && !it.key.Whole() {
			todo = append(todo, it)
		}
	}
	for round := 0; len(todo) > 0; round++ {
		if round == rounds {
			for _, it := range todo {
				it.fail(fmt.Errorf("program %s: another program keeps changing it", it.key))
			}
			break
		}
		ops := t.buffers.ops[:0]
		for i, it := range todo {
			s := &it.service
			if s.unread {
				have, err := t.kernel.State(ctx, it.key, it.mark)
				if err != nil {
					return err
				}
				// It may be the requested service, if only the answer was lost.
				s.owned = s.owned || s.requested && have != nil && have.Service == *initialService(s.want) && len(have.Dests) == 0
				if have != nil && !s.owned {
					if s.unread = false; s.want != nil {
						it.block(clash(it.key, &have.Service))
					}
					continue
				}
				s.have = have
				it.addLostClients(&t.outdated)
			}
			s.errs, s.unread, s.again = nil, false, false
			ops = s.plan(ops, i)
		}
		err := t.carryOut(ctx, ops, todo)
		clear(ops)
		t.buffers.ops = ops
		if err != nil {
			return err
		}
		todo = slices.DeleteFunc(todo, func(it *item) bool {
			s := &it.service
			return it.result.blocked || s.rejected || !s.unread && !s.again
		})
	}
	return nil
}

// carryOut sends ops. While destinations are added again, a sysctl makes the kernel
// drop packets of their connections instead of ending the connections. If the sysctl
// can't be set, these ops are left out and their items fail.
func (t *Target) carryOut(ctx context.Context, ops []op, todo []*item) error {
	moves := func(o op) bool { return o.moves }
	if slices.ContainsFunc(ops, moves) {
		if f := t.sysctl.Set(keepConnections); f.OK {
			// Don't stop between the deletion and the addition.
			ctx = context.WithoutCancel(ctx)
			defer t.expireAgain()
		} else {
			for _, o := range ops {
				if it := todo[o.item]; o.moves && !slices.Contains(it.result.errs, f.Err()) {
					it.fail(f.Err())
				}
			}
			ops = slices.DeleteFunc(ops, moves)
		}
	}
	return runOps(ctx, t.kernel, ops, func(i int, err error) { todo[ops[i].item].outcome(&ops[i], err, &t.outdated) })
}

// expireAgain resets the sysctl that carryOut set. If that fails, every Apply tries
// again, and Actual reports it.
func (t *Target) expireAgain() {
	f := t.sysctl.Set(expireConnections)
	if f.OK && !t.expiryOff {
		return
	}
	t.expiryOff = !f.OK
	if _, known := t.findings.Get(f.Name); known {
		t.findings.Set(f)
	}
	if !f.OK {
		t.opt.Log.Warn("clients of deleted backends wait for a timeout until this sysctl can be set again", "sysctl", f.Name, "detail", f.Detail)
	}
}

// Unclean implements reconcile.Target.
func (t *Target) Unclean() bool { return t.outdated.Unclean() }

// Clean implements reconcile.Target: it deletes the connection tracking entries of UDP clients of backends that left. A
// client that keeps sending would stay with its backend as long as it sends.
func (t *Target) Clean(ctx context.Context) error { return t.outdated.Clean(ctx, t.records) }

// Suspect implements reconcile.Target.
func (t *Target) Suspect() {
	if !t.opt.RealServer { // it forwards nothing
		t.outdated.Suspect()
	}
}

// plan appends the next changes of item i's service.
func (j *job) plan(ops []op, i int) []op {
	if j.want != nil && j.have == nil && !j.owned {
		// Destinations follow when the service is known to be ours.
		j.again = true
		return append(ops, op{cmd: kernel.CmdNewService, service: initialService(j.want), item: i})
	}
	return plan(ops, i, j.have, j.want)
}

// outcome records the outcome of one change.
func (it *item) outcome(o *op, err error, outdated *cleanup.Outdated) {
	s := &it.service
	if s.rejected || it.result.blocked {
		return // the following changes fail because the service doesn't exist
	}
	switch err {
	case nil:
		switch o.cmd {
		case kernel.CmdNewService:
			s.owned = true
			s.made = kernel.State{Service: *o.service}
			s.have = &s.made
			outdated.Add(it.key, netip.AddrPort{}) // of clients that came too early
		default:
			it.addRemovedClients(o, outdated)
		}
		return
	case netlink.ErrUnknown:
		s.unread = true
		s.requested = s.requested || o.cmd == kernel.CmdNewService
		return
	}
	switch {
	case err == unix.ESRCH && o.cmd == kernel.CmdDelService, err == unix.ENOENT && o.cmd == kernel.CmdDelDest:
		it.addRemovedClients(o, outdated) // by another program, which leaves the clients
	case err == unix.EEXIST, err == unix.ESRCH, err == unix.ENOENT && o.cmd == kernel.CmdSetDest:
		s.unread = true // the records are wrong
	case o.cmd == kernel.CmdNewService || o.cmd == kernel.CmdSetService || o.cmd == kernel.CmdDelService:
		s.rejected, s.unread, s.again = true, false, false
		s.errs = append(s.errs, explain(o, err))
	default:
		s.errs = append(s.errs, explain(o, err))
	}
}

// addRemovedClients adds the clients that may be with a removed backend to outdated.
func (it *item) addRemovedClients(o *op, outdated *cleanup.Outdated) {
	switch {
	case o.moves: // it is added again
	case o.cmd == kernel.CmdDelDest:
		outdated.Add(it.key, o.dest.Addr)
	case o.cmd == kernel.CmdDelService && (it.service.have == nil || len(it.service.have.Dests) > 0): // otherwise its destinations were removed before
		outdated.Add(it.key, netip.AddrPort{})
	}
}

// addLostClients adds the clients of recorded backends that another program removed
// and that aren't wanted again to outdated.
func (it *item) addLostClients(outdated *cleanup.Outdated) {
	for _, f := range []*vip.Frontend{it.old, it.update.Old} {
		if f == nil {
			continue
		}
		for _, b := range f.Backends {
			if !it.service.have.Serves(b.Addr) && !it.service.want.Serves(b.Addr) {
				outdated.Add(it.key, b.Addr)
			}
		}
	}
}

// explain returns a problem with a hint for an error of the kernel.
func explain(o *op, err error) error {
	p := vip.Problem{Code: vip.CodeDataplane, Message: fmt.Sprintf("%s: %v", o, err)}
	service := o.cmd == kernel.CmdNewService || o.cmd == kernel.CmdSetService
	switch {
	case err == unix.ENOENT && service:
		p.Message = fmt.Sprintf("%s: the kernel has no scheduler %q", o, o.service.Scheduler)
		p.Hint = "modprobe ip_vs_" + o.service.Scheduler
	case err == unix.EINVAL && !service:
		p.Hint = "the kernel refuses multicast, broadcast and link-local addresses as backends, and any while no interface is up"
	case err == unix.EPERM || err == unix.EACCES:
		p.Hint = "the agent needs CAP_NET_ADMIN"
	case err == unix.EAFNOSUPPORT:
		p.Hint = "this kernel's ipvs has no IPv6"
	}
	return p
}
