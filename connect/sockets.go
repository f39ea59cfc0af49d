package connect

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"iter"
	"net/netip"
	"sync"
	"time"

	"github.com/ironvip/ironvip/internal/sockdiag"
	"github.com/ironvip/ironvip/plane/reconcile"
	"github.com/ironvip/ironvip/vip"
)

// The names of the states of TCP, as other dataplanes have them.
var states = [...]string{1: "ESTABLISHED", 2: "SYN_SENT", 4: "FIN_WAIT", 5: "FIN_WAIT", 8: "CLOSE_WAIT", 9: "LAST_ACK", 11: "CLOSING"}

// each calls f for every connection that was balanced. The programs note it at the socket, and with UDP in a map. Sockets of UDP
// that are not connected have no end, so they are missing.
func (p *Plane) each(ctx context.Context, f func(sockdiag.Socket, frontend, netip.AddrPort)) (err error) {
	var failed error
	err = sockdiag.Each(ctx, uint8(vip.TCP), p.objects.maps["connected"].FD(), func(s sockdiag.Socket, value []byte) {
		var n note
		if _, err := binary.Decode(value, binary.NativeEndian, &n); err == nil && n.Balanced.Backend.at() == s.To {
			f(s, n.Balanced.Frontend, s.To)
		}
	})
	if err == nil {
		err = sockdiag.Each(ctx, uint8(vip.UDP), -1, func(s sockdiag.Socket, _ []byte) {
			b := placeOf(s.To)
			asked, found, err := lookup[session, partner](p.sessions, session{s.Cookie, frontend{b.Addr, b.Port | reverse}})
			if failed = errors.Join(failed, err); found {
				f(s, asked.Frontend, s.To)
			}
		})
	}
	if err = errors.Join(err, failed); err != nil {
		return fmt.Errorf("list connections: %w", err)
	}
	return nil
}

// openConnections are those of a moment ago, so that many questions cost one list.
type openConnections struct {
	mu   sync.Mutex
	at   time.Time
	list []reconcile.Connection
}

// listAge is how long a list is used.
const listAge = time.Second

// connections returns the open connections, as of a second ago at the most. It costs O(sockets of the host).
func (p *Plane) connections(ctx context.Context) ([]reconcile.Connection, error) {
	o := &p.open
	o.mu.Lock()
	defer o.mu.Unlock()
	if time.Since(o.at) < listAge {
		return o.list, nil
	}
	var list []reconcile.Connection
	err := p.each(ctx, func(s sockdiag.Socket, f frontend, b netip.AddrPort) {
		c := reconcile.Connection{Frontend: f.key(), Client: s.From, Backend: b, State: states[s.State]}
		if c.Frontend.Protocol == vip.UDP {
			c.State = reconcile.StateUDP
		}
		list = append(list, c)
	})
	if err == nil {
		o.at, o.list = time.Now(), list
	}
	return list, err
}

// Unclean implements reconcile.Target.
func (p *Plane) Unclean() bool { return p.unclean.Load() }

// Suspect implements reconcile.Target.
func (p *Plane) Suspect() { p.unclean.Store(true) }

// Clean implements reconcile.Target. It ends the connections to backends that their frontend has no more. A UDP client also
// leaves a backend that takes no new clients: its program gets an error, and the backend of its next socket is another one.
func (p *Plane) Clean(ctx context.Context) error {
	p.unclean.Store(false)
	var ended []sockdiag.Socket
	var failed error
	err := p.each(ctx, func(s sockdiag.Socket, f frontend, b netip.AddrPort) {
		served, found, err := lookup[frontend, service](p.services, f)
		var weight uint32
		if found {
			weight, found, err = lookup[backend, uint32](p.backends, backendOf(served.Table, b))
		}
		switch {
		case err != nil:
			failed = err
		case !found, weight == 0 && f.key().Protocol == vip.UDP:
			ended = append(ended, s)
		}
	})
	if err == nil {
		err = failed
	}
	if err == nil && len(ended) > 0 {
		err = sockdiag.Destroy(ctx, ended)
	}
	if err != nil {
		p.unclean.Store(true)
		return fmt.Errorf("end connections to removed backends: %w", err)
	}
	return nil
}

// Connections implements reconcile.Connections.
func (p *Plane) Connections(ctx context.Context, key vip.FrontendKey) (map[netip.AddrPort]int, error) {
	all, err := p.connections(ctx)
	out := map[netip.AddrPort]int{}
	for i := range all {
		if all[i].Frontend == key {
			out[all[i].Backend]++
		}
	}
	return out, err
}

// ListConnections implements reconcile.ConnectionLister.
func (p *Plane) ListConnections(ctx context.Context, want func(vip.FrontendKey) bool, yield func(reconcile.Connection) bool) error {
	all, err := p.connections(ctx)
	for i := range all {
		if want(all[i].Frontend) && !yield(all[i]) {
			break
		}
	}
	return err
}

// add counts an open connection.
func add(t *reconcile.Traffic, c *reconcile.Connection) {
	if c.State == states[sockdiag.StateEstablished] || c.State == reconcile.StateUDP {
		t.Active++
	} else {
		t.Inactive++
	}
}

// Totals returns the connections of frontends, without packets and bytes, which nobody counts.
func (p *Plane) Totals(ctx context.Context, want func(vip.FrontendKey) bool) (map[vip.FrontendKey]reconcile.Traffic, error) {
	out := map[vip.FrontendKey]reconcile.Traffic{}
	err := read(p.counters, func(c counter, n uint64) {
		if k := c.Frontend.key(); c.Backend == (place{}) && want(k) {
			out[k] = reconcile.Traffic{Connections: n}
		}
	})
	if err != nil {
		return nil, err
	}
	return out, p.ListConnections(ctx, want, func(c reconcile.Connection) bool {
		t := out[c.Frontend]
		add(&t, &c)
		out[c.Frontend] = t
		return true
	})
}

// Breakdown returns the connections of a frontend and of the backends that it was asked for, as Totals.
func (p *Plane) Breakdown(ctx context.Context, key vip.FrontendKey, of iter.Seq[netip.AddrPort]) (reconcile.Breakdown, error) {
	out := reconcile.Breakdown{Endpoints: map[netip.AddrPort]reconcile.Traffic{}}
	count := func(b place) (n uint64, err error) {
		n, _, err = lookup[counter, uint64](p.counters, counter{frontendOf(key), b})
		return n, err
	}
	var err error
	if out.Connections, err = count(place{}); err != nil {
		return out, err
	}
	for a := range of {
		n, err := count(placeOf(a))
		if err != nil {
			return out, err
		}
		out.Endpoints[a] = reconcile.Traffic{Connections: n}
	}
	return out, p.ListConnections(ctx, func(k vip.FrontendKey) bool { return k == key }, func(c reconcile.Connection) bool {
		add(&out.Traffic, &c)
		if t, known := out.Endpoints[c.Backend]; known {
			add(&t, &c)
			out.Endpoints[c.Backend] = t
		}
		return true
	})
}
