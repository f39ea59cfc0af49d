package ipvs

import (
	"context"
	"net/netip"
	"slices"

	"github.com/ironvip/ironvip/plane/kernel/usage"
	"github.com/ironvip/ironvip/vip"
)

// addTunnels creates the tunnel devices that items need, before packets can come.
func (t *Target) addTunnels(ctx context.Context, items []*item) error {
	done := map[netip.Addr]error{}
	for _, it := range items {
		had := usage.LocalTunnels(it.old)
		for _, a := range usage.LocalTunnels(it.update.New) {
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

// removeTunnels deletes the tunnel devices that no frontend needs any more.
func (t *Target) removeTunnels(ctx context.Context, items []*item) error {
	for _, it := range items {
		gone := append(usage.LocalTunnels(it.old), usage.LocalTunnels(it.update.Old)...)
		if it.key.Whole() {
			gone = append(gone, it.key.Addr)
		}
		for _, a := range gone {
			if t.records.Tunnels[a] > 0 {
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

// completeRealServer sets the forwarding method and the backends of a real server's
// frontend, which the kernel doesn't record. If no record exists, it assumes that every
// tunnel device belongs to the frontend, so that none counts as an orphan before the
// first Apply.
func completeRealServer(f, before *vip.Frontend, devices map[netip.Addr]bool) {
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
