package remote

import (
	"errors"
	"fmt"
	"net"
	"net/netip"
	"time"

	"github.com/vishvananda/netlink"
	"go4.org/netipx"
	"golang.org/x/sys/unix"
)

// netlinkDevice is the kernel's device with that name. It doesn't answer ARP. It is a dummy or, on a kernel
// without these, a bridge without ports, as in the other dataplanes.
type netlinkDevice struct{ name string }

func (d *netlinkDevice) list() ([]netip.Addr, error) {
	link, err := d.find()
	if link == nil || err != nil {
		return nil, err
	}
	list, err := netlink.AddrList(link, netlink.FAMILY_ALL)
	if err != nil {
		return nil, err
	}
	var out []netip.Addr
	for _, a := range list {
		addr, ok := netip.AddrFromSlice(a.IP)
		if ones, bits := a.Mask.Size(); !ok || ones != bits || addr.Unmap().IsLinkLocalUnicast() {
			continue
		}
		out = append(out, addr.Unmap())
	}
	return out, nil
}

func (d *netlinkDevice) add(addr netip.Addr) error {
	link, err := d.up()
	if err != nil {
		return err
	}
	if err := netlink.AddrAdd(link, hostAddr(addr)); err != nil && !errors.Is(err, unix.EEXIST) {
		return err
	}
	if addr.Is6() {
		return awaitLocalRoute(addr)
	}
	return nil
}

// awaitLocalRoute waits until packets to addr reach this host. The kernel adds the local route of
// an IPv6 address from a work queue, a moment after the address, also without duplicate address
// detection. A client that connects in between would be routed out of the device. It fails after a
// second: the kernel is late, or the host's own rules route the address elsewhere.
func awaitLocalRoute(addr netip.Addr) error {
	for range 1000 {
		routes, err := netlink.RouteGet(addr.AsSlice())
		if err == nil && len(routes) > 0 && routes[0].Type == unix.RTN_LOCAL {
			return nil
		}
		time.Sleep(time.Millisecond)
	}
	return fmt.Errorf("%w: see \"ip -6 route get %s\" and \"ip -6 rule\"", errUnrouted, addr)
}

// errUnrouted says that an address is on the device and can't be reached.
var errUnrouted = errors.New("the address has no local route")

func (d *netlinkDevice) remove(addr netip.Addr) error {
	link, err := d.find()
	if link == nil || err != nil {
		return err
	}
	if err := netlink.AddrDel(link, hostAddr(addr)); err != nil && !errors.Is(err, unix.EADDRNOTAVAIL) {
		return err
	}
	return nil
}

// up returns the device. It creates and configures the device if needed.
func (d *netlinkDevice) up() (netlink.Link, error) {
	link, err := d.find()
	if link == nil && err == nil {
		attrs := netlink.NewLinkAttrs()
		attrs.Name = d.name
		err = netlink.LinkAdd(&netlink.Dummy{LinkAttrs: attrs})
		if errors.Is(err, unix.EOPNOTSUPP) {
			err = netlink.LinkAdd(&netlink.Bridge{LinkAttrs: attrs})
		}
		if err != nil && !errors.Is(err, unix.EEXIST) {
			return nil, fmt.Errorf("make device %s: %w", d.name, err)
		}
		if link, err = netlink.LinkByName(d.name); err == nil {
			err = netlink.LinkSetARPOff(link)
		}
	}
	if err != nil {
		return nil, err
	}
	if link.Attrs().Flags&net.FlagUp == 0 {
		if err := netlink.LinkSetUp(link); err != nil {
			return nil, fmt.Errorf("set device %s up: %w", d.name, err)
		}
	}
	return link, nil
}

// localRoutes returns the addresses that the host's routes make local: those of its devices,
// 127.0.0.0/8, and others with a local route. It includes only single addresses of IPv6, because
// only these can be bound to.
func localRoutes() (*netipx.IPSet, error) {
	routes, err := netlink.RouteListFiltered(netlink.FAMILY_ALL, &netlink.Route{Table: unix.RT_TABLE_LOCAL, Type: unix.RTN_LOCAL},
		netlink.RT_FILTER_TABLE|netlink.RT_FILTER_TYPE)
	if err != nil {
		return nil, err
	}
	var set netipx.IPSetBuilder
	for _, r := range routes {
		if p, ok := netipx.FromStdIPNet(r.Dst); ok && (p.Addr().Is4() || p.IsSingleIP()) {
			set.AddPrefix(p)
		}
	}
	return set.IPSet()
}

// hostAddr returns addr as a single address that is usable at once (no duplicate address
// detection).
func hostAddr(addr netip.Addr) *netlink.Addr {
	a := &netlink.Addr{IPNet: &net.IPNet{IP: addr.AsSlice(), Mask: net.CIDRMask(addr.BitLen(), addr.BitLen())}}
	if addr.Is6() {
		a.Flags = unix.IFA_F_NODAD
	}
	return a
}

// find returns the device, or nil if it doesn't exist.
func (d *netlinkDevice) find() (netlink.Link, error) {
	link, err := netlink.LinkByName(d.name)
	if errors.As(err, &netlink.LinkNotFoundError{}) {
		return nil, nil
	}
	return link, err
}
