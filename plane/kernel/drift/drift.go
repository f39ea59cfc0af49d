// Package drift finds at once what other programs change of a dataplane in the kernel: its addresses, its device and its
// nftables table.
//
// Its inputs are the events of internal/netlink/watch and the dataplane's records. Its output is a reconcile.Drift. It
// lets the dataplane read what an event says of the table, and nothing else. It repairs nothing.
package drift

import (
	"context"
	"fmt"
	"log/slog"
	"net/netip"
	"strings"

	"github.com/ironvip/ironvip/internal/netlink/watch"
	"github.com/ironvip/ironvip/plane/kernel/host"
	"github.com/ironvip/ironvip/plane/kernel/usage"
	"github.com/ironvip/ironvip/plane/reconcile"
	"github.com/ironvip/ironvip/vip"
)

// Watch is the watch of one dataplane. A nil Watch sees nothing. The goroutine of Apply calls its methods.
type Watch struct {
	device, table string
	port          func(context.Context) (uint32, error) // see filter.Table.Open
	ignored       uint32
	watcher       *watch.Watcher
	reported      vip.FrontendKey // see representative
}

// Open watches in the network namespace of the calling thread. Routes is the port of the socket that changes
// routes, and port opens the socket that changes the table and returns its port: their events are ignored. It returns
// nil if the kernel can't be watched: then only the resync finds changes.
func Open(ctx context.Context, device, table string, routes uint32, port func(context.Context) (uint32, error), log *slog.Logger) *Watch {
	w, err := watch.Open(watch.Options{Device: device, Protocol: host.RouteProtocol, Table: table})
	if err != nil {
		log.Warn("changes by other programs are not seen at once", "err", err)
		return nil
	}
	x := &Watch{device: device, table: table, port: port, watcher: w}
	err = w.IgnoreRoutes(routes)
	if err == nil {
		err = x.ignore(ctx)
	}
	if err != nil {
		log.Warn("own changes of the kernel are read as if others had made them", "err", err)
	}
	return x
}

// ignore ignores the transactions of the socket that changes the table. An error can have closed that socket, and its
// successor has another port.
func (w *Watch) ignore(ctx context.Context) error {
	port, err := w.port(ctx)
	if err != nil || port == w.ignored {
		return err
	}
	if err = w.watcher.IgnoreTable(port); err == nil {
		w.ignored = port
	}
	return err
}

// Changed is the channel for reconcile.Target.
func (w *Watch) Changed() <-chan struct{} {
	if w == nil {
		return nil
	}
	return w.watcher.Changed()
}

// Forget drops what was seen, because everything is read now.
func (w *Watch) Forget() {
	if w != nil {
		w.watcher.Take(nil)
	}
}

// Muted is watch.Watcher.Muted.
func (w *Watch) Muted(generation func() (uint32, error), commit func() error) error {
	if w == nil {
		return commit()
	}
	return w.watcher.Muted(generation, commit)
}

// Close ends the watch.
func (w *Watch) Close() {
	if w != nil {
		w.watcher.Close()
	}
}

// Touched reports whether others may have touched the table since the last Check or Forget: also if it isn't watched.
func (w *Watch) Touched() bool { return w == nil || w.watcher.Touched() }

// TableState is what a dataplane finds when it reads its table.
type TableState int

const (
	Whole   TableState = iota // as recorded
	Broken                    // missing, or not as this version makes it: any repair rebuilds it
	Altered                   // elements differ from the records, and only a read of everything shows for which frontends
)

// severalAddresses are those that are reported one by one. More than that are one change, and the repair of any frontend
// restores them.
const severalAddresses = 16

// representative returns the frontend that damage of all is reported for. It stays the same as long as there is one, so that
// its budget of repairs is that of the device and of the table. It is one with an address on the device, if there are any.
func (w *Watch) representative(records *usage.Records) *vip.Frontend {
	f := records.Frontends[w.reported]
	if f == nil || !usage.OnDevice(f) {
		if any := records.Any(); any != nil {
			f = any
		}
	}
	if f == nil {
		for _, f = range records.Frontends {
			break
		}
	}
	if f != nil {
		w.reported = f.Key
	}
	return f
}

// DescribeStray describes an address on the device without a frontend.
func DescribeStray(p netip.Prefix) string {
	if p.IsSingleIP() {
		return fmt.Sprintf("address %s belongs to no service", p.Addr())
	}
	return fmt.Sprintf("address %s sends all of %s to the device", p, p.Masked())
}

func strayOf(p netip.Prefix, by watch.Author) reconcile.Stray[vip.Frontend] {
	f := vip.Frontend{Key: vip.FrontendKey{Addr: p.Addr()}, Kind: vip.OnVIP}
	return reconcile.Stray[vip.Frontend]{Observed: reconcile.Observed[vip.Frontend]{Value: f, Damage: []string{DescribeStray(p)}, Orphan: true}, By: by.String()}
}

// Check returns what others have changed. Read is called if they have touched the table, and
// settings if they have switched forwarding off: it describes the settings that are not as the dataplane needs them.
func (w *Watch) Check(ctx context.Context, records *usage.Records, addresses *usage.Addresses, settings func() []string, read func(context.Context) (TableState, error)) (found reconcile.Drift[vip.FrontendKey, vip.Frontend], err error) {
	if w == nil {
		return found, nil
	}
	seen := w.watcher.Take(func(a netip.Addr) bool { return records.VIPs[a] > 0 })
	add := func(f *vip.Frontend, what string, by watch.Author) {
		if f != nil {
			found.Damaged = append(found.Damaged, reconcile.Damage[vip.FrontendKey]{Key: f.Key, What: what, By: by.String()})
		}
	}
	found.Unknown = seen.Lost
	if seen.Unforwarded {
		if wrong := settings(); len(wrong) > 0 { // one repair sets all of them
			add(w.representative(records), strings.Join(wrong, "; "), watch.Author{})
		}
	}
	if seen.Device != nil { // its repair restores all addresses
		addresses.Lost = true
		add(w.representative(records), fmt.Sprintf("device %s was removed, set down, made to speak ARP, or lost an address", w.device), *seen.Device)
		seen.Gone = nil
	}
	if n := len(seen.Gone); n > severalAddresses {
		addresses.Lost = true
		for _, by := range seen.Gone {
			add(w.representative(records), fmt.Sprintf("%d addresses missing from %s", n, w.device), by)
			break
		}
		seen.Gone = nil
	}
	if len(seen.Added) > severalAddresses {
		found.Unknown, seen.Added = true, nil
	}
	for p, by := range seen.Added {
		found.Strays = append(found.Strays, strayOf(p, by))
	}
	for a, by := range seen.Gone {
		add(records.At(a), fmt.Sprintf("address %s missing from %s", a, w.device), by)
	}
	if seen.Table == nil {
		return found, nil
	}
	if err := w.ignore(ctx); err != nil {
		return found, err
	}
	state, err := read(ctx)
	if state == Broken {
		add(w.representative(records), fmt.Sprintf("nftables table inet %s is missing or not as it should be", w.table), *seen.Table)
	}
	if state == Altered {
		found.Unknown, found.By = true, seen.Table.String()
	}
	return found, err
}
