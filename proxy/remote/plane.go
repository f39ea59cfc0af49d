package remote

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"iter"
	"log/slog"
	"net/netip"
	"sync"
	"sync/atomic"

	"github.com/ironvip/ironvip/internal/netlink/watch"
	"github.com/ironvip/ironvip/plane/kernel/host"
	"github.com/ironvip/ironvip/plane/reconcile"
	"github.com/ironvip/ironvip/vip"
)

// Listeners is a proxy that serves frontends, whether or not the host has their addresses: a Client, or a proxy.Target.
type Listeners = reconcile.Plane

// Options are the settings of a Plane.
type Options struct {
	Listeners Listeners
	// Restarted delivers after the Listeners have lost their frontends. Nil: they don't.
	Restarted <-chan struct{}
	// Moved delivers after the host's addresses have changed, which failed frontends may wait for. Nil: they are retried as
	// others are.
	Moved <-chan struct{}
	// Device is the dummy device for VIPs that are not addresses of the host. It is
	// created when first needed. Default "ironvip0".
	Device string
	// Owns reports whether ironvip assigns addr. Local routes by Device to addresses
	// that it owns may be removed, even if an earlier process added them. Nil: only
	// those that this process added.
	Owns func(addr netip.Addr) bool
	Log  *slog.Logger

	device device // for tests
}

// Plane is the userspace dataplane with the addresses of its VIPs. One goroutine at a time may call Apply, Actual, Check
// and Close. The other methods may be called concurrently.
type Plane struct {
	Listeners
	log       *slog.Logger
	addresses *addresses
	watcher   *watch.Watcher               // of the addresses; nil: they can't be watched
	vips      map[vip.FrontendKey]struct{} // frontends that use their address
	awaited   map[vip.FrontendKey]struct{} // failed because their address was not the host's

	changed          chan struct{} // has room for one
	restarted, moved atomic.Bool   // since the last Check
	stop             context.CancelFunc
	work             sync.WaitGroup
}

// New returns a Plane. It changes nothing before Apply.
func New(o Options) *Plane {
	o.Device = cmp.Or(o.Device, "ironvip0")
	var watched *kernelDevice
	if o.device == nil {
		watched = &kernelDevice{name: o.Device}
		o.device = watched
	}
	p := &Plane{
		Listeners: o.Listeners, log: cmp.Or(o.Log, slog.New(slog.DiscardHandler)),
		addresses: newAddresses(o.device, o.Device, o.Owns),
		vips:      make(map[vip.FrontendKey]struct{}), awaited: make(map[vip.FrontendKey]struct{}),
		changed: make(chan struct{}, 1),
	}
	if watched != nil {
		var err error
		if p.watcher, err = watch.Open(watch.Options{Device: o.Device, Protocol: host.RouteProtocol}); err == nil && watched.open() == nil {
			err = p.watcher.IgnoreRoutes(watched.d.Port())
		}
		if err != nil {
			p.log.Warn("changes of addresses are not seen at once", "err", err)
		}
	}
	ctx, stop := context.WithCancel(context.Background())
	p.stop = stop
	p.work.Go(func() { p.merge(ctx, o.Restarted, o.Moved) })
	return p
}

// merge makes one channel of those that tell of changes.
func (p *Plane) merge(ctx context.Context, restarted, moved <-chan struct{}) {
	for {
		select {
		case <-ctx.Done():
			return
		case <-p.watcher.Changed():
		case <-restarted:
			p.restarted.Store(true)
		case <-moved:
			p.moved.Store(true)
		}
		select {
		case p.changed <- struct{}{}:
		default:
		}
	}
}

// Close ends the watching of addresses. They stay on the device, for the next process to adopt or remove.
func (p *Plane) Close() error {
	p.stop()
	p.work.Wait()
	p.watcher.Close()
	p.addresses.device.close()
	return nil
}

