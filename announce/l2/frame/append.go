package frame

import "net/netip"

// AppendAnnounce appends the announcement that the station from has addr: a gratuitous ARP request
// (RFC 5227, section 2.3) or an unsolicited neighbor advertisement (RFC 4861, section 7.2.6).
func AppendAnnounce(b []byte, from MAC, addr netip.Addr) []byte {
	if addr.Is4() {
		return appendARPAnnounce(b, from, addr)
	}
	return appendNDPAnnounce(b, from, addr)
}

// AppendProbe appends a question for addr that changes no neighbor cache: an ARP probe, or the
// solicitation of duplicate address detection. A holder of an IPv6 address answers the latter to all
// nodes.
func AppendProbe(b []byte, from MAC, addr netip.Addr) []byte {
	if addr.Is4() {
		return appendARPProbe(b, from, addr)
	}
	return appendSolicit(b, from, netip.IPv6Unspecified(), addr)
}

// AppendVerify appends a question for addr that another holder answers only to the station from. For
// IPv6, it needs the station's own address src on that link. Without one, AppendVerify appends
// nothing.
func AppendVerify(b []byte, from MAC, src, addr netip.Addr) []byte {
	switch {
	case addr.Is4():
		return appendARPProbe(b, from, addr)
	case src.Is6():
		return appendSolicit(b, from, src, addr)
	}
	return b
}

// AppendAnswer appends the answer to a question or probe for an address that the station from has.
func AppendAnswer(b []byte, from MAC, q Claim) []byte {
	switch {
	case q.Addr.Is4():
		return appendARP(b, opReply, q.From, from, q.Addr, q.From, q.Asker)
	case q.Kind == Probe: // the asker has no address yet
		return appendNDPAnnounce(b, from, q.Addr)
	}
	return appendAdvert(b, q.From, from, q.Asker, flagSolicit, q.Addr)
}
