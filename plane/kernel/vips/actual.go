package vips

import (
	"context"
	"fmt"
	"iter"
	"maps"
	"net/netip"
	"slices"

	"github.com/ironvip/ironvip/plane/kernel/host"
	"github.com/ironvip/ironvip/plane/kernel/usage"
	"github.com/ironvip/ironvip/vip"
)

// Actual implements reconcile.Target. It costs one read of the device besides that of the inner plane. An address without a
// frontend is an orphan, with port and protocol 0 in its key.
func (p *Plane) Actual(ctx context.Context) iter.Seq2[observed, error] {
	return func(yield func(observed, error) bool) {
		p.watcher.Take(nil) // what follows shows it, too
		s, err := p.read(ctx)
		if err != nil {
			yield(observed{}, fmt.Errorf("read the addresses of %s: %w", p.name, err))
			return
		}
		whole := map[netip.Addr]observed{}
		var orphans []observed
		add := func(a netip.Addr, o observed) {
			if had, has := whole[a]; has {
				had.Damage = append(o.Damage, had.Damage...)
				o = had
			}
			whole[a] = o
		}
		for o, err := range p.Plane.Actual(ctx) {
			switch {
			case err != nil:
				yield(o, err)
				return
			case o.Orphan && o.Value.Key.Whole():
				orphans = append(orphans, o) // of an address that may have more to remove
				continue
			case o.Orphan:
			case usage.OnDevice(&o.Value):
				p.use(o.Value.Key, true)
				o.Damage = append(o.Damage, p.damage(o.Value.Key.Addr, s.Fault)...)
			}
			if !yield(o, nil) {
				return
			}
		}
		p.adopted = true
		for a, e := range p.addrs {
			_, has := s.Addrs[a]
			switch { // an orphan becomes the VIP of a service that wants it
			case p.isUser(vip.FrontendKey{Addr: a}):
				add(a, observed{Value: wholeVIP(a), Damage: p.damage(a, s.Fault)})
			case len(e.users) > 0 || !has:
			default:
				add(a, usage.Orphan(a, fmt.Sprintf("address %s belongs to no service", a)))
			}
		}
		for _, o := range orphans {
			add(o.Value.Key.Addr, o)
		}
		for _, a := range slices.SortedFunc(maps.Keys(whole), netip.Addr.Compare) {
			if !yield(whole[a], nil) {
				return
			}
		}
	}
}

// wholeVIP is a VIP that this host has for its own programs.
func wholeVIP(a netip.Addr) vip.Frontend {
	return vip.Frontend{Key: vip.FrontendKey{Addr: a}, Kind: vip.OnVIP, Forward: vip.ForwardHost}
}

// read reads the device and records the routes that it has.
func (p *Plane) read(ctx context.Context) (s host.DeviceState, err error) {
	if s, err = p.device.Read(ctx); err != nil {
		return s, err
	}
	p.lost = false // what is missing is damage
	for a, e := range p.addrs {
		if len(e.users) == 0 || e.route == absent {
			p.setRoute(a, absent)
		} else {
			p.setRoute(a, doubtful)
		}
	}
	for a := range s.Addrs {
		p.setRoute(a, present)
	}
	return s, nil
}
