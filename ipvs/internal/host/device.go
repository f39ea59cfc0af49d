package host

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"sync/atomic"
	"time"

	rtnl "github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/ironvip/ironvip/internal/netlink"
)

// Links is what the devices need of rtnetlink: a *rtnl.Handle.
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

// Device is the dummy device that holds the virtual addresses. Addresses on
// other devices are never looked at.
type Device struct {
	Name  string
	Dial  func() (Links, error)
	Conn  netlink.Socket
	Stats *atomic.Uint64 // addresses added or deleted
	index int
	fresh []netip.Addr // room for those that add has put there
}

func OpenDevice(name string, stats *atomic.Uint64) (*Device, error) {
	var own netlink.Counters // addresses are counted apart from IPVS messages
	c, err := netlink.Dial(unix.NETLINK_ROUTE, &own)
	if err != nil {
		return nil, err
	}
	return &Device{Name: name, Dial: dialLinks, Conn: c, Stats: stats}, nil
}

func (d *Device) Close() { d.Conn.Close() }

func dialLinks() (Links, error) { return rtnl.NewHandle(unix.NETLINK_ROUTE) }

// open opens rtnetlink, which the caller closes, and finds the device; the link
// is nil where there is none.
func (d *Device) open() (Links, rtnl.Link, error) {
	h, err := d.Dial()
	if err != nil {
		return nil, nil, fmt.Errorf("open rtnetlink: %w", err)
	}
	link, err := h.LinkByName(d.Name)
	if err == nil {
		return h, link, nil
	}
	if errors.As(err, &rtnl.LinkNotFoundError{}) {
		return h, nil, nil
	}
	h.Close()
	return nil, nil, fmt.Errorf("find device %s: %w", d.Name, err)
}

// Ensure makes the device and brings it up, where that isn't so yet. It doesn't
// touch a device of another kind that has the name. It reports whether it made
// the device or brought it up: addresses that were there may be gone.
func (d *Device) Ensure() (changed bool, err error) {
	h, link, err := d.open()
	if err != nil {
		return false, err
	}
	defer h.Close()
	if link == nil {
		attrs := rtnl.NewLinkAttrs()
		attrs.Name = d.Name
		switch err := h.LinkAdd(&rtnl.Dummy{LinkAttrs: attrs}); {
		case errors.Is(err, unix.EOPNOTSUPP):
			return false, noDummy.Err()
		case err != nil && !errors.Is(err, unix.EEXIST):
			return false, fmt.Errorf("create the dummy device %s: %w", d.Name, err)
		}
		changed = true
		if link, err = h.LinkByName(d.Name); err != nil {
			return true, fmt.Errorf("find device %s: %w", d.Name, err)
		}
	}
	if link.Type() != DeviceKind {
		return false, fmt.Errorf("device %s is a %s, not a dummy: rename it, or choose another name for ours", d.Name, link.Type())
	}
	if link.Attrs().RawFlags&unix.IFF_NOARP == 0 {
		if err := h.LinkSetARPOff(link); err != nil {
			return changed, fmt.Errorf("switch ARP off on %s: %w", d.Name, err)
		}
	}
	if link.Attrs().RawFlags&unix.IFF_UP == 0 {
		if err := h.LinkSetUp(link); err != nil {
			return changed, fmt.Errorf("bring %s up: %w", d.Name, err)
		}
		changed = true
	}
	d.index = link.Attrs().Index
	return changed, nil
}

// DeviceState is what a device was found to have.
type DeviceState struct {
	Addrs map[netip.Addr]struct{}
	Wide  []netip.Prefix // addresses with more than themselves behind them, which the host then takes to be on the device
	Fault string         // what keeps it from being as ensure makes it; "" when nothing does
}

