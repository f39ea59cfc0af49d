package usage

import (
	"net/netip"
	"slices"

	"github.com/ironvip/ironvip/vip"
)

// Left is what a dataplane has left in the kernel, besides the addresses of its frontends.
type Left struct {
	Table   string       // our nftables table, or ""
	Damaged bool         // the table is not whole, so only the keys of Frontends are known
	Tunnels []netip.Addr // of our tunnel devices
	// PathTable is our nftables table of the paths of health probes, or "", and Paths the number of these.
	PathTable string
	Paths     int
	// Frontends are ours, by key. Of their settings, only what the kernel shows is set.
	Frontends []vip.Frontend
	Others    []vip.FrontendKey // services of others in IPVS by key, except those by firewall mark
}

// Any reports whether something is left.
func (l *Left) Any() bool {
	return l.Table != "" || l.PathTable != "" || len(l.Tunnels)+len(l.Frontends) > 0
}

// Keys returns the keys of the frontends.
func (l *Left) Keys() []vip.FrontendKey {
	keys := make([]vip.FrontendKey, len(l.Frontends))
	for i := range keys {
		keys[i] = l.Frontends[i].Key
	}
	return keys
}

// Sort sorts the frontends and the others by key.
func (l *Left) Sort() {
	slices.SortFunc(l.Frontends, func(a, b vip.Frontend) int { return vip.CompareFrontendKeys(a.Key, b.Key) })
	slices.SortFunc(l.Others, vip.CompareFrontendKeys)
}
