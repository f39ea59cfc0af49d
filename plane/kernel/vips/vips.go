// Package vips makes the virtual addresses of a dataplane addresses of this host: local routes by our device.
//
// Plane is a reconcile.Plane around another one, which serves the frontends. Its inputs are the updates of frontends, and
// what the kernel says of the device. Its outputs are one train of messages for each batch, the damage and the orphans of
// the device, and their repair. It owns the device with every route of our protocol, for all dataplanes, and nothing else. It makes the device when the first address needs it.
//
// Rules come before an address and go after it (apply.go). address.go records what each address needs, actual.go reads the
// device, watched.go finds changes by other programs, and remains.go what a dataplane has left.
package vips

import (
	"cmp"
	"context"
	"log/slog"
	"net/netip"
	"sync"
	"sync/atomic"

	"github.com/ironvip/ironvip/internal/netlink/watch"
	"github.com/ironvip/ironvip/plane/kernel/host"
	"github.com/ironvip/ironvip/plane/reconcile"
	"github.com/ironvip/ironvip/vip"
)

type (
	updateOf = reconcile.Update[vip.FrontendKey, vip.Frontend]
	observed = reconcile.Observed[vip.Frontend]
	driftOf  = reconcile.Drift[vip.FrontendKey, vip.Frontend]
)

// DefaultDevice is the name of the device.
const DefaultDevice = "ironvip0"

// Options are the settings of a Plane.
type Options struct {
	// Plane serves the frontends, whether or not the host has their addresses. It must refuse packets to other ports of an
	// address from before the first frontend there until after the last one.
	Plane  reconcile.Plane
	Device string // default DefaultDevice
	// Sockets means that the frontends are sockets of this host. An address that the host has anyway then needs no route. A
	// route goes after the frontend, and not before it.
	Sockets bool
	// Moved delivers after the host's addresses have changed, which failed frontends may wait for. Nil: they are retried as
	// others are.
	Moved <-chan struct{}
	Log   *slog.Logger

	// Kernel is used instead of the kernel's device, which is then not watched; for tests.
	Kernel *host.Device
}

// Plane is a dataplane with the addresses of its frontends. One goroutine at a time may call Apply, Actual, Check, Remove
// and Close. The other methods may be called concurrently.
type Plane struct {
	reconcile.Plane
	name     string
	sockets  bool
	log      *slog.Logger
	device   *host.Device
	watcher  *watch.Watcher             // of the device; nil: it can't be watched
	binds    func(addr netip.Addr) bool // see host.CanBind
	addrs    map[netip.Addr]address
	adopted  bool            // the device and the frontends have been read
	ensured  bool            // this process has made or prepared the device
	lost     bool            // the device may lack routes that no update is about
	reported vip.FrontendKey // see representative
	awaiting map[vip.FrontendKey]struct{}

	uses    chan struct{} // see UsesDevice
	changed chan struct{} // has room for one
	moved   atomic.Bool   // since the last Check
	stop    context.CancelFunc
	work    sync.WaitGroup
}

var _ reconcile.Plane = (*Plane)(nil)

// New opens the device in the network namespace of the calling thread, and changes nothing before Apply or Actual.
func New(o Options) (*Plane, error) {
	p := &Plane{
		Plane: o.Plane, name: cmp.Or(o.Device, DefaultDevice), sockets: o.Sockets, log: cmp.Or(o.Log, slog.New(slog.DiscardHandler)), device: o.Kernel,
		binds: host.CanBind, addrs: map[netip.Addr]address{}, awaiting: map[vip.FrontendKey]struct{}{},
		uses: make(chan struct{}), changed: make(chan struct{}, 1),
	}
	if p.device == nil {
		var err error
		if p.device, err = host.OpenDevice(p.name, new(atomic.Uint64)); err != nil {
			return nil, err
		}
		p.watch()
	}
	ctx, stop := context.WithCancel(context.Background())
	p.stop = stop
	p.work.Go(func() { p.merge(ctx, o.Moved) })
	return p, nil
}

// watch begins to watch the device.
func (p *Plane) watch() {
	w, err := watch.Open(watch.Options{Device: p.name, Anchor: host.Anchor.Addr(), Protocol: host.RouteProtocol})
	if err != nil {
		p.log.Warn("changes of addresses by other programs are not seen at once", "err", err)
		return
	}
	p.watcher = w
	if err := w.IgnoreRoutes(p.device.Port()); err != nil {
		p.log.Warn("own changes of addresses are read as if others had made them", "err", err)
	}
}

// merge makes one channel of those that tell of changes.
func (p *Plane) merge(ctx context.Context, moved <-chan struct{}) {
	for {
		select {
		case <-ctx.Done():
			return
		case <-p.Plane.Changed():
		case <-p.watcher.Changed():
		case <-moved:
			p.moved.Store(true)
		}
		select {
		case p.changed <- struct{}{}:
		default:
		}
	}
}

// Changed implements reconcile.Target.
func (p *Plane) Changed() <-chan struct{} { return p.changed }

// UsesDevice returns a channel that is closed once the Plane has added, adopted or removed an address on the device. With
// addresses that the host has anyway, it does nothing there.
func (p *Plane) UsesDevice() <-chan struct{} { return p.uses }

// Writes returns the number of addresses that were added or removed.
func (p *Plane) Writes() uint64 { return p.device.Stats.Load() }

// Remove removes the device with all addresses. An agent that stops leaves them in place; Remove is for a demo. Only Close
// may follow.
func (p *Plane) Remove() error { return p.device.RemoveAll() }

// Close ends the watching. The addresses stay on the device, for the next process to adopt or remove. The inner Plane is
// its owner's to close.
func (p *Plane) Close() error {
	p.stop()
	p.work.Wait()
	p.watcher.Close()
	p.device.Close()
	return nil
}
