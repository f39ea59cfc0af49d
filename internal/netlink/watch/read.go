package watch

import (
	"encoding/binary"
	"net/netip"

	"golang.org/x/sys/unix"

	"github.com/ironvip/ironvip/internal/netlink"
)

// readRoute reads an event about a link, an address or a setting.
func (w *Watcher) readRoute(e netlink.Event) {
	switch e.Type {
	case unix.RTM_NEWLINK, unix.RTM_DELLINK:
		w.readLink(e)
	case unix.RTM_NEWADDR, unix.RTM_DELADDR:
		w.readAddr(e)
	case unix.RTM_NEWNETCONF:
		w.readSetting(e)
	}
}

// readSetting follows the forwarding of packets between all links.
func (w *Watcher) readSetting(e netlink.Event) {
	const size, ofLink, forwarding, all = 4, 1, 2, -1 // struct netconfmsg, NETCONFA_IFINDEX, NETCONFA_FORWARDING, NETCONFA_IFINDEX_ALL
	if len(e.Data) < size {
		return
	}
	link, err := netlink.Find(e.Data[size:], ofLink)
	if err != nil || len(link) != 4 || int32(binary.NativeEndian.Uint32(link)) != all {
		return
	}
	if on, err := netlink.Find(e.Data[size:], forwarding); err == nil && len(on) == 4 {
		w.seen.Unforwarded = w.seen.Unforwarded || binary.NativeEndian.Uint32(on) == 0
	}
}

// readLink follows the state of the device.
func (w *Watcher) readLink(e netlink.Event) {
	if len(e.Data) < unix.SizeofIfInfomsg || e.Data[0] == unix.AF_BRIDGE {
		return
	}
	index, flags := binary.NativeEndian.Uint32(e.Data[4:]), binary.NativeEndian.Uint32(e.Data[8:])
	name, err := netlink.Find(e.Data[unix.SizeofIfInfomsg:], unix.IFLA_IFNAME)
	if err != nil {
		w.seen.Lost = true
		return
	}
	named := netlink.String(name) == w.o.Device
	switch {
	case !named && index != w.index:
		return
	case !named, e.Type == unix.RTM_DELLINK: // renamed or deleted
		if index != w.index {
			return // an earlier device of this name
		}
		w.index, w.renamed = 0, w.renamed || !named
		w.seen.Device = w.linkAuthor(e)
		return
	}
	w.index = index
	if w.renamed { // what happened to its addresses meanwhile was not seen
		w.renamed, w.seen.Lost = false, true
	}
	const want = unix.IFF_UP | unix.IFF_NOARP
	if flags&want == want {
		w.seen.Device = nil
	} else if w.seen.Device == nil {
		w.seen.Device = w.linkAuthor(e)
	}
}

func (w *Watcher) linkAuthor(e netlink.Event) *Author {
	a := w.authors.ofRoute(e.Port)
	return &a
}

// readAddr follows the addresses of the device.
func (w *Watcher) readAddr(e netlink.Event) {
	if len(e.Data) < unix.SizeofIfAddrmsg || binary.NativeEndian.Uint32(e.Data[4:]) != w.index || w.index == 0 {
		return
	}
	// With IFA_LOCAL, IFA_ADDRESS may be the peer.
	attrs := e.Data[unix.SizeofIfAddrmsg:]
	local, err := netlink.Find(attrs, unix.IFA_LOCAL)
	if err == nil && local == nil {
		local, err = netlink.Find(attrs, unix.IFA_ADDRESS)
	}
	addr, ok := netip.AddrFromSlice(local)
	if err != nil || !ok {
		w.seen.Lost = true
		return
	}
	p := netip.PrefixFrom(addr, int(e.Data[1]))
	switch {
	case e.Type == unix.RTM_DELADDR:
		delete(w.seen.Added, p)
	case addr.IsLinkLocalUnicast(): // the kernel adds it
	default:
		if w.seen.Added == nil {
			w.seen.Added = make(map[netip.Prefix]Author)
		}
		w.seen.Added[p] = w.authors.ofRoute(e.Port)
	}
	if !p.IsSingleIP() {
		return // the address of a whole network isn't one that the dataplane wants
	}
	if e.Type == unix.RTM_NEWADDR {
		delete(w.seen.Gone, addr)
		return
	}
	if w.seen.Gone == nil {
		w.seen.Gone = make(map[netip.Addr]Author)
	}
	w.seen.Gone[addr] = w.authors.ofRoute(e.Port)
}
