package ipvs

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"net/netip"
	"slices"

	"golang.org/x/sys/unix"

	"github.com/ironvip/ironvip/ipvs/internal/kernel"
	"github.com/ironvip/ironvip/plane/kernel/conntrack"
	"github.com/ironvip/ironvip/plane/kernel/usage"
	"github.com/ironvip/ironvip/vip"
)

// The end of a dataplane beside another one that has replaced it: Retire, then Open until it returns zero, then End. Each
// may be repeated, also by another process.

// Retire makes the services that were found take no new connections, and the table do nothing to packets. Open
// connections continue. It costs one message for each destination, and one transaction.
func (r *Remains) Retire(ctx context.Context) error {
	var ops []op
	for _, s := range r.states {
		for _, d := range s.Dests {
			if d.Weight > 0 {
				d.Weight = 0
				ops = append(ops, op{cmd: kernel.CmdSetDest, service: &s.Service, dest: d})
			}
		}
	}
	if err := r.run(ctx, ops); err != nil {
		return err
	}
	if r.Table == "" {
		return nil
	}
	return r.fw.Retire(ctx)
}

// Open returns the connections of the services, except those of UDP: their clients move to the other dataplane. It
// costs one read of the kernel's table of services, and one dump for each service that the table lacks, see Target.Totals. A
// TCP connection counts until two minutes after its end. It may be called concurrently with the other methods, except Close.
func (r *Remains) Open(ctx context.Context) (map[vip.FrontendKey]int, error) {
	open := map[vip.FrontendKey]int{}
	if len(r.states) == 0 {
		return open, nil
	}
	m := r.target.statsReader
	m.mu.Lock()
	defer m.mu.Unlock()
	live, err := m.conns.Read()
	if err != nil {
		return nil, err
	}
	for _, s := range r.states {
		if s.Key.Protocol == vip.UDP {
			continue
		}
		n, listed := live[kernel.IDOf(&s.Service)]
		if !listed {
			dests, err := m.kernel.Destinations(ctx, s.Key, s.Mark)
			if err != nil {
				return nil, err
			}
			n = sumOf(dests)
		}
		if n.Active+n.Inactive > 0 {
			open[s.Key] = int(n.Active + n.Inactive)
		}
	}
	return open, nil
}

// Connections implements reconcile.Connections, as Target does, except for UDP: see Open. It may be called concurrently with
// the other methods, except Close.
func (r *Remains) Connections(ctx context.Context, key vip.FrontendKey) (map[netip.AddrPort]int, error) {
	if r.states[key] == nil || key.Protocol == vip.UDP {
		return nil, nil
	}
	return r.target.Connections(ctx, key)
}

// End ends the connections that are still open, and removes the services, the tunnel devices and the table. The
// device and the addresses stay. A repetition without the services goes by what the table records.
func (r *Remains) End(ctx context.Context) error {
	var ops []op
	for _, s := range r.states {
		ops = append(ops, op{cmd: kernel.CmdDelService, service: &s.Service})
	}
	// The table is the record of what is left, so it goes last.
	if err := r.run(ctx, ops); err != nil {
		return err
	}
	if err := errors.Join(r.tunnels.RemoveAll(), r.forget(ctx, slices.Collect(maps.Keys(r.keys)))); err != nil || r.Table == "" {
		return err
	}
	return r.fw.Remove(ctx)
}

// forget deletes the connection tracking entries of the services' connections: a client of UDP would otherwise stay
// with its entry as long as it sends.
func (r *Remains) forget(ctx context.Context, keys []vip.FrontendKey) error {
	if len(keys) == 0 {
		return nil
	}
	served := usage.Serving(keys)
	err := r.flows.Sweep(ctx, 0, conntrack.Flow{}, func(e *conntrack.Entry) bool {
		_, ours := served(e.Frontend)
		return ours && !e.Translated && e.Forwarded()
	})
	if conntrack.IsMissing(err) {
		return nil
	}
	return err
}

// run sends ops. What is gone already is no error.
func (r *Remains) run(ctx context.Context, ops []op) error {
	if len(ops) == 0 {
		return nil
	}
	var refused error
	err := runOps(ctx, r.kernel, ops, func(i int, err error) {
		if err != nil && !errors.Is(err, unix.ESRCH) && !errors.Is(err, unix.ENOENT) {
			refused = errors.Join(refused, fmt.Errorf("%s: %w", &ops[i], err))
		}
	})
	return errors.Join(err, refused)
}
