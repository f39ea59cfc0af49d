package vips

import (
	"context"
	"fmt"

	"github.com/ironvip/ironvip/internal/netlink/watch"
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
	add := func(key vip.FrontendKey, what string, by watch.Author) {
		if p.isUser(key) {
			found.Damaged = append(found.Damaged, reconcile.Damage[vip.FrontendKey]{Key: key, What: what, By: by.String()})
		}
	}
	several := len(seen.Gone) > severalAddresses
	if seen.Device != nil { // its repair restores all addresses
		p.lost = true
		add(p.representative(), fmt.Sprintf("device %s was removed, set down, made to speak ARP, or lost an address", p.name), *seen.Device)
	}
	for a, by := range seen.Gone {
		p.setRoute(a, absent)
		switch {
		case seen.Device != nil:
		case !several:
			add(p.userOf(a), p.missing(a), by)
		case !p.lost:
			p.lost = true
			add(p.representative(), fmt.Sprintf("%d addresses missing from %s", len(seen.Gone), p.name), by)
		}
	}
	if len(seen.Added) > severalAddresses {
		found.Unknown, seen.Added = true, nil
	}
	for w, by := range seen.Added {
		p.found = true
		if p.addrs[w.Addr()].users == 0 {
			p.setRoute(w.Addr(), doubtful)
		}
		found.Strays = append(found.Strays, reconcile.Stray[vip.Frontend]{Observed: strayOf(w.Addr(), []string{describeStray(w)}), By: by.String()})
	}
	return found, err
}

// representative returns the frontend that damage of all is reported for. It stays the same as long as there is one, so
// that its budget of repairs is that of the device.
func (p *Plane) representative() vip.FrontendKey {
	if p.isUser(p.reported) && p.wants(p.reported.Addr) {
		return p.reported
	}
	for key := range p.users {
		if p.wants(key.Addr) {
			p.reported = key
			return key
		}
	}
	return vip.FrontendKey{}
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
