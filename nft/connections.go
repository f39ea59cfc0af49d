package nft

import (
	"context"
	"net/netip"

	"github.com/ironvip/ironvip/plane/kernel/conntrack"
	"github.com/ironvip/ironvip/vip"
)

// Connections implements reconcile.Connections. It counts the entries of connection tracking, except
// those of TCP connections that both ends have closed, and those of IPVS. It costs one dump, which the kernel filters
// by address (of IPv4), protocol and port. A connection of UDP is a client that sent something within
// the timeout. A connection of a range of ports counts twice: for the backend's address and port, and
// for the address with port 0, which is what a backend has that gets the client's port.
func (t *Target) Connections(ctx context.Context, key vip.FrontendKey) (map[netip.AddrPort]int, error) {
	out := map[netip.AddrPort]int{}
	err := t.flows.Entries(ctx, key, func(e *conntrack.Entry) {
		if e.Open() && e.Translated {
			out[e.Backend]++
			if key.Ranged() {
				out[netip.AddrPortFrom(e.Backend.Addr(), 0)]++
			}
		}
	})
	if err != nil {
		return nil, err
	}
	return out, nil
}
