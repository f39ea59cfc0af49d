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
		var orphans []observed
		for o, err := range p.Plane.Actual(ctx) {
			switch {
			case err != nil:
				yield(o, err)
				return
			case o.Orphan:
				orphans = append(orphans, o) // of an address that may be a stray, too
				continue
			case usage.OnDevice(&o.Value):
				p.use(o.Value.Key, true)
				o.Damage = append(o.Damage, p.damage(o.Value.Key.Addr, s.Fault)...)
			}
			if !yield(o, nil) {
				return
			}
		}
		p.adopted = true
		strays := map[netip.Addr][]string{}
		for a := range s.Addrs {
			if len(p.addrs[a].users) == 0 {
				strays[a] = []string{describeStray(host.Single(a))}
			}
		}
		for _, w := range s.Wide {
			strays[w.Addr()] = append(strays[w.Addr()], describeStray(w))
		}
		for _, o := range orphans {
			if o.Value.Key.Leftover() {
				o.Damage = append(o.Damage, strays[o.Value.Key.Addr]...)
				delete(strays, o.Value.Key.Addr)
			}
			if !yield(o, nil) {
				return
			}
		}
		for _, a := range slices.SortedFunc(maps.Keys(strays), netip.Addr.Compare) {
			if !yield(usage.Orphan(a, strays[a]...), nil) {
				return
			}
		}
	}
}

// read reads the device and records the routes that it has. Addresses that an earlier version or another program has
// put there become routes first.
func (p *Plane) read(ctx context.Context) (s host.DeviceState, err error) {
	if s, err = p.device.Read(ctx); err == nil && s.Plain && !p.ensured && p.prepare() == nil {
		s, err = p.device.Read(ctx)
	}
	if err != nil {
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
	for _, w := range s.Wide {
		p.setRoute(w.Addr(), doubtful)
	}
	for a := range s.Addrs {
		p.setRoute(a, present)
	}
	return s, nil
}

// describeStray describes an address on the device without a frontend.
func describeStray(p netip.Prefix) string {
	if p.IsSingleIP() {
		return fmt.Sprintf("address %s belongs to no service", p.Addr())
	}
	return fmt.Sprintf("address %s sends all of %s to the device", p, p.Masked())
}
