package host

import (
	"cmp"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	rtnl "github.com/vishvananda/netlink"
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

// Device is the device with the virtual addresses: of kind dummy, or, for a kernel without that, a
// bridge without ports.
type Device struct {
	Name  string
	Kind  string // DeviceKind or BridgeKind; "" is DeviceKind
	Dial  func() (Links, error)
	Conn  netlink.Socket
	Stats *atomic.Uint64 // addresses added or deleted
	index int
	used  int          // index after the last Ensure; 0: none yet
	fresh []netip.Addr // reused by Add
}

func OpenDevice(name string, stats *atomic.Uint64) (*Device, error) {
	var own netlink.Counters // Stats counts addresses; these messages aren't IPVS messages
	c, err := netlink.Dial(unix.NETLINK_ROUTE, &own)
	if err != nil {
		return nil, err
	}
	return &Device{Name: name, Dial: dialLinks, Conn: c, Stats: stats}, nil
}

func (d *Device) Close() { d.Conn.Close() }

// Port returns the netlink port of the socket that changes addresses.
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

// Ensure creates the device and brings it up if necessary. It rejects a device of that
// name with another type. Changed means that the device is another one than before, or was
// not as it must be, so addresses may be lost.
func (d *Device) Ensure() (changed bool, err error) {
	h, link, err := openLink(d.Dial, d.Name)
	if err != nil {
		return false, err
	}
	defer h.Close()
	if link == nil {
		attrs := rtnl.NewLinkAttrs()
		attrs.Name = d.Name
		var created rtnl.Link = &rtnl.Dummy{LinkAttrs: attrs}
		if d.kind() == BridgeKind {
			created = &rtnl.Bridge{LinkAttrs: attrs}
		}
		switch err := h.LinkAdd(created); {
		case errors.Is(err, unix.EOPNOTSUPP):
			return false, noDummy.Err()
		case err != nil && !errors.Is(err, unix.EEXIST):
			return false, fmt.Errorf("create the %s device %s: %w", d.kind(), d.Name, err)
		}
		changed = true
		if link, err = h.LinkByName(d.Name); err != nil {
			return true, fmt.Errorf("find device %s: %w", d.Name, err)
		}
	}
	if link.Type() != d.kind() {
		return false, fmt.Errorf("device %s is a %s, not a %s: rename it, or choose another name for ours", d.Name, link.Type(), d.kind())
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
	return changed, nil
}

// DeviceState is what Read found on the device.
type DeviceState struct {
	Kind  string // the device's type, or "" if there is none
	Addrs map[netip.Addr]struct{}
	Wide  []netip.Prefix // longer prefixes, which send foreign traffic to the device
	Fault string         // what Ensure must repair, or ""
}

// Read returns the addresses on the device and its state. It ignores link-local
// addresses, which the kernel adds. A device of another type counts as missing.
func (d *Device) Read() (s DeviceState, err error) {
	h, link, err := openLink(d.Dial, d.Name)
	if err != nil {
		return s, err
	}
	defer h.Close()
	s.Addrs = map[netip.Addr]struct{}{}
	if link != nil {
		s.Kind = link.Type()
	}
	if s.Kind != d.kind() {
		d.index = 0 // Add fails, and Ensure then returns the reason
		s.Fault = "is missing or down"
		return s, nil
	}
	d.index = link.Attrs().Index
	switch flags := link.Attrs().RawFlags; {
	case flags&unix.IFF_UP == 0:
		s.Fault = "is missing or down"
	case flags&unix.IFF_NOARP == 0:
		s.Fault = "speaks ARP"
	}
	var list []rtnl.Addr
	for range 5 { // read again if a change interrupts the dump
		if list, err = h.AddrList(link, rtnl.FAMILY_ALL); !errors.Is(err, rtnl.ErrDumpInterrupted) {
			break
		}
	}
	if err != nil {
		return s, fmt.Errorf("list the addresses of %s: %w", d.Name, err)
	}
	for _, a := range list {
		ip, ok := netip.AddrFromSlice(a.IP)
		ip = ip.Unmap()
		bits, _ := a.Mask.Size()
		switch {
		case !ok || ip.IsLinkLocalUnicast():
		case bits == ip.BitLen():
			s.Addrs[ip] = struct{}{}
		default:
			s.Wide = append(s.Wide, netip.PrefixFrom(ip, bits))
		}
	}
	return s, nil
}

// Single returns the prefix that contains only a.
func Single(a netip.Addr) netip.Prefix { return netip.PrefixFrom(a, a.BitLen()) }

// Add adds addresses to the device and returns when the host accepts their packets. It
// ignores addresses that exist, and calls failed for each one that it can't add. It
// returns ENODEV if the device is gone.
func (d *Device) Add(ctx context.Context, addrs []netip.Addr, failed func(netip.Addr, error)) error {
	all := make([]netip.Prefix, len(addrs))
	for i, a := range addrs {
		all[i] = Single(a)
	}
	var missing map[netip.Addr]bool
	noIPv6 := sync.OnceValues(func() (why, remedy string) { return hostnet.NoIPv6(d.Name) }) // for all addresses
	err := d.change(ctx, unix.RTM_NEWADDR, unix.NLM_F_CREATE|unix.NLM_F_REPLACE, all, func(p netip.Prefix, err error) {
		if a := p.Addr(); err != unix.EEXIST {
			if missing == nil {
				missing = map[netip.Addr]bool{}
			}
			missing[a] = true
			failed(a, d.addProblem(a, err, noIPv6))
		}
	})
	if err != nil {
		return err
	}
	for _, a := range addrs {
		if a.Is6() && !missing[a] {
			d.fresh = append(d.fresh, a)
		}
	}
	defer func() { d.fresh = d.fresh[:0] }()
	if len(d.fresh) == 0 {
		return nil
	}
	return d.awaitLocal(ctx, d.fresh, failed)
}

// addProblem explains why an address can't be added.
func (d *Device) addProblem(a netip.Addr, err error, noIPv6 func() (why, remedy string)) error {
	if a.Is6() {
		if why, remedy := noIPv6(); why != "" {
			return vip.Problem{Code: vip.CodeDataplane, Message: fmt.Sprintf("put address %s on %s: %s (%v)", a, d.Name, why, err), Hint: remedy}
		}
	}
	return fmt.Errorf("put address %s on %s: %w", a, d.Name, err)
}

// Remove removes addresses from the device. It ignores those that are gone.
func (d *Device) Remove(ctx context.Context, addrs []netip.Prefix, failed func(netip.Prefix, error)) error {
	return d.change(ctx, unix.RTM_DELADDR, 0, addrs, func(a netip.Prefix, err error) {
		if err != unix.EADDRNOTAVAIL && err != unix.ENODEV && err != unix.ENOENT {
			failed(a, fmt.Errorf("take address %s off %s: %w", a.Addr(), d.Name, err))
		}
	})
}

func (d *Device) change(ctx context.Context, typ, flags uint16, addrs []netip.Prefix, failed func(netip.Prefix, error)) error {
	if len(addrs) == 0 {
		return nil
	}
	var gone error
	d.Stats.Add(uint64(len(addrs)))
	err := d.Conn.Write(ctx, len(addrs), func(b []byte, i int) []byte {
		return appendIfAddr(netlink.BeginMessage(b, typ, flags), d.index, addrs[i])
	}, func(i int, err error) {
		if err == unix.ENODEV && typ == unix.RTM_NEWADDR {
			gone = err
		} else if err != nil {
			failed(addrs[i], err)
		}
	})
	if err != nil {
		return fmt.Errorf("change the addresses of %s: %w", d.Name, err)
	}
	return gone
}

// LocalWithin bounds the wait for the local routes of new addresses. The kernel takes
// 1 ms, some 10 ms under load, and over a second while it ends many network namespaces.
const LocalWithin = time.Second

// awaitLocal waits until the host's routes deliver packets for new IPv6 addresses
// locally. The kernel adds these routes in a work queue, after it has acknowledged the
// address, also without duplicate address detection. In between, clients get "no route
// to host". It calls failed for the addresses without such a route after LocalWithin: they
// can't be reached yet, or never, because rules of the host route them elsewhere.
func (d *Device) awaitLocal(ctx context.Context, addrs []netip.Addr, failed func(netip.Addr, error)) error {
	var a netip.Addr
	local := false
	ask := func(b []byte) []byte { return appendRouteRequest(b, a) }
	read := func(_ uint16, data []byte) error {
		local = len(data) > RouteTypeAt && data[RouteTypeAt] == unix.RTN_LOCAL
		return nil
	}
	var late time.Time
	for len(addrs) > 0 {
		a, local = addrs[0], false
		err := d.Conn.Query(ctx, ask, read)
		if local {
			addrs = addrs[1:]
			continue
		}
		switch now := time.Now(); {
		case ctx.Err() != nil:
			return ctx.Err()
		case err != nil && !slices.Contains(elsewhere, err):
			return nil
		case late.IsZero():
			late = now.Add(LocalWithin)
		case now.After(late):
			failed(a, fmt.Errorf("address %s is on %s, but has no local route after %v: see \"ip -6 route get %s\" and \"ip -6 rule\"", a, d.Name, LocalWithin, a))
			addrs = addrs[1:]
			continue
		}
		time.Sleep(time.Millisecond)
	}
	return nil
}

// elsewhere are the answers for an address without a usable route: unreachable,
// prohibit, blackhole.
var elsewhere = []error{unix.ENETUNREACH, unix.EHOSTUNREACH, unix.EACCES, unix.EINVAL}

// RouteTypeAt is the position of the type in a message about a route.
const RouteTypeAt = 7

// appendRouteRequest appends a request for the route of an IPv6 address.
func appendRouteRequest(b []byte, a netip.Addr) []byte {
	b = netlink.BeginMessage(b, unix.RTM_GETROUTE, 0)
	b = append(b, unix.AF_INET6, byte(a.BitLen()), 0, 0, 0, 0, 0, 0, 0, 0, 0, 0)
	return netlink.AppendAddr(b, unix.RTA_DST, a)
}

// forever is an unlimited lifetime in an ifa_cacheinfo.
const forever = 0xffffffff

// appendIfAddr appends the body of an address message. An IPv6 address has no duplicate
// address detection, because every host may hold it, and no prefix route. It is
// deprecated, so it isn't used as a source address, except to itself.
func appendIfAddr(b []byte, index int, p netip.Prefix) []byte {
	const flags6 = unix.IFA_F_NODAD | unix.IFA_F_NOPREFIXROUTE
	a, family := p.Addr(), byte(unix.AF_INET)
	if a.Is6() {
		family = unix.AF_INET6
	}
	b = append(b, family, byte(p.Bits()), 0, unix.RT_SCOPE_UNIVERSE)
	b = binary.NativeEndian.AppendUint32(b, uint32(index))
	b = netlink.AppendAddr(b, unix.IFA_LOCAL, a)
	b = netlink.AppendAddr(b, unix.IFA_ADDRESS, a)
	if a.Is6() {
		b = netlink.AppendAttr32(b, unix.IFA_FLAGS, flags6)
		var start int
		b, start = netlink.BeginNest(b, unix.IFA_CACHEINFO)
		b = binary.NativeEndian.AppendUint32(b, 0) // preferred
		b = binary.NativeEndian.AppendUint32(b, forever)
		b = append(b, 0, 0, 0, 0, 0, 0, 0, 0) // the kernel's own time stamps
		b = netlink.EndNest(b, start)
	}
	return b
}

// DeviceKind is the type of our device, and BridgeKind that on a kernel without it. A device of
// another type isn't ours.
const (
	DeviceKind = "dummy"
	BridgeKind = "bridge"
)

func (d *Device) kind() string { return cmp.Or(d.Kind, DeviceKind) }

// Plain reports whether there is a device of our kind and as Ensure makes it: without ports and without ARP.
func (d *Device) Plain() (bool, error) {
	h, link, err := openLink(d.Dial, d.Name)
	if err != nil {
		return false, err
	}
	defer h.Close()
	if link == nil || link.Type() != d.kind() || link.Attrs().RawFlags&unix.IFF_NOARP == 0 {
		return false, nil
	}
	all, err := listLinks(h)
	if err != nil {
		return false, fmt.Errorf("list the devices: %w", err)
	}
	return !slices.ContainsFunc(all, func(l rtnl.Link) bool { return l.Attrs().MasterIndex == link.Attrs().Index }), nil
}

// RemoveAll deletes the device with all its addresses, if it is ours.
func (d *Device) RemoveAll() error {
	h, link, err := openLink(d.Dial, d.Name)
	if err != nil {
		return err
	}
	defer h.Close()
	if link == nil || link.Type() != d.kind() {
		return nil
	}
	return deleteLink(h, link)
}

// unusableName is a name that no network device can have.
const unusableName = "/"

// TryDummy asks the kernel for a dummy device with a name that it rejects. The
// kernel looks for the type of the device first, and loads the module if it can.
func TryDummy(ctx context.Context) Finding {
	err := TryMessage(ctx, unix.NETLINK_ROUTE, appendUnusableDummy)
	if err == unix.EINVAL {
		err = nil // the kernel rejected only the name
	}
	return TrialOf(DeviceKind, noDummy.Detail, true, err, unix.EOPNOTSUPP)
}

var noDummy = MissingModule(DeviceKind, "the kernel can't create dummy devices", true)

func appendUnusableDummy(b []byte) []byte {
	b = netlink.BeginMessage(b, unix.RTM_NEWLINK, unix.NLM_F_CREATE|unix.NLM_F_EXCL)
	b = append(b, make([]byte, unix.SizeofIfInfomsg)...)
	b = netlink.AppendAttrString(b, unix.IFLA_IFNAME, unusableName)
	b, info := netlink.BeginNest(b, unix.IFLA_LINKINFO)
	return netlink.EndNest(netlink.AppendAttrString(b, unix.IFLA_INFO_KIND, DeviceKind), info)
}
