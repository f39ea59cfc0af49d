package allocator

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"time"

	"github.com/ironvip/ironvip/internal/wake"
	"github.com/ironvip/ironvip/ipam"
	"github.com/ironvip/ironvip/vip"
)

// reclaimDelay is how long this host waits until it claims back what another host released: the
// deletion of the service may be on its way to this host, too.
const reclaimDelay = 300 * time.Millisecond

// committer is a Store's Commit, or a function that does the same.
type committer func(ctx context.Context, ops []ipam.Op) error

// commit makes ops durable and then visible, each alone. Each op's Err says how it went; the error
// says why all failed. Durable is called for each op that is durable; nil: for none. The caller holds write.
func (a *Allocator) commit(ctx context.Context, ops []ipam.Op, by committer, durable func(op int)) error {
	if len(ops) == 0 {
		return nil
	}
	if err := by(ctx, ops); err != nil {
		return err
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	for i := range ops {
		op := &ops[i]
		r := op.Resource()
		if op.Err == nil {
			a.record(r, op.New)
			if durable != nil {
				durable(i)
			}
			continue
		}
		if conflict, ok := errors.AsType[*ipam.ConflictError](op.Err); ok {
			level := slog.LevelDebug // normal if hosts share the store
			if a.state.Node == "" {
				level = slog.LevelWarn
			}
			a.log.Log(ctx, level, "lease changed by another writer", "resource", r, "conflict", conflict)
			a.receive(r, conflict.Actual)
			for _, c := range conflict.Others {
				a.receive(c.Resource, c.Lease)
			}
		}
	}
	a.wake.Set()
	return nil
}

// record makes now the lease of r; nil removes it. It wakes services that wait for what became
// free. The caller holds both locks.
func (a *Allocator) record(r ipam.Resource, now *ipam.Lease) {
	old, _, _ := a.state.Leases().Get(r)
	if former, _ := a.state.Unreadable(r); now != nil && now.State == ipam.Blocked && former.Stored.Reason != now.Reason {
		a.log.Warn("lease unreadable; its resource is not allocated", "resource", r, "reason", now.Reason, "holders", len(now.Holders))
	}
	a.state.Record(r, old, now)
	if until := coolingUntil(now); until == 0 {
		a.cooling.Drop(r)
	} else if until != coolingUntil(old) {
		a.cooling.Set(r, until.Time())
	}
	if now != nil {
		if now.State == ipam.Blocked {
			return
		}
		for _, h := range now.Holders {
			a.checkClaimed(h.Service)
		}
	}
	_, claimed := a.claimed[r]
	claimed = claimed && (now == nil || now.State != ipam.Held)
	if claimed {
		delete(a.claimed, r)
	}
	if old != nil && old.State == ipam.Held && (old.ShareKey != "" || now != nil && now.State == ipam.Cooling && len(a.state.Config.Quotas) > 0) || now == nil || now.State == ipam.Reserved || claimed {
		a.freed.Send() // the resource, ports of a shared address, a part of a quota, or what is reserved for a service or assigned to it
	}
}

// coolingUntil returns the end of a cooling lease, and 0 for any other.
func coolingUntil(l *ipam.Lease) vip.Instant {
	if l == nil || l.State != ipam.Cooling {
		return 0
	}
	return l.Until
}

// checkClaimed has the next sweep look at a service if no source names it. The caller holds write.
func (a *Allocator) checkClaimed(k vip.ServiceKey) {
	if a.known != nil && !a.known(k) {
		a.unclaimed[k] = struct{}{}
	}
}

// receive records a lease as the store has it, and recalls the services that a change by another
// host concerns. The caller holds both locks.
func (a *Allocator) receive(r ipam.Resource, now *ipam.Lease) {
	old, there := a.state.Lease(r)
	u, unreadable := a.state.Unreadable(r)
	if !there && unreadable {
		old, there = u.Stored, true
	}
	if there == (now != nil) && (now == nil || now.Equal(old)) {
		return // written by this host
	}
	for _, h := range u.Known.Holders {
		if now == nil { // removed to repair the store: the holder gets it back
			a.state.Vanished(h.Service, u.Known)
		}
		a.recalls.Add(h.Service)
	}
	if old.State == ipam.Held {
		a.receiveLoss(&old, now)
	}
	if now != nil && (old.Reservation == nil) != (now.Reservation == nil) {
		a.recallHolders(now)
	}
	switch {
	case now == nil:
	case now.State == ipam.Blocked:
		for i := range now.Holders {
			a.recalls.Add(now.Holders[i].Service)
		}
	case now.State == ipam.Held:
		for i := range now.Holders {
			k := now.Holders[i].Service
			if old.HeldBy(k) >= 0 {
				continue
			}
			a.recalls.Add(k)
			a.leaderActed(now.Holders[i].Node, k)
			if a.undone.wasReleased(k) {
				a.undone.again(k, a.now())
			}
		}
		if !there {
			a.state.ContinueBehind(now)
		}
	}
	a.record(r, now)
}

// recallHolders recalls the services that hold a lease: their allocations say whether it is reserved.
func (a *Allocator) recallHolders(l *ipam.Lease) {
	if l.State != ipam.Held {
		return
	}
	for i := range l.Holders {
		a.recalls.Add(l.Holders[i].Service)
	}
}

// receiveLoss finds what a change means for the services that held old.
func (a *Allocator) receiveLoss(old, now *ipam.Lease) {
	for i := range old.Holders {
		h := &old.Holders[i]
		if now == nil {
			a.state.Vanished(h.Service, *old)
			a.recalls.Add(h.Service)
			continue
		}
		g := now.HolderOf(h.Service)
		switch {
		case now.State == ipam.Blocked && g != nil: // receive recalls it
		case now.HeldBy(h.Service) < 0:
			if g != nil {
				a.leaderActed(g.Node, h.Service)
			}
			a.retries.Hasten(h.Service, a.now().Add(reclaimDelay))
		case g.Node != h.Node && h.Node == a.state.Node: // this host's change of it
			a.undone.again(h.Service, a.now())
		case g.Port != h.Port:
			a.recalls.Add(h.Service)
		}
	}
}

// storeProblem says that a service gets nothing because the store can't be written.
func storeProblem(err error) vip.Problem {
	p := vip.Problem{Code: vip.CodeStore, Message: fmt.Sprintf("the lease could not be stored: %v", err), Hint: "what the service holds stays; this is tried again"}
	if inner, ok := errors.AsType[vip.Problem](err); ok && inner.Hint != "" {
		p.Hint = inner.Hint
	}
	return p
}

// refusal says why the store wrote nothing for a service, and whether that concerns only this
// service, which then asks again soon.
func refusal(err error) (p vip.Problem, soon bool) {
	if fenced, ok := errors.AsType[*ipam.FencedError](err); ok {
		return vip.Problem{Code: vip.CodeWaiting, Message: fenced.Error(), Hint: fenced.Hint}, true
	}
	if isConflict(err) {
		return vip.Problem{Code: vip.CodeWaiting, Message: fmt.Sprintf("other nodes change it at the same time: %v", err), Hint: "wait: it is tried again in some seconds"}, true
	}
	return storeProblem(err), false
}

func isConflict(err error) bool {
	_, is := errors.AsType[*ipam.ConflictError](err)
	return is
}

func isFenced(err error) bool {
	_, is := errors.AsType[*ipam.FencedError](err)
	return is
}

// Restore reads every lease of the store. It is called once after Prepare, and before Run, Assign
// and Release; Configure may be called meanwhile. It costs O(leases).
func (a *Allocator) Restore(ctx context.Context) error {
	feed, err := a.store.Watch(ctx)
	if err != nil {
		return fmt.Errorf("restore leases: %w", err)
	}
	a.write.Lock()
	defer a.write.Unlock()
	changes, _ := ipam.Drain(feed)
	if a.feed = feed; a.state.Node == "" {
		feed.Close() // nobody else writes
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	// Automatic allocation continues behind the newest lease.
	changes = slices.DeleteFunc(changes, func(c ipam.LeaseChange) bool { return c.Lease == nil })
	slices.SortStableFunc(changes, func(a, b ipam.LeaseChange) int { return cmp.Compare(a.Lease.Since, b.Lease.Since) })
	for _, c := range changes {
		a.record(c.Resource, c.Lease)
		a.state.ContinueBehind(c.Lease)
	}
	a.updateAlarms() // they name the holders of addresses that pools must keep clear of
	return nil
}

// follow records what other hosts write to the store, until the context ends. One change costs
// O(its holders).
func (a *Allocator) follow(ctx context.Context) {
	for wake.Wait(ctx, a.receiveChanges()) == nil {
	}
}

// receiveChanges records the changes so far, and returns the channel that is closed at the next one. It
// reads them with the lock of the writer: they are not older than what this host has written.
func (a *Allocator) receiveChanges() (more <-chan struct{}) {
	a.write.Lock()
	defer a.write.Unlock()
	changes, more := ipam.Drain(a.feed)
	if len(changes) == 0 {
		return more
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	for _, c := range changes {
		a.receive(c.Resource, c.Lease)
	}
	a.wake.Set()
	return more
}
