package ipvs

import (
	"fmt"
	"maps"
	"net"
	"net/netip"

	rtnl "github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/ironvip/ironvip/internal/netlink"
	"github.com/ironvip/ironvip/plane/kernel/host"
)

// parseRoute parses a message about a route or an address, or a request for all routes.
func (k *fakeKernel) parseRoute(h netlink.Header, data []byte) *message {
	m := &message{typ: h.Type}
	switch h.Type {
	case unix.RTM_GETROUTE:
		m.what = "list of routes"
		m.do = func() error {
			if k.device == nil {
				return unix.ENODEV
			}
			m.answer = nil
			for a := range k.device.routes {
				if is := data[0] == unix.AF_INET; is == a.Is4() {
					m.answer = append(m.answer, routeMessage(a, k.device.index))
				}
			}
			return nil
		}
		return m
	}
	r, err := netlink.ReadLocalRoute(data)
	if err != nil || r.Protocol != host.RouteProtocol {
		panic(fmt.Sprintf("a message about another route: %v %v", r, err))
	}
	addr := r.Dst.Addr()
	switch h.Type {
	case unix.RTM_NEWROUTE:
		m.what = "add route " + addr.String()
		m.do = func() error {
			d := k.device
			switch {
			case d == nil || d.index != int(r.Link):
				return unix.ENODEV
			case addr.Is6() && !d.up:
				return unix.ENETDOWN
			case d.routes[addr]:
				return unix.EEXIST
			}
			d.routes[addr] = true
			return nil
		}
	case unix.RTM_DELROUTE:
		m.what = "delete route " + addr.String()
		m.do = func() error {
			d := k.device
			if d == nil || d.index != int(r.Link) || !d.routes[addr] {
				return unix.ESRCH
			}
			delete(d.routes, addr)
			return nil
		}
	default:
		panic(fmt.Sprintf("message %d on the route socket", h.Type))
	}
	return m
}

// routeMessage is the kernel's message about the route of an address.
func routeMessage(a netip.Addr, index int) []byte {
	b := []byte{unix.AF_INET6, byte(a.BitLen()), 0, 0, unix.RT_TABLE_LOCAL, host.RouteProtocol, unix.RT_SCOPE_HOST, unix.RTN_LOCAL, 0, 0, 0, 0}
	if a.Is4() {
		b[0] = unix.AF_INET
	}
	return netlink.AppendAttr32(netlink.AppendAddr(b, unix.RTA_DST, a), unix.RTA_OIF, uint32(index))
}

// setDown sets the device down; the kernel then drops its IPv6 routes.
func (k *fakeKernel) setDown() {
	if k.device == nil {
		return
	}
	k.device.up = false
	for a := range k.device.routes {
		if a.Is6() {
			delete(k.device.routes, a)
		}
	}
}

// fakeLinks is rtnetlink.
type fakeLinks struct{ k *fakeKernel }

func (l fakeLinks) Close() {}

func (l fakeLinks) LinkByName(name string) (link rtnl.Link, err error) {
	err = l.k.call("link find", name, func() error {
		d := l.k.device
		if d == nil {
			return rtnl.LinkNotFoundError{}
		}
		attrs := rtnl.NewLinkAttrs()
		attrs.Name, attrs.Index = name, d.index
		if d.up {
			attrs.RawFlags |= unix.IFF_UP
		}
		if d.noARP {
			attrs.RawFlags |= unix.IFF_NOARP
		}
		link = &rtnl.Dummy{LinkAttrs: attrs}
		return nil
	})
	return link, err
}

func (l fakeLinks) LinkAdd(link rtnl.Link) error {
	return l.k.call("link add", link.Attrs().Name, func() error {
		if l.k.device != nil {
			return unix.EEXIST
		}
		l.k.nextLink++
		l.k.device = &fakeDevice{index: l.k.nextLink, routes: map[netip.Addr]bool{}, addrs: map[netip.Addr]bool{}}
		return nil
	})
}

func (l fakeLinks) LinkList() ([]rtnl.Link, error) { return nil, nil }

func (l fakeLinks) AddrAdd(link rtnl.Link, a *rtnl.Addr) error {
	return l.on(link, "address add", func(d *fakeDevice) {
		addr, _ := netip.AddrFromSlice(a.IP)
		d.addrs[addr.Unmap()] = true
	})
}

// fakeTunnels are the tunnel devices and their states.
type fakeTunnels struct{ k *fakeKernel }

func (f fakeTunnels) Read() (all map[netip.Addr]bool, err error) {
	err = f.k.call("tunnel read", "", func() error { all = maps.Clone(f.k.tunnels); return nil })
	return all, err
}

func (f fakeTunnels) Ensure(a netip.Addr) error {
	return f.k.call("tunnel set", a.String(), func() error { f.k.tunnels[a] = true; return nil })
}

func (f fakeTunnels) Remove(a netip.Addr) error {
	return f.k.call("tunnel delete", a.String(), func() error { delete(f.k.tunnels, a); return nil })
}

func (f fakeTunnels) RemoveAll() error {
	return f.k.call("tunnel delete", "all", func() error { clear(f.k.tunnels); return nil })
}

// on performs a call about a link's device.
func (l fakeLinks) on(link rtnl.Link, kind string, do func(d *fakeDevice)) error {
	return l.k.call(kind, link.Attrs().Name, func() error {
		if l.k.device == nil || l.k.device.index != link.Attrs().Index {
			return unix.ENODEV
		}
		do(l.k.device)
		return nil
	})
}

func (l fakeLinks) LinkSetARPOff(link rtnl.Link) error {
	return l.on(link, "link set", func(d *fakeDevice) { d.noARP = true })
}

func (l fakeLinks) LinkSetUp(link rtnl.Link) error {
	return l.on(link, "link set", func(d *fakeDevice) { d.up = true })
}

func (l fakeLinks) LinkDel(link rtnl.Link) error {
	return l.on(link, "link delete", func(*fakeDevice) { l.k.device = nil })
}

func (l fakeLinks) AddrList(link rtnl.Link, _ int) (out []rtnl.Addr, err error) {
	err = l.on(link, "address list", func(d *fakeDevice) {
		for a := range d.addrs {
			ip := net.IP(a.AsSlice())
			out = append(out, rtnl.Addr{IPNet: &net.IPNet{IP: ip, Mask: net.CIDRMask(a.BitLen(), a.BitLen())}})
		}
	})
	return out, err
}
