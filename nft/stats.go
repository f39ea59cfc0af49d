package nft

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"sync"

	"go4.org/netipx"
	"golang.org/x/sys/unix"

	"github.com/ironvip/ironvip/internal/nftwire"
	"github.com/ironvip/ironvip/plane/kernel/conntrack"
	"github.com/ironvip/ironvip/plane/kernel/filter"
	"github.com/ironvip/ironvip/plane/kernel/usage"
	"github.com/ironvip/ironvip/plane/reconcile"
	"github.com/ironvip/ironvip/vip"
)

// counterReader reads counters, for one caller at a time. It has its own socket, so a long read delays nothing else.
type counterReader struct {
	table string
	mu    *sync.Mutex
	conn  *nftwire.Conn // open during a read only
}

func newCounterReader(table string) counterReader {
	return counterReader{table, &sync.Mutex{}, nftwire.NewConn()}
}

// getElement calls each for an element, and reports whether there is one.
type getElement func(e element, each func(*nftwire.Element)) (bool, error)

// read calls f with a function that reads single elements.
func (r *counterReader) read(ctx context.Context, f func(get getElement) error) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	if err := r.conn.Open(ctx); err != nil {
		return err
	}
	defer r.conn.Close()
	return f(func(e element, each func(*nftwire.Element)) (bool, error) {
		found, err := r.conn.Element(ctx, r.table, e.set.String(), []byte(e.key), []byte(e.end), each)
		if err != nil {
			err = fmt.Errorf("read a counter of nftables set %s: %w", e.set, err)
		}
		return found, err
	})
}

// list calls each for all elements of a set, and for none if it is missing.
func (r *counterReader) list(ctx context.Context, set setID, each func(*nftwire.Element)) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	if err := r.conn.Open(ctx); err != nil {
		return err
	}
	defer r.conn.Close()
	err := r.conn.Counters(ctx, r.table, set.String(), each)
	if err != nil && !errors.Is(err, unix.ENOENT) {
		return fmt.Errorf("list nftables set %s: %w", set, err)
	}
	return nil
}

// replaceRecords replaces the records.
func (t *Target) replaceRecords(r *usage.Records) {
	t.reading.Lock()
	t.records = r
	t.reading.Unlock()
}

// recorded returns the frontend at a key, or nil.
func (t *Target) recorded(k vip.FrontendKey) *vip.Frontend {
	t.reading.RLock()
	defer t.reading.RUnlock()
	return t.records.Frontends[k]
}

// recordedAt returns the frontend for everyone that counts refused clients at a key, or nil.
func (t *Target) recordedAt(k vip.FrontendKey) *vip.Frontend {
	if k.Port > 0 {
		return t.recorded(k)
	}
	t.reading.RLock()
	defer t.reading.RUnlock()
	if ranges := t.records.Ranges[usage.PortSpaceOf(&vip.Frontend{Key: k})]; len(ranges) > 0 {
		return t.records.Frontends[ranges[0]]
	}
	return nil
}

// refusals reads the counters of refused clients.
func (t *Target) refusals(ctx context.Context) (filter.Refusals, error) {
	r := t.stats
	r.mu.Lock()
	defer r.mu.Unlock()
	if err := r.conn.Open(ctx); err != nil {
		return nil, err
	}
	defer r.conn.Close()
	return filter.ReadRefusals(ctx, r.conn, r.table)
}

// Counted implements reconcile.Statistics.
func (*Target) Counted() reconcile.Counted { return reconcile.Counted{Packets: true, Inactive: true} }

// addCounter adds a counter to a traffic.
func addCounter(t *reconcile.Traffic, w way, v reconcile.Volume) {
	switch w {
	case opened:
		t.Add(reconcile.Traffic{Connections: v.Packets, In: v})
	case in:
		t.Add(reconcile.Traffic{In: v})
	case out:
		t.Add(reconcile.Traffic{Out: v})
	}
}

// volumeOf returns the counter of an element.
func volumeOf(x *nftwire.Element) reconcile.Volume {
	return reconcile.Volume{Packets: x.Packets, Bytes: x.Bytes}
}

// addEntry adds an entry of connection tracking.
func addEntry(t *reconcile.Traffic, e *conntrack.Entry) {
	if e.Established() {
		t.Active++
	} else {
		t.Inactive++
	}
}

