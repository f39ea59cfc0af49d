package vips

import (
	"cmp"
	"context"
	"errors"
	"maps"
	"net/netip"
	"slices"

	"golang.org/x/sys/unix"

	"github.com/ironvip/ironvip/vip"
)

// Apply implements reconcile.Target: the rules of a frontend come before its address, and go after it. With Sockets, a
// frontend listens before its address is added, and its address goes after it. All additions of a batch are one train of
// messages, and so are all removals.
func (p *Plane) Apply(ctx context.Context, batch []updateOf) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	if !p.adopted {
		for _, err := range p.Actual(ctx) {
			if err != nil {
				return err
			}
		}
	}
	suspect := false
	for i := range batch {
		u := &batch[i]
		u.Err = nil
		suspect = suspect || u.Repair && (p.ensured || p.addrs[u.Key.Addr].route != absent)
	}
	if suspect {
		_ = p.prepare() // put tries again
	}
	var stay map[netip.Addr]error
	if !p.sockets {
		stay = p.removeUnused(ctx, batch)
	}
	if err := p.passOn(ctx, batch, stay); err != nil {
		return err
	}
	for i := range batch {
		if u := &batch[i]; serves(u.Err) { // otherwise, it is as before
			p.use(u.Key, placed(u.New))
		}
	}
	stay = p.removeUnused(ctx, batch)
	for i := range batch {
		if u := &batch[i]; !placed(u.New) {
			u.Err = cmp.Or(u.Err, stay[u.Key.Addr])
		}
	}
	err := p.put(ctx, batch)
	p.await(batch)
	return err
}

// prepare makes or repairs the device. If it had to, routes may be lost.
func (p *Plane) prepare() error {
	changed, err := p.device.Ensure()
	p.ensured = err == nil
	p.lost = p.lost || changed || err != nil // an answer may have been lost after the change
	return err
}

// passOn applies a batch to the inner plane, without the updates that leave an address that stays: while the host has the
// address, its rules must stay. It has no rules at a whole VIP.
func (p *Plane) passOn(ctx context.Context, batch []updateOf, stay map[netip.Addr]error) error {
	if len(stay) == 0 && !slices.ContainsFunc(batch, func(u updateOf) bool { return u.Key.Whole() && u.New != nil }) {
		return p.Plane.Apply(ctx, batch)
	}
	var rest []updateOf
	for i := range batch {
		u := &batch[i]
		if !placed(u.New) {
			u.Err = stay[u.Key.Addr]
		}
		if u.Err == nil {
			rest = append(rest, *u)
			if u.Key.Whole() {
				rest[len(rest)-1].New = nil
			}
		}
	}
	err := p.Plane.Apply(ctx, rest)
	for i := range batch {
		if u := &batch[i]; u.Err == nil {
			u.Err, rest = rest[0].Err, rest[1:]
		}
	}
	return err
}

// removeUnused removes the routes of addresses that no frontend needs after a batch, if its updates succeed. It returns the
// errors of addresses that stay.
func (p *Plane) removeUnused(ctx context.Context, batch []updateOf) (stay map[netip.Addr]error) {
	left := map[netip.Addr]int{} // users of each address that updates leave
	for i := range batch {
		u := &batch[i]
		if e := p.addrs[u.Key.Addr]; !placed(u.New) && serves(u.Err) && e.route != absent {
			left[u.Key.Addr] = len(e.users)
		}
	}
	if len(left) == 0 {
		return nil
	}
	for i := range batch {
		u := &batch[i]
		if _, concerned := left[u.Key.Addr]; !concerned || !serves(u.Err) {
			continue
		}
		if p.isUser(u.Key) {
			left[u.Key.Addr]--
		}
		if placed(u.New) {
			left[u.Key.Addr]++
		}
	}
	maps.DeleteFunc(left, func(_ netip.Addr, n int) bool { return n > 0 })
	if len(left) == 0 {
		return nil
	}
	p.usesDevice()
	stay = map[netip.Addr]error{}
	gone := slices.SortedFunc(maps.Keys(left), netip.Addr.Compare)
	err := p.device.Remove(ctx, gone, func(a netip.Addr, err error) { stay[a] = err })
	for _, a := range gone {
		if err != nil {
			stay[a] = err
		}
		if stay[a] != nil {
			p.setRoute(a, doubtful)
		} else {
			p.setRoute(a, absent)
		}
	}
	return stay
}

