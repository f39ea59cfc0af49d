package link

import (
	"cmp"
	"encoding/binary"
	"net/netip"
	"slices"

	"golang.org/x/sys/unix"

	"github.com/ironvip/ironvip/announce/l2/frame"
	"github.com/ironvip/ironvip/internal/netlink"
)

// Link is one configured interface that exists. It is comparable.
type Link struct {
	Index int
	Name  string
	MAC   frame.MAC
	// Ethernet is false for interfaces without ARP or with addresses of another length. They can't
	// announce.
	Ethernet bool
	// Carrier reports that the interface is up and has a carrier.
	Carrier bool
	// Source is a link-local IPv6 address of the interface, or invalid.
	Source netip.Addr
	// With arp_announce of 2, the kernel's own ARP requests don't have other interfaces' addresses as
	// senders, even if the connection uses one.
	arpAnnounce uint32
}

// Usable reports whether frames can be sent.
func (l Link) Usable() bool { return l.Ethernet && l.Carrier }

// State is what a Follower publishes. It must not be changed.
type State struct {
	Links []Link // in the order of their indexes
	// Own contains the addresses inside the pools that other devices than the one of the virtual
	// addresses have, in order.
	Own []netip.Addr
}

func (s State) equal(o State) bool {
	return slices.Equal(s.Links, o.Links) && slices.Equal(s.Own, o.Own)
}

// Filter is what a Follower looks for.
type Filter struct {
	Interfaces []string
	Pools      []netip.Prefix
	Device     string // the device that has the virtual addresses, "ironvip0"
}

// host is the part of the kernel's state that a Filter is applied to.
type host struct {
	links map[int]Link
	addrs map[addrOn]struct{} // without those of the device with the virtual addresses
}

type addrOn struct {
	index int
	addr  netip.Addr
}

func newHost() *host { return &host{links: map[int]Link{}, addrs: map[addrOn]struct{}{}} }

func (h *host) state(f Filter) (s State) {
	for _, l := range h.links {
		if slices.Contains(f.Interfaces, l.Name) {
			s.Links = append(s.Links, l)
		}
	}
	slices.SortFunc(s.Links, func(a, b Link) int { return cmp.Compare(a.Index, b.Index) })
	for a := range h.addrs {
		if a.addr.Is6() && a.addr.IsLinkLocalUnicast() {
			for i := range s.Links {
				if l := &s.Links[i]; l.Index == a.index && (!l.Source.IsValid() || a.addr.Less(l.Source)) {
					l.Source = a.addr
				}
			}
		}
		if slices.ContainsFunc(f.Pools, func(p netip.Prefix) bool { return p.Contains(a.addr) }) {
			s.Own = append(s.Own, a.addr)
		}
	}
	slices.SortFunc(s.Own, netip.Addr.Compare)
	s.Own = slices.Compact(s.Own)
	return s
}

// apply takes in a message of the kernel. It returns false if the message changes nothing that a
// State shows.
func (h *host) apply(device string, typ uint16, data []byte) bool {
	switch typ {
	case unix.RTM_NEWLINK:
		l, ok := decodeLink(data)
		if !ok || h.links[l.Index] == l {
			return false
		}
		h.links[l.Index] = l
		return true
	case unix.RTM_DELLINK:
		l, ok := decodeLink(data)
		if !ok {
			return false
		}
		delete(h.links, l.Index)
		for a := range h.addrs {
			if a.index == l.Index {
				delete(h.addrs, a)
			}
		}
		return true
	case unix.RTM_NEWADDR, unix.RTM_DELADDR:
		a, usable, ok := decodeAddr(data)
		if !ok || h.links[a.index].Name == device {
			return false
		}
		_, known := h.addrs[a]
		if typ == unix.RTM_DELADDR || !usable {
			delete(h.addrs, a)
			return known
		}
		h.addrs[a] = struct{}{}
		return !known
	}
	return false
}

const (
	ifinfoSize = unix.SizeofIfInfomsg
	ifaddrSize = unix.SizeofIfAddrmsg

	inetConf    = 1  // IFLA_INET_CONF
	arpAnnounce = 18 // IPV4_DEVCONF_ARP_ANNOUNCE
	bestAddress = 2  // of arp_announce: use an address of the outgoing interface
)

// decodeLink reads an interface. Messages of family AF_BRIDGE are about ports of bridges: their
// deletion isn't the interface's.
func decodeLink(data []byte) (l Link, ok bool) {
	if len(data) < ifinfoSize || data[0] != unix.AF_UNSPEC {
		return l, false
	}
	l.Index = int(int32(binary.NativeEndian.Uint32(data[4:])))
	flags := binary.NativeEndian.Uint32(data[8:])
	l.Carrier = flags&unix.IFF_UP != 0 && flags&unix.IFF_RUNNING != 0
	attrs := netlink.Attrs{B: data[ifinfoSize:]}
	for typ, v, more := attrs.Next(); more; typ, v, more = attrs.Next() {
		switch typ {
		case unix.IFLA_IFNAME:
			l.Name = netlink.String(v)
		case unix.IFLA_ADDRESS:
			if len(v) == len(l.MAC) {
				l.MAC = frame.MAC(v)
				l.Ethernet = binary.NativeEndian.Uint16(data[2:]) == unix.ARPHRD_ETHER && flags&unix.IFF_NOARP == 0
			}
		case unix.IFLA_AF_SPEC:
			inet, _ := netlink.Find(v, unix.AF_INET)
			conf, _ := netlink.Find(inet, inetConf)
			if at := (arpAnnounce - 1) * 4; len(conf) >= at+4 {
				l.arpAnnounce = binary.NativeEndian.Uint32(conf[at:])
			}
		}
	}
	return l, attrs.Err == nil && l.Name != ""
}

// decodeAddr reads an address. Usable is false for an IPv6 address that is or failed to be checked
// for duplicates.
func decodeAddr(data []byte) (a addrOn, usable, ok bool) {
	if len(data) < ifaddrSize {
		return a, false, false
	}
	flags := uint32(data[2])
	a.index = int(binary.NativeEndian.Uint32(data[4:]))
	attrs := netlink.Attrs{B: data[ifaddrSize:]}
	for typ, v, more := attrs.Next(); more; typ, v, more = attrs.Next() {
		switch typ {
		case unix.IFA_ADDRESS:
			if !a.addr.IsValid() { // IFA_LOCAL is the own address of a point-to-point link
				a.addr, _ = netip.AddrFromSlice(v)
			}
		case unix.IFA_LOCAL:
			a.addr, _ = netip.AddrFromSlice(v)
		case unix.IFA_FLAGS:
			flags = attrs.Uint32(v)
		}
	}
	return a, flags&(unix.IFA_F_TENTATIVE|unix.IFA_F_DADFAILED) == 0, attrs.Err == nil && a.addr.IsValid()
}