// Apply implements reconcile.Target: a frontend listens before its address is added, and its address is removed after it.
func (p *Plane) Apply(ctx context.Context, batch []reconcile.Update[vip.FrontendKey, vip.Frontend]) error {
	if err := p.Listeners.Apply(ctx, batch); err != nil {
		return err
	}
	for i := range batch {
		u := &batch[i]
		_, used := p.vips[u.Key]
		switch {
		case u.New == nil:
			if used {
				p.unuse(u.Key)
			}
			u.Err = errors.Join(u.Err, p.addresses.drop(u.Key.Addr))
		case u.Err != nil:
		case u.New.Kind == vip.OnVIP:
			if !used {
				p.use(u.Key)
			}
			u.Err = p.addresses.ensure(u.Key.Addr)
		case used:
			p.unuse(u.Key)
		}
		if u.New != nil && u.Err != nil && !p.addresses.binds(u.Key.Addr) {
			p.awaited[u.Key] = struct{}{}
		} else {
			delete(p.awaited, u.Key)
		}
	}
	return nil
}

func (p *Plane) use(key vip.FrontendKey) {
	p.vips[key] = struct{}{}
	p.addresses.use(key.Addr)
}

func (p *Plane) unuse(key vip.FrontendKey) {
	delete(p.vips, key)
	p.addresses.unuse(key.Addr)
}

// arrived returns the frontends whose address has become one of the host's.
func (p *Plane) arrived() (keys []vip.FrontendKey) {
	for key := range p.awaited {
		if p.addresses.binds(key.Addr) {
			keys = append(keys, key)
		}
	}
	return keys
}

// Actual implements reconcile.Target. It yields addresses that an earlier process left on the device as orphans, with port 0
// in their key.
func (p *Plane) Actual(ctx context.Context) iter.Seq2[reconcile.Observed[vip.Frontend], error] {
	type observed = reconcile.Observed[vip.Frontend]
	return func(yield func(observed, error) bool) {
		p.watcher.Take(nil) // what follows shows it, too
		if err := p.addresses.refresh(); err != nil {
			yield(observed{}, fmt.Errorf("read the addresses of %s: %w", p.addresses.name, err))
			return
		}
		for o, err := range p.Listeners.Actual(ctx) {
			if err == nil && o.Value.Kind == vip.OnVIP {
				if _, used := p.vips[o.Value.Key]; !used { // of an earlier agent
					p.use(o.Value.Key)
				}
				if damage := p.addresses.damage(o.Value.Key.Addr); damage != "" {
					o.Damage = append(o.Damage, damage)
				}
			}
			if !yield(o, err) || err != nil {
				return
			}
		}
		for _, addr := range p.addresses.orphans() {
			if !yield(observed{Value: vip.Frontend{Key: vip.FrontendKey{Addr: addr}, Kind: vip.OnVIP}, Orphan: true}, nil) {
				return
			}
		}
	}
}

// Changed implements reconcile.Target.
func (p *Plane) Changed() <-chan struct{} { return p.changed }

// UsesDevice returns a channel that is closed once the Plane has added, adopted or removed an address on the device. With
// addresses of the host alone, it does nothing there.
func (p *Plane) UsesDevice() <-chan struct{} { return p.addresses.used }

// Check implements reconcile.Target: it finds addresses whose routes another program has removed. With the device, the
// kernel removes them without a word.
func (p *Plane) Check(context.Context) (reconcile.Drift[vip.FrontendKey, vip.Frontend], error) {
	var found reconcile.Drift[vip.FrontendKey, vip.Frontend]
	seen := p.watcher.Take(p.addresses.needs)
	found.Unknown = seen.Lost || seen.Device != nil
	found.Unknown = p.restarted.Swap(false) || found.Unknown
	if p.moved.Swap(false) {
		found.Arrived = p.arrived()
	}
	if len(seen.Gone) == 0 {
		return found, nil
	}
	user := make(map[netip.Addr]vip.FrontendKey, len(seen.Gone)) // one of each address
	for key := range p.vips {
		user[key.Addr] = key
	}
	for addr, by := range seen.Gone {
		delete(p.addresses.there, addr)
		found.Damaged = append(found.Damaged, reconcile.Damage[vip.FrontendKey]{Key: user[addr], What: p.addresses.damage(addr), By: by.String()})
	}
	return found, nil
}
