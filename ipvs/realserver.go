package ipvs

import (
	"context"
	"net/netip"
	"slices"

	"github.com/ironvip/ironvip/vip"
)

// tunnelsHere returns the addresses of this host at which f's packets come out of
// a tunnel, sorted.
func tunnelsHere(f *vip.Frontend) []netip.Addr {
	if f == nil || f.Kind != vip.OnRealServer || forward(f) != vip.ForwardTunnel {
		return nil
	}
	var all []netip.Addr
	for _, b := range f.Backends {
		all = append(all, b.Addr.Addr())
	}
	slices.SortFunc(all, netip.Addr.Compare)
	return slices.Compact(all)
}

// openTunnels makes the devices that new items need, before packets may come.
func (t *Target) openTunnels(ctx context.Context, items []*item) error {
	done := map[netip.Addr]error{}
	for _, it := range items {
		had := tunnelsHere(it.old)
		for _, a := range tunnelsHere(it.update.New) {
			if it.result.blocked || !it.repair && slices.Contains(had, a) {
				continue
			}
			if _, asked := done[a]; !asked {
				if err := ctx.Err(); err != nil {
					return err
				}
				done[a] = t.tunnels.Ensure(a)
			}
			if err := done[a]; err != nil {
				it.fail(err)
			}
		}
	}
	return nil
}

// closeTunnels deletes the devices that nobody needs any more.
func (t *Target) closeTunnels(ctx context.Context, items []*item) error {
	for _, it := range items {
		gone := append(tunnelsHere(it.old), tunnelsHere(it.update.Old)...)
		if stray(it.key) {
			gone = append(gone, it.key.Addr)
		}
		for _, a := range gone {
			if t.held.tunnels[a] > 0 {
				continue
			}
			if err := ctx.Err(); err != nil {
				return err
			}
			if err := t.tunnels.Remove(a); err != nil {
				it.fail(err)
			}
		}
	}
	return nil
}

// realServer completes what is known of a frontend on a real server from the
// devices: the kernel has no record of how packets come to it. What isn't known
// from before is taken to come through every tunnel that there is, so that none
// counts as left over before it is known who needs it.
func realServer(f, before *vip.Frontend, devices map[netip.Addr]bool) {
	f.Forward = vip.ForwardDirect
	if before != nil && before.Kind == vip.OnRealServer {
		f.Forward, f.Backends = before.Forward, before.Backends
		return
	}
	port := f.Key.Port
	if f.Key.Ranged() {
		port = 0
	}
	for a := range devices {
		if vip.FamilyOf(a) == vip.FamilyOf(f.Key.Addr) {
			f.Forward = vip.ForwardTunnel
			f.Backends = append(f.Backends, vip.Endpoint{Addr: netip.AddrPortFrom(a, port), Weight: 1})
		}
	}
	slices.SortFunc(f.Backends, vip.CompareEndpoints)
}
