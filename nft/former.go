package nft

import (
	"context"
	"net/netip"

	"github.com/ironvip/ironvip/plane/kernel/conntrack"
	"github.com/ironvip/ironvip/plane/kernel/usage"
	"github.com/ironvip/ironvip/vip"
)

// The end of a dataplane beside another one that has replaced it: Retire, then Open until it returns zero, then End. Each
// may be repeated, also by another process.

// Retire makes the table take no new connections. Open ones continue; clients of UDP move to the other dataplane with their
// next datagram. It costs two transactions and one dump of connection tracking.
func (r *Remains) Retire(ctx context.Context) error {
	if r.Table == "" {
		return nil
	}
	if err := r.target.fw.Retire(ctx); err != nil {
		return err
	}
	return r.sweep(ctx, func(at vip.FrontendKey, _ *conntrack.Entry) (end bool) { return at.Protocol == vip.UDP })
}

// Open returns the open connections of the services; a frontend for internal clients counts with the one for everyone. It
// costs one dump of connection tracking. It may be called concurrently with the other methods,
// except Close.
func (r *Remains) Open(ctx context.Context) (map[vip.FrontendKey]int, error) {
	open := map[vip.FrontendKey]int{}
	err := r.sweep(ctx, func(at vip.FrontendKey, e *conntrack.Entry) (end bool) {
		if e.Open() {
			open[at]++
		}
		return false
	})
	return open, err
}

// Connections implements reconcile.Connections, as Target does. It may be called concurrently with the other methods, except
// Close.
func (r *Remains) Connections(ctx context.Context, key vip.FrontendKey) (map[netip.AddrPort]int, error) {
	if r.Table == "" {
		return nil, nil
	}
	open, err := r.target.Connections(ctx, key)
	if conntrack.IsMissing(err) {
		return nil, nil
	}
	return open, err
}

// End ends the connections that are still open, and removes the table. The device and the addresses stay.
func (r *Remains) End(ctx context.Context) error {
	if r.Table == "" {
		return nil
	}
	if err := r.sweep(ctx, func(vip.FrontendKey, *conntrack.Entry) bool { return true }); err != nil {
		return err // the table is the record of what is left
	}
	return r.target.fw.Remove(ctx)
}

// sweep calls end for each entry of the services, see conntrack.Table.Sweep. A kernel without ctnetlink lists none.
func (r *Remains) sweep(ctx context.Context, end func(vip.FrontendKey, *conntrack.Entry) bool) error {
	if len(r.Services) == 0 {
		return nil
	}
	keys := make([]vip.FrontendKey, len(r.Services))
	for i := range keys {
		keys[i] = r.Services[i].Key
	}
	served := usage.Serving(keys)
	err := r.target.flows.Sweep(ctx, 0, conntrack.Flow{}, func(e *conntrack.Entry) bool {
		at, ours := served(e.Frontend)
		return e.Translated && ours && end(at, e)
	})
	if conntrack.IsMissing(err) {
		return nil
	}
	return err
}
