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
	"github.com/ironvip/ironvip/plane/kernel/cleanup"
	"github.com/ironvip/ironvip/plane/kernel/conntrack"
	"github.com/ironvip/ironvip/plane/kernel/filter"
	"github.com/ironvip/ironvip/plane/kernel/host"
	"github.com/ironvip/ironvip/plane/kernel/linux"
	"github.com/ironvip/ironvip/plane/kernel/usage"
	"github.com/ironvip/ironvip/vip"
)

// ErrNoIPVS means that the kernel has no IPVS, so that nothing of ours can be there.
var ErrNoIPVS error = kernel.ErrNoIPVS

// Find returns a Target for what an earlier process may have left: to end it beside another dataplane, or to clean a host.
// It changes nothing. Without our table and without Owns, it doesn't look at IPVS and returns nil. In a kernel without IPVS,
// it finds the table alone.
func Find(ctx context.Context, o Options) (*Target, error) {
	everywhere := o.Owns != nil
	if !everywhere {
		o.Owns = func(netip.Addr) bool { return false }
	}
	o = o.withDefaults()
	stats := &counters{}
	h := openHost(o, filter.New(o.table(), &stats.nftMessages), stats)
	there, err := h.fw.Exists(ctx)
	if err == nil && (there || everywhere) {
		if err = h.openIPVS(ctx, stats); err == nil || there && errors.Is(err, ErrNoIPVS) {
			return unopenedTarget(o, h, stats), nil
		}
	}
	h.close()
	return nil, err
}

// Blind reports whether the kernel has no IPVS, see Find.
func (t *Target) Blind() bool { return t.kernel == nil }

// Left reads what is there. Afterwards, Open and Leave know it. Every service of the result is ours: those that the table
// records, and those at an address that Owns accepts.
func (t *Target) Left(ctx context.Context) (l usage.Left, err error) {
	if there, err := t.fw.Exists(ctx); err != nil {
		return l, err
	} else if there {
		l.Table = t.opt.table()
	}
	if t.Blind() {
		t.left = &kernelState{}
		return l, nil
	}
	if t.left, err = t.readKernel(ctx); err != nil {
		return l, err
	}
	for k, s := range t.left.states {
		l.Frontends = append(l.Frontends, t.frontend(k, t.left, s))
	}
	l.Tunnels = slices.SortedFunc(maps.Keys(t.left.tunnels), netip.Addr.Compare)
	all, err := t.kernel.Services(ctx)
	for _, s := range all {
		if s.Mark == 0 && t.left.states[s.Key] == nil {
			l.Others = append(l.Others, s.Key)
		}
	}
	l.Sort()
	return l, err
}

// Leave makes the services take no new connections, and the table do nothing to packets. Open connections go on. It costs
// one message for each destination, and one transaction.
func (t *Target) Leave(ctx context.Context) error {
	var ops []op
	for _, s := range t.left.states {
		for _, d := range s.Dests {
			if d.Weight > 0 {
				d.Weight = 0
				ops = append(ops, op{cmd: kernel.CmdSetDest, service: &s.Service, dest: d})
			}
		}
	}
	if err := t.run(ctx, ops); err != nil {
		return err
	}
	return t.fw.Retire(ctx)
}

// Open returns the open connections, except those of UDP: their clients move to the other dataplane. It costs what Totals
// costs. A TCP connection counts until two minutes after its end. It may be called concurrently with all other methods but
// Left and Close.
func (t *Target) Open(ctx context.Context) (map[vip.FrontendKey]int, error) {
	open := map[vip.FrontendKey]int{}
	if t.left == nil || len(t.left.states) == 0 {
		return open, nil
	}
	all, err := t.Totals(ctx, func(k vip.FrontendKey) bool { return k.Protocol != vip.UDP && t.left.states[k] != nil })
	for k, n := range all {
		if n.Active+n.Inactive > 0 {
			open[k] = int(n.Active + n.Inactive)
		}
	}
	return open, err
}

// Remove ends the connections that are still open, and removes the services, the tunnel devices and the table. Sysctls stay.
// The table is the record of what is left, so it goes last, and stays after an error. A repetition without the services goes
// by what the table records.
func (t *Target) Remove(ctx context.Context) error {
	if t.Blind() {
		return t.fw.Remove(ctx)
	}
	found, err := t.readKernel(ctx)
	if err != nil {
		return err
	}
	var ops []op
	ours := map[vip.FrontendKey]struct{}{}
	for k, s := range found.states {
		ops = append(ops, op{cmd: kernel.CmdDelService, service: &s.Service})
		ours[k] = struct{}{}
	}
	found.eachRecorded(func(k vip.FrontendKey) { ours[k] = struct{}{} })
	// A client of UDP would otherwise stay with its entry as long as it sends.
	ends := func(_ vip.FrontendKey, e *conntrack.Entry) bool { return !e.Translated && e.Forwarded() }
	if err := errors.Join(t.run(ctx, ops), t.tunnels.RemoveAll(), cleanup.Sweep(ctx, t.flows, slices.Collect(maps.Keys(ours)), ends)); err != nil {
		return err
	}
	if there, err := t.fw.Exists(ctx); !there || err != nil {
		return err
	}
	return t.fw.Remove(ctx)
}

// run sends ops. It is no error if something is gone already.
func (t *Target) run(ctx context.Context, ops []op) error {
	if len(ops) == 0 {
		return nil
	}
	var refused error
	err := runOps(ctx, t.kernel, ops, func(i int, err error) {
		if err != nil && !errors.Is(err, unix.ESRCH) && !errors.Is(err, unix.ENOENT) {
			refused = errors.Join(refused, fmt.Errorf("%s: %w", &ops[i], err))
		}
	})
	return errors.Join(err, refused)
}

// Sysctls returns the names of the sysctls that a dataplane sets on this kernel.
func Sysctls() []string {
	var names []string
	for _, s := range append(settings(linux.ParseVersion(linux.Release())), optionalSettings{forward6: true, agree: true, realServer: true, bind6: true}.settings()...) {
		names = append(names, host.SysctlName(s.Key))
	}
	return names
}
