package conntrack

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"net/netip"
	"sync/atomic"

	"golang.org/x/sys/unix"

	"github.com/ironvip/ironvip/internal/netlink"
	"github.com/ironvip/ironvip/plane/kernel/host"
	"github.com/ironvip/ironvip/vip"
)

// Messages and attributes of ctnetlink, see linux/netfilter/nfnetlink_conntrack.h.
const (
	ctGet    = unix.NFNL_SUBSYS_CTNETLINK<<8 | 1
	ctDelete = unix.NFNL_SUBSYS_CTNETLINK<<8 | 2

	ctGetStats = unix.NFNL_SUBSYS_CTNETLINK<<8 | 5

	ctaTupleOrig  = 1
	ctaTupleReply = 2
	ctaID         = 12
	ctaZone       = 18
	ctaFilter     = 25 // of a dump, from 5.8 on; older kernels ignore it and send all entries

	ctaTupleIP    = 1
	ctaTupleProto = 2

	ctaSrc4, ctaDst4, ctaSrc6, ctaDst6        = 1, 2, 3, 4
	ctaProtoNum, ctaProtoSport, ctaProtoDport = 1, 2, 3

	ctaFilterOrig, ctaFilterReply = 1, 2 // which parts of the tuples must match:

	ctFilterSrc, ctFilterDst                    = 1 << 0, 1 << 1
	ctFilterProto, ctFilterSport, ctFilterDport = 1 << 3, 1 << 4, 1 << 5
)

// Flow selects the entries of one backend of one frontend. Zero parts match all
// values: a backend's port, or the whole backend. Frontends of another audience with the
// same address and port have the same entries. It does no harm to delete those, too.
type Flow struct {
	Frontend vip.FrontendKey
	Backend  netip.AddrPort
}

// Flows are sets of entries: of one backend, or, if Backend is zero, of a whole frontend.
type Flows map[Flow]struct{}

// Add adds entries.
func (f Flows) Add(k vip.FrontendKey, b netip.AddrPort) { f[Flow{k, b}] = struct{}{} }

// Index returns an index for many lookups.
func (f Flows) Index() FlowIndex {
	ix := FlowIndex{Flows{}, map[netip.Addr][]Flow{}}
	for x := range f {
		if a := x.Frontend.Addr; x.Frontend.Ranged() {
			ix.ranges[a] = append(ix.ranges[a], x)
			continue
		}
		x.Frontend.Audience = vip.Everyone
		ix.single[x] = struct{}{}
	}
	return ix
}

// FlowIndex finds flows of single ports by a map lookup, and flows of ranges by address.
type FlowIndex struct {
	single Flows
	ranges map[netip.Addr][]Flow
}

// Has reports whether a complete entry is one of a backend, and whether it is one of a whole frontend.
func (ix FlowIndex) Has(x Flow) (backend, whole bool) {
	_, backend = ix.single[x]
	_, whole = ix.single[Flow{Frontend: x.Frontend}]
	for _, r := range ix.ranges[x.Frontend.Addr] {
		k, b := r.Frontend, r.Backend
		if k.Protocol != x.Frontend.Protocol || x.Frontend.Port < k.Port || k.LastPort < x.Frontend.Port {
			continue
		}
		if !b.IsValid() {
			whole = true
		} else if b == x.Backend || b.Port() == 0 && b.Addr() == x.Backend.Addr() {
			backend = true
		}
	}
	return backend, whole
}

// Protocols are those that flows may have.
var Protocols = []vip.Protocol{vip.UDP, vip.TCP, vip.SCTP}

// Common returns what all flows of a family and protocol have in common, and whether there are any.
func (f Flows) Common(family vip.Family, protocol vip.Protocol) (c Flow, any bool) {
	for x := range f {
		switch {
		case vip.FamilyOf(x.Frontend.Addr) != family || x.Frontend.Protocol != protocol:
			continue
		case !any:
			if c, any = x, true; x.Frontend.Ranged() {
				c.Frontend.Port = 0
			}
			continue
		}
		if c.Frontend.Addr != x.Frontend.Addr {
			c.Frontend.Addr = netip.Addr{}
		}
		if c.Frontend.Port != x.Frontend.Port || x.Frontend.Ranged() {
			c.Frontend.Port = 0
		}
		if c.Backend.Addr() != x.Backend.Addr() {
			c.Backend = netip.AddrPort{}
		} else if c.Backend.Port() != x.Backend.Port() {
			c.Backend = netip.AddrPortFrom(c.Backend.Addr(), 0)
		}
	}
	return c, any
}

// Table is the kernel's connection tracking table. Each call opens a socket in the calling
// thread's network namespace.
type Table struct {
	Dumps   *atomic.Uint64 // counts queries
	Deleted *atomic.Uint64 // counts deleted entries
}

// Supported checks whether the kernel can list and delete entries.
func (Table) Supported(ctx context.Context) host.Finding { return Try(ctx) }

// delete sends messages that delete entries.
func (t Table) delete(ctx context.Context, c *netlink.Conn, found [][]byte) error {
	var refused error
	err := c.Write(ctx, len(found), func(b []byte, i int) []byte { return append(b, found[i]...) }, func(_ int, err error) {
		switch err {
		case nil:
			t.Deleted.Add(1)
		case unix.ENOENT: // it has expired
		default:
			refused = fmt.Errorf("delete a connection tracking entry: %w", err)
		}
	})
	return errors.Join(err, refused)
}