// put adds the routes that the frontends of a batch need, or all if the device may lack some. A failure is the result of
// every update at the address. If no update is about the address, it is that of the whole batch.
func (p *Plane) put(ctx context.Context, batch []updateOf) error {
	var need []netip.Addr
	for i := range batch {
		u := &batch[i]
		if placed(u.New) && serves(u.Err) && (p.lacks(u.Key.Addr) || u.Repair && p.wants(u.Key.Addr)) {
			need = append(need, u.Key.Addr)
		}
	}
	failed := p.add(ctx, need)
	if len(failed) == 0 {
		return nil
	}
	known := map[netip.Addr]bool{}
	for i := range batch {
		u := &batch[i]
		err := failed[u.Key.Addr]
		if u.New == nil || err == nil {
			continue
		}
		known[u.Key.Addr] = true
		if placed(u.New) && serves(u.Err) {
			u.Err = p.problem(u.Key.Addr, err)
		}
	}
	for a, err := range failed {
		if !known[a] {
			p.lost = true
			return p.problem(a, err)
		}
	}
	return nil
}

// add adds routes. It makes the device first if necessary, and adds all routes if the device may lack some.
func (p *Plane) add(ctx context.Context, addrs []netip.Addr) (failed map[netip.Addr]error) {
	if !p.lost && len(addrs) == 0 {
		return nil
	}
	var err error
	if addrs = p.allOf(addrs); !p.ensured && len(addrs) > 0 {
		err = p.prepare()
		addrs = p.allOf(addrs)
	}
	failed = map[netip.Addr]error{}
	each := func(a netip.Addr, err error) { failed[a] = err }
	if err == nil {
		err = p.device.Add(ctx, addrs, each)
	}
	if p.ensured && errors.Is(err, unix.ENODEV) { // another program has deleted the device or set it down
		if err = p.prepare(); err == nil {
			p.lost = true
			addrs = p.allOf(addrs)
			clear(failed)
			err = p.device.Add(ctx, addrs, each)
		}
	}
	p.lost = err != nil && p.lost
	for _, a := range addrs {
		if err != nil {
			failed[a] = err
		}
		switch {
		case failed[a] == nil:
			p.setRoute(a, present)
			p.usesDevice()
		case p.wants(a): // with Sockets, the host may get the address by itself
			p.setRoute(a, doubtful)
		}
	}
	return failed
}

// allOf returns addresses, sorted, with all others that belong on the device if it may lack some.
func (p *Plane) allOf(addrs []netip.Addr) []netip.Addr {
	if p.lost {
		for a := range p.addrs {
			if p.wants(a) {
				addrs = append(addrs, a)
			}
		}
	}
	slices.SortFunc(addrs, netip.Addr.Compare)
	return slices.Compact(addrs)
}

// await records the frontends whose failure may end when the host gets their address.
func (p *Plane) await(batch []updateOf) {
	for i := range batch {
		u := &batch[i]
		if p.sockets && u.New != nil && u.Err != nil && !p.binds(u.Key.Addr) {
			p.awaiting[u.Key] = struct{}{}
		} else {
			delete(p.awaiting, u.Key)
		}
	}
}

// Same implements reconcile.Target. All that a dataplane has of a whole VIP is the address.
func (p *Plane) Same(a, b *vip.Frontend) bool { return a.Key.Whole() || p.Plane.Same(a, b) }
