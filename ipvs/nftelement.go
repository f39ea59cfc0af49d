package ipvs

import (
	"encoding/binary"
	"net/netip"

	"go4.org/netipx"

	"github.com/ironvip/ironvip/internal/nftwire"
	"github.com/ironvip/ironvip/vip"
)

// encodeElement writes an element as the kernel lays it out: each part of the
// key padded to 4 bytes. A mark alone is in the host's byte order; as a map's data
// and as a part of an interval it is in the network's, which is how nft shows
// those, and the rules turn it round.
func encodeElement(x *nftwire.Element, e *element) {
	key, end, value := x.Key[:0], x.End[:0], x.Value[:0]
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
	*x = nftwire.Element{Key: key, End: end, Value: value}
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

// decodeElement reads what encodeElement writes. Of an element of a set of marks
// it can't tell the frontend: it gives it the unspecified address of its family.
func decodeElement(s setID, f vip.Family, x *nftwire.Element) (e element, ok bool) {
	e.set = s
	key, end := reader{x.Key}, reader{x.End}
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
		val := reader{x.Value}
		e.mark = val.mark(binary.BigEndian)
		ok = ok && isMark(e.mark)
	}
	if s == setInternal || s == setInternalRanges {
		e.key.Audience = vip.InternalClients
	}
	return e, ok && len(key.b) == 0 && (len(end.b) == 0) && (len(x.End) > 0) == (s.interval())
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
