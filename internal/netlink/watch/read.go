package watch

import (
	"encoding/binary"
	"net/netip"

	"golang.org/x/sys/unix"

	"github.com/ironvip/ironvip/internal/netlink"
)

// readNetwork reads an event about a link, an address, a route or a setting.
func (w *Watcher) readNetwork(e netlink.Event) {
	switch e.Type {
	case unix.RTM_NEWLINK, unix.RTM_DELLINK:
		w.readLink(e)
	case unix.RTM_NEWADDR, unix.RTM_DELADDR:
		w.readAddr(e)
	case unix.RTM_NEWROUTE, unix.RTM_DELROUTE:
		w.readRoute(e)
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
	index, whole := binary.NativeEndian.Uint32(e.Data[4:]), wholeBy(e.Data)
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
		w.index, w.whole, w.renamed = 0, false, w.renamed || !named
		w.seen.Device = true
		return
	}
	if w.whole && !whole {
		w.seen.Device = true
	}
	w.index, w.whole = index, whole
	if w.renamed { // what happened to its addresses meanwhile was not seen
		w.renamed, w.seen.Lost = false, true
	}
}

// wholeBy reports whether a message describes a device that is up and doesn't speak ARP.
func wholeBy(data []byte) bool {
	const want = unix.IFF_UP | unix.IFF_NOARP
	return binary.NativeEndian.Uint32(data[8:])&want == want
}

// readAddr follows the anchor of the device: with the last address of IPv4, the kernel removes the routes of IPv4 to it.
func (w *Watcher) readAddr(e netlink.Event) {
	if len(e.Data) < unix.SizeofIfAddrmsg || binary.NativeEndian.Uint32(e.Data[4:]) != w.index || w.index == 0 {
		return
	}
	if e.Data[0] != unix.AF_INET || e.Type != unix.RTM_DELADDR {
		return
	}
	attrs := netlink.Attrs{B: e.Data[unix.SizeofIfAddrmsg:]}
	for typ, v, ok := attrs.Next(); ok; typ, v, ok = attrs.Next() {
		if a, _ := netip.AddrFromSlice(v); typ == unix.IFA_LOCAL && a == w.o.Anchor {
			w.seen.Device = true
		}
	}
}

// readRoute follows the routes of virtual addresses.
func (w *Watcher) readRoute(e netlink.Event) {
	r, err := netlink.ReadLocalRoute(e.Data)
	switch a := r.Dst.Addr(); {
	case err != nil:
		w.seen.Lost = true
	case r.Protocol != w.o.Protocol || r.Link != w.index || !r.Dst.IsSingleIP():
	case e.Type == unix.RTM_NEWROUTE:
		delete(w.seen.Gone, a)
	default:
		if w.seen.Gone == nil {
			w.seen.Gone = make(map[netip.Addr]struct{})
		}
		w.seen.Gone[a] = struct{}{}
	}
}