// Read returns what is on the device, and how it is. It passes over link-local
// addresses, which the kernel puts there by itself. A device of another kind that
// has the name isn't there: nothing of it is ours.
func (d *Device) Read() (s DeviceState, err error) {
	h, link, err := d.open()
	if err != nil {
		return s, err
	}
	defer h.Close()
	s.Addrs = map[netip.Addr]struct{}{}
	if link == nil || link.Type() != DeviceKind {
		d.index = 0 // nobody's: what is put there fails, and has ensure say why
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
	for range 5 { // a dump that a change interrupts is read again
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

// Single is an address with nothing but itself behind it: as ours are.
func Single(a netip.Addr) netip.Prefix { return netip.PrefixFrom(a, a.BitLen()) }

// Add puts addresses on the device; those that are there already are fine. Their
// packets come to this host when it returns. It tells failed of each that can't be
// put there. Where the device is gone it returns ENODEV.
func (d *Device) Add(ctx context.Context, addrs []netip.Addr, failed func(netip.Addr, error)) error {
	all := make([]netip.Prefix, len(addrs))
	for i, a := range addrs {
		all[i] = Single(a)
	}
	var missing map[netip.Addr]bool
	err := d.change(ctx, unix.RTM_NEWADDR, unix.NLM_F_CREATE|unix.NLM_F_REPLACE, all, func(p netip.Prefix, err error) {
		if a := p.Addr(); err != unix.EEXIST {
			if missing == nil {
				missing = map[netip.Addr]bool{}
			}
			missing[a] = true
			failed(a, fmt.Errorf("put address %s on %s: %w", a, d.Name, err))
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
	return d.awaitLocal(ctx, d.fresh)
}

// Remove takes addresses off the device; those that are gone are fine.
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

// LocalWithin is how long a kernel may take, at the most, to have all addresses of a
// change for its own. It takes 1 ms, and some tens where it is busy.
const LocalWithin = time.Second

// awaitLocal waits until the host's routes lead the packets for new IPv6 addresses to
// itself. The kernel makes these routes in a work queue, a moment after it has
// answered that the address is there, also without duplicate address detection; a
// client who comes in between is told that there is no route. Where rules of the
// host's own lead an address elsewhere, or nobody answers, that is no fault of the
// address, and the wait ends: the error is the context's.
func (d *Device) awaitLocal(ctx context.Context, addrs []netip.Addr) error {
	var a netip.Addr
	local := false
	ask := func(b []byte) []byte { return appendRouteQuestion(b, a) }
	hear := func(_ uint16, data []byte) error {
		local = len(data) > RouteTypeAt && data[RouteTypeAt] == unix.RTN_LOCAL
		return nil
	}
	var late time.Time
	for len(addrs) > 0 {
		a, local = addrs[0], false
		err := d.Conn.Query(ctx, ask, hear)
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
			return nil
		}
		time.Sleep(time.Millisecond)
	}
	return nil
}

// elsewhere are the answers of a host that has a route for an address which leads
// nowhere, or none: unreachable, prohibit, blackhole.
var elsewhere = []error{unix.ENETUNREACH, unix.EHOSTUNREACH, unix.EACCES, unix.EINVAL}

// RouteTypeAt is where a message about a route has the route's type.
const RouteTypeAt = 7

// appendRouteQuestion asks which way packets for an IPv6 address go.
func appendRouteQuestion(b []byte, a netip.Addr) []byte {
	b = netlink.BeginMessage(b, unix.RTM_GETROUTE, 0)
	b = append(b, unix.AF_INET6, byte(a.BitLen()), 0, 0, 0, 0, 0, 0, 0, 0, 0, 0)
	return netlink.AppendAddr(b, unix.RTA_DST, a)
}

// forever is a lifetime without end, in an ifa_cacheinfo.
const forever = 0xffffffff

// appendIfAddr appends the body of an address message. An IPv6 address comes
// without duplicate detection (every host may hold it), without a route, and
// deprecated, so that it is no source address unless the peer is itself.
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

// DeviceKind is what a device of ours is; another one of its name isn't ours.
const DeviceKind = "dummy"

// Kind returns what the device is, "" where there is none.
func (d *Device) Kind() (string, error) {
	h, link, err := d.open()
	if err != nil {
		return "", err
	}
	defer h.Close()
	if link == nil {
		return "", nil
	}
	return link.Type(), nil
}

// RemoveAll deletes the device with every address on it, if it is ours.
func (d *Device) RemoveAll() error {
	h, link, err := d.open()
	if err != nil {
		return err
	}
	defer h.Close()
	if link == nil || link.Type() != DeviceKind {
		return nil
	}
	if err := h.LinkDel(link); err != nil && !errors.As(err, &rtnl.LinkNotFoundError{}) {
		return fmt.Errorf("delete device %s: %w", d.Name, err)
	}
	return nil
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
