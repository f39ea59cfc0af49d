package ipvs

import (
	"encoding/binary"
	"fmt"
	"maps"
	"net"
	"net/netip"

	rtnl "github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/ironvip/ironvip/internal/netlink"
	"github.com/ironvip/ironvip/plane/kernel/host"
)

// parseRoute parses a message about an address, or a query for its route.
func (k *fakeKernel) parseRoute(h netlink.Header, data []byte) *message {
	if h.Type == unix.RTM_GETROUTE {
		return k.parseRouteQuestion(h, data)
	}
	index := int(binary.NativeEndian.Uint32(data[4:]))
	var addr netip.Addr
	a := netlink.Attrs{B: data[8:]}
	for typ, v, ok := a.Next(); ok; typ, v, ok = a.Next() {
		if typ == unix.IFA_LOCAL {
			addr, _ = netip.AddrFromSlice(v)
		}
	}
	if a.Err != nil || !addr.IsValid() {
		panic(fmt.Sprintf("an address message without an address: %v", a.Err))
	}
	m := &message{typ: h.Type}
	switch h.Type {
	case unix.RTM_NEWADDR:
		m.what = "add address " + addr.String()
		m.do = func() error {
			d := k.device
			switch {
			case d == nil || d.index != index:
				return unix.ENODEV
			case d.addrs[addr] && h.Flags&unix.NLM_F_REPLACE == 0:
				return unix.EEXIST
			}
			d.addrs[addr] = true
			return nil
		}
	case unix.RTM_DELADDR:
		m.what = "delete address " + addr.String()
		m.do = func() error {
			d := k.device
			switch {
			case d == nil || d.index != index:
				return unix.ENODEV
			case !d.addrs[addr]:
				return unix.EADDRNOTAVAIL
			}
			delete(d.addrs, addr)
			return nil
		}
	default:
		panic(fmt.Sprintf("message %d on the route socket", h.Type))
	}
	return m
}

// parseRouteQuestion parses a query for the route of an address. The answer is this host, unless it
// is too early.
func (k *fakeKernel) parseRouteQuestion(h netlink.Header, data []byte) *message {
	a := netlink.Attrs{B: data[12:]}
	_, v, _ := a.Next()
	addr, ok := netip.AddrFromSlice(v)
	if !ok || int(data[1]) != addr.BitLen() {
		panic(fmt.Sprintf("a question for a route without an address: %v", data))
	}
	m := &message{typ: h.Type, what: "route of " + addr.String()}
	m.do = func() error {
		if k.tardy > 0 {
			k.tardy--
			return unix.ENETUNREACH
		}
		m.answer = [][]byte{{host.RouteTypeAt: unix.RTN_LOCAL}}
		return nil
	}
	return m
}

// setDown sets the device down; the kernel then drops its IPv6 addresses.
func (k *fakeKernel) setDown() {
	if k.device == nil {
		return
	}
	k.device.up = false
	for a := range k.device.addrs {
		if a.Is6() {
			delete(k.device.addrs, a)
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
		l.k.device = &fakeDevice{index: l.k.nextLink, addrs: map[netip.Addr]bool{}}
		return nil
	})
}

func (l fakeLinks) LinkList() ([]rtnl.Link, error)             { return nil, nil }
func (l fakeLinks) AddrAdd(link rtnl.Link, _ *rtnl.Addr) error { return nil }

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