// Totals implements reconcile.Statistics. It costs one dump of each set of totals, and one of connection tracking for
// each family and protocol of the frontends with traffic, which the kernel filters by protocol. Frontends without traffic are
// missing, and those for internal clients: the one for everyone with their address and ports has their connections.
func (t *Target) Totals(ctx context.Context, want func(vip.FrontendKey) bool) (map[vip.FrontendKey]reconcile.Traffic, error) {
	type total struct {
		counted [ways]reconcile.Volume // a list may repeat an element
		sum     reconcile.Traffic
	}
	all := map[vip.FrontendKey]*total{}
	counted := usage.NewRecords(&netipx.IPSet{})
	parts := map[listenerPart]bool{}
	for set := range counterSets {
		if set.kind != kindTotals {
			continue
		}
		err := t.stats.list(ctx, set, func(x *nftwire.Element) {
			v := volumeOf(x)
			if v == (reconcile.Volume{}) {
				return // most frontends of a large fleet
			}
			k, ok := keyOfTotal(set, x)
			if !ok || !want(k) {
				return
			}
			if all[k] == nil {
				all[k] = &total{}
				parts[listenerPart{set.family, k.Protocol}] = true
				counted.Set(k, &vip.Frontend{Key: k})
			}
			all[k].counted[set.way] = v
		})
		if err != nil {
			return nil, err
		}
	}
	refused, err := t.refusals(ctx)
	if err != nil {
		return nil, err
	}
	for k := range refused {
		if at := t.recordedAt(k); at != nil && all[at.Key] == nil && want(at.Key) {
			all[at.Key] = &total{}
		}
	}
	for p := range parts {
		match := conntrack.Flow{Frontend: vip.FrontendKey{Protocol: p.protocol}}
		err := t.flows.Each(ctx, p.family, match, func(e *conntrack.Entry) bool {
			if f := counted.At(e.Frontend); f != nil && e.Translated {
				addEntry(&all[f.Key].sum, e)
			}
			return true
		})
		if err != nil {
			return nil, err
		}
	}
	found := make(map[vip.FrontendKey]reconcile.Traffic, len(all))
	for k, x := range all {
		for w, v := range x.counted {
			addCounter(&x.sum, way(w), v)
		}
		x.sum.Refused = refused.Take(k)
		found[k] = x.sum
	}
	return found, nil
}

// listenerPart is what the kernel can filter connection tracking by, for many frontends.
type listenerPart struct {
	family   vip.Family
	protocol vip.Protocol
}

// keyOfTotal returns the frontend that an element of a set of totals counts.
func keyOfTotal(set setID, x *nftwire.Element) (vip.FrontendKey, bool) {
	key, end := fields{b: x.Key}, fields{b: x.End}
	k := key.listener(set)
	if set.origin.ranged() {
		k.LastPort = end.listener(set).Port
	}
	return k, !key.short && !end.short
}

// Breakdown implements reconcile.Statistics. It costs a query for each counter of the frontend and of its backends, and
// one dump of connection tracking, which the kernel filters by address (of IPv4), protocol and port. A frontend for
// internal clients has no counters: the one for everyone counts its backends, too. The backends of all ranges of ports of an
// address and protocol count together, by their addresses alone.
func (t *Target) Breakdown(ctx context.Context, key vip.FrontendKey) (sum reconcile.Breakdown, found bool, err error) {
	of := map[netip.AddrPort]*reconcile.Traffic{}
	for _, k := range []vip.FrontendKey{key, otherAudience(key)} {
		f := t.recorded(k)
		if key.Audience != vip.Everyone || f == nil {
			continue
		}
		for _, b := range f.Backends {
			of[b.Addr] = &reconcile.Traffic{}
		}
	}
	err = t.stats.read(ctx, func(get getElement) error {
		var err error
		one := func(e element, into *reconcile.Traffic) {
			if err != nil {
				return
			}
			var there bool
			there, err = get(e, func(x *nftwire.Element) { addCounter(into, e.set.way, volumeOf(x)) })
			found = found || there && e.set.kind == kindTotals
		}
		totals(key, func(e element) { one(e, &sum.Traffic) })
		for a, traffic := range of {
			for e := range shares(key, a) {
				one(e, traffic)
			}
		}
		return err
	})
	sum.Endpoints = map[netip.AddrPort]reconcile.Traffic{}
	if err != nil || !found {
		return sum, false, err
	}
	refused, err := t.refusals(ctx)
	if err != nil {
		return sum, false, err
	}
	sum.Refused = refused.Take(key)
	err = t.flows.Entries(ctx, key, func(e *conntrack.Entry) {
		if !e.Translated {
			return
		}
		addEntry(&sum.Traffic, e)
		traffic := of[e.Backend]
		if traffic == nil {
			traffic = of[netip.AddrPortFrom(e.Backend.Addr(), 0)]
		}
		if traffic != nil {
			addEntry(traffic, e)
		}
	})
	for a, traffic := range of {
		sum.Endpoints[a] = *traffic
	}
	return sum, err == nil, err
}
