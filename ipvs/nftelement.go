package ipvs

import (
	"encoding/binary"
	"net/netip"
	"slices"

	"github.com/ironvip/ironvip/vip"
	"go4.org/netipx"
)

// edge is the start of a range of addresses, or the first address behind one.
type edge struct {
	at  netip.Addr
	end bool
}

func (x *elementBytes) asEdge() (edge, bool) {
	a, ok := netip.AddrFromSlice(x.key)
	return edge{a, x.edge}, ok
}

// addRanges reads what rangeElements writes, in any order.
func addRanges(b *netipx.IPSetBuilder, edges []edge) {
	slices.SortFunc(edges, func(a, b edge) int { return a.at.Compare(b.at) })
	for i, e := range edges {
		if e.end {
			continue
		}
		last := lastAddr(e.at)
		if i+1 < len(edges) {
			last = edges[i+1].at.Prev()
		}
		b.AddRange(netipx.IPRangeFrom(e.at, last))
	}
}

func lastAddr(a netip.Addr) netip.Addr {
	return netipx.RangeOfPrefix(netip.PrefixFrom(a, 0).Masked()).To()
}

// encode writes an element as the kernel lays it out: each part of the
// key padded to 4 bytes. A mark alone is in the host's byte order; as a map's data
// and as a part of an interval it is in the network's, which is how nft shows
// those, and the rules turn it round.
func (x *elementBytes) encode(e *element) {
	key, end, value := x.key[:0], x.end[:0], x.value[:0]
	if e.set.isMap() {
		value = binary.BigEndian.AppendUint32(value, e.mark)
	}
	switch addr := e.key.Addr; e.set.kind() {
	case kindListener:
		key = appendListener(key, addr, e.key.Protocol, e.key.Port)
	case kindPorts:
		key = appendListener(key, addr, e.key.Protocol, e.key.Port)
		end = appendListener(end, addr, e.key.Protocol, e.key.LastPort)
	case kindSource:
		key = appendListener(key, addr, e.key.Protocol, e.key.Port)
		key, end = appendRange(key, end, e.source)
	case kindMark:
		key = binary.NativeEndian.AppendUint32(key, e.mark)
	case kindMarkSource:
		key, end = appendRange(binary.BigEndian.AppendUint32(key, e.mark), end, e.source)
	case kindPair:
		key = appendAddress(appendAddress(key, addr), addr)
	default:
		key = appendAddress(key, addr)
	}
	*x = elementBytes{key: key, end: end, value: value}
}

func appendAddress(b []byte, a netip.Addr) []byte {
	if a.Is4() {
		v := a.As4()
		return append(b, v[:]...)
	}
	v := a.As16()
	return append(b, v[:]...)
}

func appendListener(b []byte, a netip.Addr, p vip.Protocol, port uint16) []byte {
	b = append(appendAddress(b, a), byte(p), 0, 0, 0)
	b = binary.BigEndian.AppendUint16(b, port)
	return append(b, 0, 0)
}

// appendRange appends the two ends of an interval to what first begins with.
func appendRange(first, last []byte, p netip.Prefix) (from, to []byte) {
	r := netipx.RangeOfPrefix(p)
	return appendAddress(first, r.From()), appendAddress(append(last, first...), r.To())
}

// decodeElement reads what encode writes. Of an element of a set of marks
// it can't tell the frontend: it gives it the unspecified address of its family.
func decodeElement(s setID, f vip.Family, x *elementBytes) (e element, ok bool) {
	e.set = s
	key, end := reader{x.key}, reader{x.end}
	switch s.kind() {
	case kindListener:
		e.key = key.listener(f)
		ok = e.key.Protocol != 0 // which would stand for no frontend
	case kindPorts:
		e.key = key.listener(f)
		last := end.listener(f)
		e.key.LastPort, last.Port = last.Port, e.key.Port
		ok = e.key.Protocol != 0 && e.key.LastPort > e.key.Port && last == vip.FrontendKey{Addr: e.key.Addr, Port: e.key.Port, Protocol: e.key.Protocol}
	case kindSource:
		e.key = key.listener(f)
		same := end.listener(f) == e.key
		e.source, ok = netipx.IPRangeFrom(key.addr(f), end.addr(f)).Prefix()
		ok = ok && same && e.key.Protocol != 0
	case kindMark:
		e.key.Addr, e.mark = unspecifiedOf(f), key.mark(binary.NativeEndian)
		ok = isMark(e.mark)
	case kindMarkSource:
		e.key.Addr, e.mark = unspecifiedOf(f), key.mark(binary.BigEndian)
		same := end.mark(binary.BigEndian) == e.mark
		e.source, ok = netipx.IPRangeFrom(key.addr(f), end.addr(f)).Prefix()
		ok = ok && same && isMark(e.mark)
	case kindPair:
		e.key.Addr = key.addr(f)
		ok = key.addr(f) == e.key.Addr
	default:
		e.key.Addr = key.addr(f)
		ok = e.key.Addr.IsValid()
	}
	if s.isMap() {
		val := reader{x.value}
		e.mark = val.mark(binary.BigEndian)
		ok = ok && isMark(e.mark)
	}
	if s == setInternal || s == setInternalRanges {
		e.key.Audience = vip.InternalClients
	}
	return e, ok && len(key.b) == 0 && (len(end.b) == 0) && (len(x.end) > 0) == (s.interval())
}

func unspecifiedOf(f vip.Family) netip.Addr {
	if f == vip.IPv4 {
		return netip.IPv4Unspecified()
	}
	return netip.IPv6Unspecified()
}

// reader takes the parts of a key one after the other. What isn't there is zero.
type reader struct{ b []byte }

func (r *reader) take(n int) []byte {
	if len(r.b) < n {
		r.b = nil
		return make([]byte, n)
	}
	part := r.b[:n]
	r.b = r.b[n:]
	return part
}

func (r *reader) addr(f vip.Family) netip.Addr {
	n := 4
	if f == vip.IPv6 {
		n = 16
	}
	if len(r.b) < n {
		r.b = nil
		return netip.Addr{}
	}
	a, _ := netip.AddrFromSlice(r.take(n))
	return a
}

func (r *reader) listener(f vip.Family) vip.FrontendKey {
	k := vip.FrontendKey{Addr: r.addr(f)}
	b := r.take(8)
	k.Protocol, k.Port = vip.Protocol(b[0]), binary.BigEndian.Uint16(b[4:])
	return k
}

func (r *reader) mark(order binary.ByteOrder) uint32 { return order.Uint32(r.take(4)) }
