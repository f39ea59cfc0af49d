package host

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"sync"
	"sync/atomic"

	rtnl "github.com/vishvananda/netlink"
	"go4.org/netipx"
	"golang.org/x/sys/unix"

	"github.com/ironvip/ironvip/internal/hostnet"
	"github.com/ironvip/ironvip/internal/netlink"
	"github.com/ironvip/ironvip/vip"
)

// Links are the used methods of *rtnl.Handle.
type Links interface {
	LinkByName(name string) (rtnl.Link, error)
	LinkList() ([]rtnl.Link, error)
	LinkAdd(link rtnl.Link) error
	LinkSetARPOff(link rtnl.Link) error
	LinkSetUp(link rtnl.Link) error
	LinkDel(link rtnl.Link) error
	AddrList(link rtnl.Link, family int) ([]rtnl.Addr, error)
	AddrAdd(link rtnl.Link, addr *rtnl.Addr) error
	Close()
}

// Device is the device that the local routes of virtual addresses lead to: a dummy or, on a kernel without these, a
// bridge without ports. One goroutine may use it.
type Device struct {
	Name  string
	Dial  func() (Links, error)
	Conn  netlink.Socket
	Stats *atomic.Uint64 // routes added or deleted
	index int
	used  int // index after the last Ensure; 0: none yet
}

func OpenDevice(name string, stats *atomic.Uint64) (*Device, error) {
	var own netlink.Counters // Stats counts routes; these messages aren't IPVS messages
	c, err := netlink.Dial(unix.NETLINK_ROUTE, &own)
	if err != nil {
		return nil, err
	}
	// The kernel then lists only the routes of the request. Without the option, it lists those of all tables.
	_ = unix.SetsockoptInt(c.FD(), unix.SOL_NETLINK, unix.NETLINK_GET_STRICT_CHK, 1)
	return &Device{Name: name, Dial: dialLinks, Conn: c, Stats: stats}, nil
}

func (d *Device) Close() { d.Conn.Close() }

// Port returns the netlink port of the socket that changes routes.
func (d *Device) Port() uint32 {
	if c, is := d.Conn.(*netlink.Conn); is {
		return c.Port()
	}
	return 0
}

func dialLinks() (Links, error) { return rtnl.NewHandle(unix.NETLINK_ROUTE) }

// openLink opens rtnetlink and finds the device of a name. The caller closes the handle.
// The link is nil if there is no such device.
func openLink(dial func() (Links, error), name string) (Links, rtnl.Link, error) {
	h, err := dial()
	if err != nil {
		return nil, nil, fmt.Errorf("open rtnetlink: %w", err)
	}
	link, err := h.LinkByName(name)
	if err == nil {
		return h, link, nil
	}
	if errors.As(err, &rtnl.LinkNotFoundError{}) {
		return h, nil, nil
	}
	h.Close()
	return nil, nil, fmt.Errorf("find device %s: %w", name, err)
}

// deleteLink deletes a device. It is no error if the device is gone.
func deleteLink(h Links, link rtnl.Link) error {
	if err := h.LinkDel(link); err != nil && !errors.As(err, &rtnl.LinkNotFoundError{}) {
		return fmt.Errorf("delete device %s: %w", link.Attrs().Name, err)
	}
	return nil
}

// Ensure creates the device and brings it up if necessary. It accepts a dummy or a bridge as it finds it, and rejects
// another device of that name. Changed means that the device is another one than before, or was not as it must be, so
// routes may be lost.
func (d *Device) Ensure() (changed bool, err error) {
	h, link, err := openLink(d.Dial, d.Name)
	if err != nil {
		return false, err
	}
	defer h.Close()
	if link == nil {
		if err := d.create(h); err != nil {
			return false, err
		}
		changed = true
		if link, err = h.LinkByName(d.Name); err != nil {
			return true, fmt.Errorf("find device %s: %w", d.Name, err)
		}
	}
	if !isOurKind(link) {
		return false, fmt.Errorf("device %s is a %s, not a %s: rename it, or choose another name for ours", d.Name, link.Type(), dummyKind)
	}
	if link.Attrs().RawFlags&unix.IFF_NOARP == 0 {
		if err := h.LinkSetARPOff(link); err != nil {
			return changed, fmt.Errorf("switch ARP off on %s: %w", d.Name, err)
		}
		changed = true
	}
	if link.Attrs().RawFlags&unix.IFF_UP == 0 {
		if err := h.LinkSetUp(link); err != nil {
			return changed, fmt.Errorf("bring %s up: %w", d.Name, err)
		}
		changed = true
	}
	index := link.Attrs().Index
	changed = changed || d.used != 0 && d.used != index
	d.index, d.used = index, index
	return changed, d.secure(h, link)
}

// ErrNoDevice is the problem of a kernel that has no kind of device for virtual addresses.
var ErrNoDevice = vip.Problem{Code: vip.CodeDataplane, Message: "this kernel can make neither a dummy device nor a bridge", Hint: "modprobe dummy"}

