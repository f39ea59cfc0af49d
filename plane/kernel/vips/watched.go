package vips

import (
	"cmp"
	"context"
	"fmt"

	"github.com/ironvip/ironvip/plane/reconcile"
	"github.com/ironvip/ironvip/vip"
)

// severalAddresses are those that are reported one by one. More than that are one change, and the repair of any frontend
// restores them.
const severalAddresses = 16

// Check implements reconcile.Target: it finds what others have changed of the device, besides what the inner plane finds.
// With the device, the kernel removes routes without a word.
func (p *Plane) Check(ctx context.Context) (driftOf, error) {
	found, err := p.Plane.Check(ctx)
	if p.moved.Swap(false) {
		found.Arrived = append(found.Arrived, p.arrived()...)
	}
	seen := p.watcher.Take(p.wants)
	found.Unknown = found.Unknown || seen.Lost
	add := func(key vip.FrontendKey, what string) {
		found.Damaged = append(found.Damaged, reconcile.Damage[vip.FrontendKey]{Key: key, What: what})
	}
	all := "" // what the repair of one frontend restores for all
	for a := range seen.Gone {
		p.setRoute(a, doubtful)
	}
	if !seen.Device && len(seen.Gone) > severalAddresses {
		all, seen.Device = fmt.Sprintf("%d addresses missing from %s", len(seen.Gone), p.name), true
	}
	switch key, some := p.representative(); {
	case !seen.Device:
		for a := range seen.Gone {
			add(p.addrs[a].users[0], p.missing(a))
		}
	case some:
		p.lost = true
		add(key, cmp.Or(all, fmt.Sprintf("device %s was removed, set down, made to speak ARP, or lost an address", p.name)))
	}
	return found, err
}

// representative returns the frontend that damage of all is reported for, if there is one. It stays the same as long as
// possible, so that the changes of the device count for one frontend.
func (p *Plane) representative() (key vip.FrontendKey, some bool) {
	if p.wants(p.reported.Addr) && p.isUser(p.reported) {
		return p.reported, true
	}
	for a, e := range p.addrs {
		if p.wants(a) {
			p.reported = e.users[0]
			return p.reported, true
		}
	}
	return key, false
}

// arrived returns the frontends whose address has become one of the host's.
func (p *Plane) arrived() (keys []vip.FrontendKey) {
	for key := range p.awaiting {
		if p.binds(key.Addr) {
			keys = append(keys, key)
		}
	}
	return keys
}
