package pipeline

import (
	"net/netip"
	"slices"

	"github.com/ironvip/ironvip/internal/hostnet"
	"github.com/ironvip/ironvip/internal/table"
)

// newest returns the last snapshot of a batch of the host table, which has one row. A deleted row
// is an empty snapshot.
func newest(batch []table.Change[hostnet.Snapshot]) (snapshot hostnet.Snapshot) {
	if last := batch[len(batch)-1]; !last.Deleted {
		snapshot = last.Value
	}
	return snapshot
}

// othersVIPLinks are the devices on which other load balancers keep their virtual addresses:
// kube-proxy in IPVS mode and kube-router. These programs own what listens there, and delete
// entries that they don't know.
var othersVIPLinks = []string{"kube-ipvs0", "kube-dummy-if"}

// hostAddrsOf returns the host's own addresses, sorted, each once. It omits virtual addresses of
// other load balancers, because many hosts have them.
func hostAddrsOf(host hostnet.Snapshot) []netip.Addr {
	out := make([]netip.Addr, 0, len(host.Addrs))
	for i := range host.Addrs {
		if !slices.Contains(othersVIPLinks, host.Addrs[i].Link) {
			out = append(out, host.Addrs[i].Prefix.Addr().Unmap())
		}
	}
	slices.SortFunc(out, netip.Addr.Compare)
	return slices.Compact(out)
}

// NodePortAddrs returns the host's addresses that serve node ports, sorted, each once. These are
// the addresses inside chosen. If chosen is empty, they are the primary addresses: all but
// secondary, loopback, link-local and multicast addresses and the virtual addresses of other load
// balancers.
func NodePortAddrs(host hostnet.Snapshot, chosen []netip.Prefix) []netip.Addr {
	var out []netip.Addr
	for i := range host.Addrs {
		a := host.Addrs[i].Prefix.Addr().Unmap()
		if len(chosen) == 0 {
			if host.Addrs[i].Secondary || !a.IsGlobalUnicast() || slices.Contains(othersVIPLinks, host.Addrs[i].Link) {
				continue
			}
		} else if !slices.ContainsFunc(chosen, func(p netip.Prefix) bool { return p.Contains(a) }) {
			continue
		}
		out = append(out, a)
	}
	slices.SortFunc(out, netip.Addr.Compare)
	return slices.Compact(out)
}