// create makes the device, unless another program was faster.
func (d *Device) create(h Links) error {
	attrs := rtnl.NewLinkAttrs()
	attrs.Name = d.Name
	err := h.LinkAdd(&rtnl.Dummy{LinkAttrs: attrs})
	if errors.Is(err, unix.EOPNOTSUPP) {
		err = h.LinkAdd(&rtnl.Bridge{LinkAttrs: attrs})
	}
	switch {
	case errors.Is(err, unix.EOPNOTSUPP):
		return ErrNoDevice
	case err != nil && !errors.Is(err, unix.EEXIST):
		return fmt.Errorf("create device %s: %w", d.Name, err)
	}
	return nil
}

// Anchor is the address of the device. When the last address of IPv4 goes, the kernel removes all routes of IPv4 to a
// device, and systemd-resolved asks nobody by a device without an address. No host has this one: RFC 3927 reserves it.
var Anchor = netip.MustParsePrefix("169.254.255.1/32")

// secure puts the anchor on the device.
func (d *Device) secure(h Links, link rtnl.Link) error {
	if err := h.AddrAdd(link, &rtnl.Addr{IPNet: netipx.PrefixIPNet(Anchor)}); err != nil && !errors.Is(err, unix.EEXIST) {
		return fmt.Errorf("put address %s on %s: %w", Anchor, d.Name, err)
	}
	return nil
}

// isSecure reports whether the anchor is on the device.
func (d *Device) isSecure(h Links, link rtnl.Link) (bool, error) {
	var list []rtnl.Addr
	var err error
	for range 5 { // read again if a change interrupts the dump
		if list, err = h.AddrList(link, rtnl.FAMILY_V4); !errors.Is(err, rtnl.ErrDumpInterrupted) {
			break
		}
	}
	if err != nil {
		return false, fmt.Errorf("list the addresses of %s: %w", d.Name, err)
	}
	return slices.ContainsFunc(list, func(a rtnl.Addr) bool { return a.IPNet.String() == Anchor.String() }), nil
}

// DeviceState is what Read found of the device.
type DeviceState struct {
	Kind  string // the device's type, or "" if there is none
	Addrs map[netip.Addr]struct{}
	Fault string // what Ensure must repair, or ""
}

// Read returns the state of the device and the addresses that our routes by it make local. A device of another kind than
// ours counts as missing.
func (d *Device) Read(ctx context.Context) (s DeviceState, err error) {
	h, link, err := openLink(d.Dial, d.Name)
	if err != nil {
		return s, err
	}
	defer h.Close()
	s.Addrs = map[netip.Addr]struct{}{}
	if link != nil {
		s.Kind = link.Type()
	}
	if link == nil || !isOurKind(link) {
		d.index = 0 // Add fails, and Ensure then returns the reason
		s.Fault = "is missing or down"
		return s, nil
	}
	d.index = link.Attrs().Index
	secure, err := d.isSecure(h, link)
	if err != nil {
		return s, err
	}
	switch flags := link.Attrs().RawFlags; {
	case flags&unix.IFF_UP == 0:
		s.Fault = "is missing or down"
	case flags&unix.IFF_NOARP == 0:
		s.Fault = "speaks ARP"
	case !secure:
		s.Fault = fmt.Sprintf("lacks address %s", Anchor)
	}
	for _, family := range []byte{unix.AF_INET, unix.AF_INET6} {
		if err := d.readRoutes(ctx, family, s.Addrs); err != nil {
			return s, fmt.Errorf("list the routes of %s: %w", d.Name, err)
		}
	}
	return s, nil
}

// readRoutes adds the destinations of our routes of a family to addrs.
func (d *Device) readRoutes(ctx context.Context, family byte, addrs map[netip.Addr]struct{}) (err error) {
	for range 5 { // read again if a change interrupts the dump
		err = d.Conn.Query(ctx, func(b []byte) []byte {
			return appendDump(b, family, d.index)
		}, func(_ uint16, data []byte) error {
			r, err := netlink.ReadLocalRoute(data)
			if err == nil && r.Protocol == RouteProtocol && r.Link == uint32(d.index) && r.Dst.IsSingleIP() {
				addrs[r.Dst.Addr()] = struct{}{}
			}
			return err
		})
		if err != netlink.ErrInterrupted {
			break
		}
	}
	if err == unix.ENOENT || err == unix.EAFNOSUPPORT || err == unix.EOPNOTSUPP { // no route yet; no IPv6
		return nil
	}
	return err
}

// Add makes addresses local: when it returns, the host accepts their packets. It
// ignores addresses that are local already, and calls failed for each one that it can't add. It
// returns ENODEV if the device is gone or down.
func (d *Device) Add(ctx context.Context, addrs []netip.Addr, failed func(netip.Addr, error)) error {
	var gone error
	noIPv6 := sync.OnceValues(func() (why, remedy string) { return hostnet.NoIPv6(d.Name) }) // for all addresses
	// Without NLM_F_APPEND, a route of another agent would count as ours.
	err := d.change(ctx, unix.RTM_NEWROUTE, unix.NLM_F_CREATE|unix.NLM_F_APPEND, addrs, func(a netip.Addr, err error) {
		switch {
		case err == unix.EEXIST:
		case err == unix.ENETDOWN, err == unix.ENODEV && a.Is4(): // for IPv6, it may lack only the protocol
			gone = unix.ENODEV
		default:
			failed(a, d.addProblem(a, err, noIPv6))
		}
	})
	return cmp.Or(err, gone)
}

