package proxy

import (
	"context"
	"net/netip"

	"github.com/ironvip/ironvip/plane/reconcile"
	"github.com/ironvip/ironvip/vip"
)

// Disturbed implements reconcile.Watched.
func (t *Target) Disturbed() <-chan struct{} { return t.watcher.Changed() }

// UsesDevice returns a channel that is closed once the Target has added, adopted or removed an address on the device. With
// addresses of the host alone, it does nothing there.
func (t *Target) UsesDevice() <-chan struct{} { return t.addresses.used }

// Look implements reconcile.Watched: it finds addresses that another program has removed from the device. A device that is
// down still serves its IPv4 addresses, and the kernel removes those of IPv6.
func (t *Target) Look(context.Context) (reconcile.Sight[vip.FrontendKey, vip.Frontend], error) {
	var sight reconcile.Sight[vip.FrontendKey, vip.Frontend]
	seen := t.watcher.Take(t.addresses.needs)
	sight.Unknown = seen.Lost
	for addr, by := range seen.Gone {
		delete(t.addresses.there, addr)
		sight.Damaged = append(sight.Damaged, reconcile.Damage[vip.FrontendKey]{Key: t.userOf(addr), What: t.addresses.damage(addr), By: by.String()})
	}
	return sight, nil
}

// needs reports whether addr belongs on the device.
func (a *addresses) needs(addr netip.Addr) bool { return a.put[addr] && a.users[addr].n > 0 }

// userOf returns one frontend that listens at addr. If the last one that was known has ended, it looks for another one among
// all.
func (t *Target) userOf(addr netip.Addr) vip.FrontendKey {
	u := t.addresses.users[addr]
	if u.one != (place{}) {
		return u.one.key(addr)
	}
	t.mu.RLock()
	defer t.mu.RUnlock()
	for key, f := range t.frontends {
		if key.Addr == addr && f.spec.Kind == vip.OnVIP {
			u.one = placeAt(key)
			t.addresses.users[addr] = u
			break
		}
	}
	return u.one.key(addr)
}
