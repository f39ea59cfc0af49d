package proxy

import (
	"net/netip"
	"slices"
)

// admit counts a client's new connection or session in l. If the client is outside the source
// ranges, or no backend is usable, or l is used up, it counts that instead and returns false. The
// source ranges are checked later if the client is announced: its address is in a PROXY header.
func (f *frontend) admit(client netip.Addr, announced bool, l *limit) bool {
	b := f.backends.Load()
	switch {
	case !announced && !f.accepts(b.sources, client):
		f.target.stats.strangers.Add(1)
		return false
	case len(b.usable) == 0:
		f.target.stats.unserved.Add(1)
		return false
	}
	return l.take()
}

// accepts reports whether ranges allow a client. Without ranges, all clients are accepted. Clients
// on this host always are: the kernel gives them the VIP itself as their source address unless they
// request another. It costs O(ranges).
func (f *frontend) accepts(ranges []netip.Prefix, client netip.Addr) bool {
	client = client.Unmap().WithZone("")
	return len(ranges) == 0 || slices.ContainsFunc(ranges, func(p netip.Prefix) bool { return p.Contains(client) }) ||
		client == f.key.Addr || f.target.opts.Own(client)
}