// addProblem explains why an address can't be added.
func (d *Device) addProblem(a netip.Addr, err error, noIPv6 func() (why, remedy string)) error {
	if a.Is6() {
		if why, remedy := noIPv6(); why != "" {
			return vip.Problem{Code: vip.CodeDataplane, Message: fmt.Sprintf("add a local route to %s by %s: %s (%v)", a, d.Name, why, err), Hint: remedy}
		}
	}
	return fmt.Errorf("add a local route to %s by %s: %w", a, d.Name, err)
}

// Remove removes the routes of addresses. It ignores those that are gone.
func (d *Device) Remove(ctx context.Context, addrs []netip.Addr, failed func(netip.Addr, error)) error {
	return d.change(ctx, unix.RTM_DELROUTE, 0, addrs, func(a netip.Addr, err error) {
		if err != unix.ESRCH && err != unix.ENODEV {
			failed(a, fmt.Errorf("remove the local route to %s by %s: %w", a, d.Name, err))
		}
	})
}

func (d *Device) change(ctx context.Context, typ, flags uint16, addrs []netip.Addr, failed func(netip.Addr, error)) error {
	switch {
	case len(addrs) == 0:
		return nil
	case d.index == 0 && typ == unix.RTM_DELROUTE: // they are gone with the device; the kernel would take those of any device
		return nil
	case d.index == 0:
		return unix.ENODEV
	}
	d.Stats.Add(uint64(len(addrs)))
	err := d.Conn.Write(ctx, len(addrs), func(b []byte, i int) []byte {
		return appendRoute(netlink.BeginMessage(b, typ, flags), d.index, addrs[i])
	}, func(i int, err error) {
		if err != nil {
			failed(addrs[i], err)
		}
	})
	if err != nil {
		return fmt.Errorf("change the routes of %s: %w", d.Name, err)
	}
	return nil
}

// Our routes differ in protocol and metric from those that the kernel makes for addresses, so each of both can go without
// the other. The kernel takes its own first.
const (
	RouteProtocol = 178 // beside 179, of package announce/routes
	routeMetric   = 178
)

// appendRoute appends the body of a message about the local route to an address.
func appendRoute(b []byte, index int, a netip.Addr) []byte {
	b = append(b, familyOf(a), byte(a.BitLen()), 0, 0, unix.RT_TABLE_LOCAL, RouteProtocol, unix.RT_SCOPE_HOST, unix.RTN_LOCAL, 0, 0, 0, 0)
	b = netlink.AppendAddr(b, unix.RTA_DST, a)
	b = netlink.AppendAttr32(b, unix.RTA_OIF, uint32(index))
	return netlink.AppendAttr32(b, unix.RTA_PRIORITY, routeMetric)
}

// appendDump appends a request for the local routes of a device. A kernel before 5.0 ignores all but the family.
func appendDump(b []byte, family byte, index int) []byte {
	b = netlink.BeginMessage(b, unix.RTM_GETROUTE, unix.NLM_F_DUMP)
	b = append(b, family, 0, 0, 0, unix.RT_TABLE_LOCAL, RouteProtocol, 0, unix.RTN_LOCAL, 0, 0, 0, 0)
	return netlink.AppendAttr32(b, unix.RTA_OIF, uint32(index))
}

func familyOf(a netip.Addr) byte {
	if a.Is4() {
		return unix.AF_INET
	}
	return unix.AF_INET6
}

// The kinds of our device: a bridge on a kernel that has no dummies. A device of another kind isn't ours.
const (
	dummyKind  = "dummy"
	bridgeKind = "bridge"
)

func isOurKind(link rtnl.Link) bool { return link.Type() == dummyKind || link.Type() == bridgeKind }

// Ours reports whether the device is as Ensure makes it: a dummy, or a bridge without ports and without ARP.
func (d *Device) Ours() (bool, error) {
	h, link, err := openLink(d.Dial, d.Name)
	if err != nil {
		return false, err
	}
	defer h.Close()
	if link == nil || link.Type() == dummyKind {
		return link != nil, nil
	}
	if link.Type() != bridgeKind || link.Attrs().RawFlags&unix.IFF_NOARP == 0 {
		return false, nil
	}
	all, err := listLinks(h)
	if err != nil {
		return false, fmt.Errorf("list the devices: %w", err)
	}
	return !slices.ContainsFunc(all, func(l rtnl.Link) bool { return l.Attrs().MasterIndex == link.Attrs().Index }), nil
}

// RemoveAll deletes the device with all its routes, unless it is of another kind than ours.
func (d *Device) RemoveAll() error {
	h, link, err := openLink(d.Dial, d.Name)
	if err != nil {
		return err
	}
	defer h.Close()
	if link == nil || !isOurKind(link) {
		return nil
	}
	return deleteLink(h, link)
}