// beginConntrack appends the header of a message and its nfgenmsg.
func beginConntrack(b []byte, typ, flags uint16, family vip.Family) []byte {
	af := byte(unix.AF_UNSPEC)
	switch family {
	case vip.IPv4:
		af = unix.AF_INET
	case vip.IPv6:
		af = unix.AF_INET6
	}
	return append(netlink.BeginMessage(b, typ, flags), af, unix.NFNETLINK_V0, 0, 0)
}

// AppendFlowDump appends a request for the matching entries, or, without a family, for all
// entries. It doesn't filter by IPv6 address: kernel 6.1 then leaves out the entries that match.
func AppendFlowDump(b []byte, family vip.Family, match Flow) []byte {
	b = beginConntrack(b, ctGet, unix.NLM_F_DUMP, family)
	if family == 0 {
		return b
	}
	orig, reply := uint32(ctFilterProto), uint32(0)
	dst := netip.AddrPortFrom(match.Frontend.Addr, match.Frontend.Port)
	if dst.Addr().Is4() {
		orig |= ctFilterDst
	}
	if dst.Port() != 0 {
		orig |= ctFilterDport
	}
	if match.Backend.Addr().Is4() {
		reply |= ctFilterSrc
	}
	if match.Backend.Port() != 0 {
		reply |= ctFilterProto | ctFilterSport
	}
	b, start := netlink.BeginNest(b, ctaFilter|unix.NLA_F_NESTED)
	b = netlink.AppendAttr32(b, ctaFilterOrig, orig)
	b = netlink.AppendAttr32(b, ctaFilterReply, reply)
	b = netlink.EndNest(b, start)
	protocol := byte(match.Frontend.Protocol)
	b = appendTuple(b, ctaTupleOrig, protocol, netip.AddrPort{}, dst)
	if reply != 0 {
		b = appendTuple(b, ctaTupleReply, protocol, match.Backend, netip.AddrPort{})
	}
	return b
}

// appendTuple appends the known parts of the ends of a tuple.
func appendTuple(b []byte, typ uint16, protocol byte, src, dst netip.AddrPort) []byte {
	addr := func(b []byte, a netip.Addr, four, six uint16) []byte {
		switch {
		case a.Is4():
			return netlink.AppendAddr(b, four, a)
		case a.Is6():
			return netlink.AppendAddr(b, six, a)
		}
		return b
	}
	port := func(b []byte, typ, n uint16) []byte {
		if n == 0 {
			return b
		}
		return netlink.AppendPort(b, typ, n)
	}
	b, tuple := netlink.BeginNest(b, typ|unix.NLA_F_NESTED)
	if src.IsValid() || dst.IsValid() {
		var ip int
		b, ip = netlink.BeginNest(b, ctaTupleIP|unix.NLA_F_NESTED)
		b = addr(addr(b, src.Addr(), ctaSrc4, ctaSrc6), dst.Addr(), ctaDst4, ctaDst6)
		b = netlink.EndNest(b, ip)
	}
	b, proto := netlink.BeginNest(b, ctaTupleProto|unix.NLA_F_NESTED)
	b = port(port(netlink.AppendAttr(b, ctaProtoNum, protocol), ctaProtoSport, src.Port()), ctaProtoDport, dst.Port())
	return netlink.EndNest(netlink.EndNest(b, proto), tuple)
}

// identity returns the attributes of an entry of a dump that identify it to the kernel.
func identity(data []byte) (id []byte, err error) {
	a := netlink.Attrs{B: data[4:]}
	for typ, v, ok := a.Next(); ok; typ, v, ok = a.Next() {
		switch typ {
		case ctaTupleOrig:
			id = netlink.AppendAttr(id, ctaTupleOrig|unix.NLA_F_NESTED, v...)
		case ctaID, ctaZone:
			id = netlink.AppendAttr(id, typ, v...)
		}
	}
	return id, a.Err
}

func decodeTuple(b []byte) (src, dst netip.AddrPort, proto byte, err error) {
	var from, to netip.Addr
	var sport, dport uint16
	outer := netlink.Attrs{B: b}
	for typ, v, ok := outer.Next(); ok; typ, v, ok = outer.Next() {
		inner := netlink.Attrs{B: v}
		for part, v, ok := inner.Next(); ok; part, v, ok = inner.Next() {
			switch {
			case typ == ctaTupleIP && (part == ctaSrc4 || part == ctaSrc6):
				from, _ = netip.AddrFromSlice(v)
			case typ == ctaTupleIP && (part == ctaDst4 || part == ctaDst6):
				to, _ = netip.AddrFromSlice(v)
			case typ == ctaTupleProto && part == ctaProtoNum && len(v) == 1:
				proto = v[0]
			case typ == ctaTupleProto && part == ctaProtoSport && len(v) == 2:
				sport = binary.BigEndian.Uint16(v)
			case typ == ctaTupleProto && part == ctaProtoDport && len(v) == 2:
				dport = binary.BigEndian.Uint16(v)
			}
		}
		if inner.Err != nil {
			return src, dst, 0, inner.Err
		}
	}
	return netip.AddrPortFrom(from, sport), netip.AddrPortFrom(to, dport), proto, outer.Err
}
