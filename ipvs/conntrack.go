package ipvs

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"net/netip"

	"golang.org/x/sys/unix"

	"github.com/ironvip/ironvip/internal/netlink"
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
	ctaFilter     = 25 // of a dump, from 5.8 on; older kernels pass over it and send all

	ctaTupleIP    = 1
	ctaTupleProto = 2

	ctaSrc4, ctaDst4, ctaSrc6, ctaDst6        = 1, 2, 3, 4
	ctaProtoNum, ctaProtoSport, ctaProtoDport = 1, 2, 3

	ctaFilterOrig, ctaFilterReply = 1, 2 // which parts of the tuples count:

	ctFilterSrc, ctFilterDst                    = 1 << 0, 1 << 1
	ctFilterProto, ctFilterSport, ctFilterDport = 1 << 3, 1 << 4, 1 << 5
)

// flow is what tells one backend's UDP connection tracking entries of one
// frontend. Parts that are zero are any: a backend's port, or all of it. The
// clients of another audience of the same address and port have the same
// entries; that theirs go too costs them nothing.
type flow struct {
	frontend vip.FrontendKey
	backend  netip.AddrPort
}

// flows says which connection tracking entries of UDP clients have become
// wrong: those of one backend, or, where that is zero, of the whole frontend.
// UDP has no end of a connection that would make them go by themselves: a
// client that keeps sending would be sent to a backend that has left for as
// long as it does.
type flows map[flow]struct{}

func (f flows) add(k vip.FrontendKey, b netip.AddrPort) {
	if k.Protocol == vip.UDP {
		f[flow{k, b}] = struct{}{}
	}
}

func (f flows) has(x flow) bool { return f.index().has(x) }

// index prepares for being asked about many entries.
func (f flows) index() flowIndex {
	ix := flowIndex{flows{}, map[netip.Addr][]flow{}}
	for x := range f {
		if a := x.frontend.Addr; x.frontend.Ranged() {
			ix.ranges[a] = append(ix.ranges[a], x)
			continue
		}
		x.frontend.Audience = vip.Everyone
		ix.single[x] = struct{}{}
	}
	return ix
}

// flowIndex finds flows: those of single ports in one step, those of ranges by
// their address.
type flowIndex struct {
	single flows
	ranges map[netip.Addr][]flow
}

// has reports whether an entry, of which everything is known, is among the flows.
func (ix flowIndex) has(x flow) bool {
	_, one := ix.single[x]
	_, all := ix.single[flow{frontend: x.frontend}]
	if one || all {
		return true
	}
	for _, r := range ix.ranges[x.frontend.Addr] {
		k, b := r.frontend, r.backend
		if k.Protocol == x.frontend.Protocol && k.Port <= x.frontend.Port && x.frontend.Port <= k.LastPort &&
			(!b.IsValid() || b == x.backend || b.Port() == 0 && b.Addr() == x.backend.Addr()) {
			return true
		}
	}
	return false
}

// common returns what all of a family have in common, and whether there are any.
func (f flows) common(family vip.Family) (c flow, any bool) {
	for x := range f {
		switch {
		case vip.FamilyOf(x.frontend.Addr) != family:
			continue
		case !any:
			if c, any = x, true; x.frontend.Ranged() {
				c.frontend.Port = 0
			}
			continue
		}
		if c.frontend.Addr != x.frontend.Addr {
			c.frontend.Addr = netip.Addr{}
		}
		if c.frontend.Port != x.frontend.Port || x.frontend.Ranged() {
			c.frontend.Port = 0
		}
		if c.backend.Addr() != x.backend.Addr() {
			c.backend = netip.AddrPort{}
		} else if c.backend.Port() != x.backend.Port() {
			c.backend = netip.AddrPortFrom(c.backend.Addr(), 0)
		}
	}
	return c, any
}

// conntrack is the kernel's connection tracking. Each call opens a socket in
// the calling thread's network namespace.
type conntrack struct{ stats *counters }

// supported tries whether entries can be deleted.
func (conntrack) supported(ctx context.Context) Finding { return tryConntrackNetlink(ctx) }

