package proxy

import (
	"net/netip"
	"slices"
)

// admit takes the descriptors for a client's new connection or session. The caller gives them back
// to the capacity. If the client is refused, admit counts that and returns nil. The source ranges
// are checked later if the client is announced: its address is in a PROXY header.
func (f *frontend) admit(client netip.Addr, announced bool, files int64) *service {
	b := f.backends.Load()
	why := admitted
	switch {
	case !announced && !f.accepts(b.sources, client):
		why = outsideRanges
	case len(b.usable) == 0:
		why = noBackend
	default:
		why = f.target.capacity.take(b.service, files)
	}
	if why != admitted {
		f.target.refuse(b.service, why)
		return nil
	}
	return b.service
}

// accepts reports whether ranges allow a client. Without ranges, all clients are accepted. Clients
// on this host always are: the kernel gives them the VIP itself as their source address unless they
// request another. It costs O(ranges).
func (f *frontend) accepts(ranges []netip.Prefix, client netip.Addr) bool {
	client = client.Unmap().WithZone("")
	return len(ranges) == 0 || slices.ContainsFunc(ranges, func(p netip.Prefix) bool { return p.Contains(client) }) ||
		client == f.key.Addr || f.target.opts.Own(client)
}