// delete deletes the entries. For all of a batch it takes one dump a
// family, of which the kernel sends those UDP entries only that have in common
// what all of f have: for one IPv4 backend, exactly its own.
func (t conntrack) delete(ctx context.Context, f flows) error {
	if len(f) == 0 {
		return nil
	}
	var own netlink.Counters // these are no IPVS messages
	c, err := netlink.Dial(unix.NETLINK_NETFILTER, &own)
	if err != nil {
		return err
	}
	defer c.Close()
	var found [][]byte
	wanted := f.index()
	for _, family := range []vip.Family{vip.IPv4, vip.IPv6} {
		filter, any := f.common(family)
		if !any {
			continue
		}
		t.stats.conntrackDumps.Add(1)
		err := c.Query(ctx, func(b []byte) []byte { return appendFlowDump(b, family, filter) }, func(_ uint16, data []byte) error {
			x, id, err := decodeFlow(data)
			if err == nil && wanted.has(x) {
				found = append(found, append(beginConntrack(nil, ctDelete, 0, family), id...))
			}
			return err
		})
		if err != nil {
			return fmt.Errorf("list connection tracking entries of udp: %w", err)
		}
	}
	var refused error
	err = c.Write(ctx, len(found), func(b []byte, i int) []byte { return append(b, found[i]...) }, func(_ int, err error) {
		switch err {
		case nil:
			t.stats.conntrack.Add(1)
		case unix.ENOENT: // gone by itself
		default:
			refused = fmt.Errorf("delete a connection tracking entry of udp: %w", err)
		}
	})
	return errors.Join(err, refused)
}

// beginConntrack appends the head of a message and its nfgenmsg.
func beginConntrack(b []byte, typ, flags uint16, family vip.Family) []byte {
	af := byte(unix.AF_INET)
	if family == vip.IPv6 {
		af = unix.AF_INET6
	}
	return append(netlink.BeginMessage(b, typ, flags), af, unix.NFNETLINK_V0, 0, 0)
}

// appendFlowDump appends the request for the UDP entries that match. It filters
// by no IPv6 address, as 6.1 leaves out those that match, not those that don't.
func appendFlowDump(b []byte, family vip.Family, match flow) []byte {
	b = beginConntrack(b, ctGet, unix.NLM_F_DUMP, family)
	orig, reply := uint32(ctFilterProto), uint32(0)
	dst := netip.AddrPortFrom(match.frontend.Addr, match.frontend.Port)
	if dst.Addr().Is4() {
		orig |= ctFilterDst
	}
	if dst.Port() != 0 {
		orig |= ctFilterDport
	}
	if match.backend.Addr().Is4() {
		reply |= ctFilterSrc
	}
	if match.backend.Port() != 0 {
		reply |= ctFilterProto | ctFilterSport
	}
	b, start := netlink.BeginNest(b, ctaFilter|unix.NLA_F_NESTED)
	b = netlink.AppendAttr32(b, ctaFilterOrig, orig)
	b = netlink.AppendAttr32(b, ctaFilterReply, reply)
	b = netlink.EndNest(b, start)
	b = appendTuple(b, ctaTupleOrig, dst, ctaDst4, ctaDst6, ctaProtoDport)
	if reply != 0 {
		b = appendTuple(b, ctaTupleReply, match.backend, ctaSrc4, ctaSrc6, ctaProtoSport)
	}
	return b
}

// appendTuple appends one end of a UDP tuple, as far as it is given.
func appendTuple(b []byte, typ uint16, end netip.AddrPort, addr4, addr6, port uint16) []byte {
	b, tuple := netlink.BeginNest(b, typ|unix.NLA_F_NESTED)
	if a := end.Addr(); a.IsValid() {
		if a.Is6() {
			addr4 = addr6
		}
		var ip int
		b, ip = netlink.BeginNest(b, ctaTupleIP|unix.NLA_F_NESTED)
		b = netlink.EndNest(netlink.AppendAddr(b, addr4, a), ip)
	}
	b, proto := netlink.BeginNest(b, ctaTupleProto|unix.NLA_F_NESTED)
	b = netlink.AppendAttr(b, ctaProtoNum, unix.IPPROTO_UDP)
	b = netlink.AppendPort(b, port, end.Port())
	return netlink.EndNest(netlink.EndNest(b, proto), tuple)
}

// decodeFlow reads an entry of a dump: whose it is, and the attributes by which
// the kernel finds it again.
func decodeFlow(data []byte) (x flow, id []byte, err error) {
	if len(data) < 4 {
		return x, nil, netlink.ErrMalformed
	}
	a := netlink.Attrs{B: data[4:]}
	for typ, v, ok := a.Next(); ok; typ, v, ok = a.Next() {
		switch typ {
		case ctaTupleOrig:
			_, dst, proto, err := decodeTuple(v)
			if err != nil {
				return x, nil, err
			}
			x.frontend = vip.FrontendKey{Addr: dst.Addr(), Port: dst.Port(), Protocol: vip.Protocol(proto)}
			id = netlink.AppendAttr(id, ctaTupleOrig|unix.NLA_F_NESTED, v...)
		case ctaTupleReply:
			if x.backend, _, _, err = decodeTuple(v); err != nil {
				return x, nil, err
			}
		case ctaID, ctaZone:
			id = netlink.AppendAttr(id, typ, v...)
		}
	}
	return x, id, a.Err
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
