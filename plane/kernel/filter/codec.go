package filter

import (
	"encoding/binary"
	"net/netip"

	"go4.org/netipx"

	"github.com/ironvip/ironvip/internal/nftwire"
	"github.com/ironvip/ironvip/vip"
)

// EncodeElement encodes an element in the kernel's layout, with each part of the key padded
// to 4 bytes. A mark is in the host's byte order in sets of marks and of probes. In maps and intervals
// it is in network byte order, as nft shows it, and the rules convert it.
func EncodeElement(x *nftwire.Element, e *Element) {
	key, end, value := x.Key[:0], x.End[:0], x.Value[:0]
	if e.Set.IsMap() {
		value = binary.BigEndian.AppendUint32(value, e.Mark)
	}
	switch addr := e.Key.Addr; e.Set.Kind() {
	case kindListener:
		key = appendListener(key, addr, e.Key.Protocol, e.Key.Port)
	case KindPorts:
		key = appendListener(key, addr, e.Key.Protocol, e.Key.Port)
		end = appendListener(end, addr, e.Key.Protocol, e.Key.LastPort)
	case KindSource:
		key = appendListener(key, addr, e.Key.Protocol, e.Key.Port)
		key, end = appendRange(key, end, e.Source)
	case KindMark:
		key = binary.NativeEndian.AppendUint32(key, e.Mark)
	case KindMarkSource:
		key, end = appendRange(binary.BigEndian.AppendUint32(key, e.Mark), end, e.Source)
	case KindPair:
		key = appendAddress(appendAddress(key, addr), addr)
	case KindProbe:
		from, to := addr, e.Source.Addr()
		if e.Set == SetRestored {
			from, to = to, from
		}
		key = appendAddress(binary.NativeEndian.AppendUint32(key, e.Mark), from)
		value = appendAddress(value, to)
	default:
		key = appendAddress(key, addr)
	}
	*x = nftwire.Element{Key: key, End: end, Value: value}
}

func appendAddress(b []byte, a netip.Addr) []byte {
	b, _ = a.AppendBinary(b) // it returns no error
	return b
}

func appendListener(b []byte, a netip.Addr, p vip.Protocol, port uint16) []byte {
	b = append(appendAddress(b, a), byte(p), 0, 0, 0)
	b = binary.BigEndian.AppendUint16(b, port)
	return append(b, 0, 0)
}

// appendRange appends both ends of an interval to the prefix in first.
func appendRange(first, last []byte, p netip.Prefix) (from, to []byte) {
	r := netipx.RangeOfPrefix(p)
	return appendAddress(first, r.From()), appendAddress(append(last, first...), r.To())
}

// DecodeElement reads the format of EncodeElement. An element of a set of marks doesn't
// contain its frontend; its key is the unspecified address of the family.
func DecodeElement(s Set, f vip.Family, x *nftwire.Element) (e Element, ok bool) {
	e.Set = s
	key, end := reader{x.Key}, reader{x.End}
	switch s.Kind() {
	case kindListener:
		e.Key = key.listener(f)
		ok = e.Key.Protocol != 0 // protocol 0 isn't a frontend's
	case KindPorts:
		e.Key = key.listener(f)
		last := end.listener(f)
		e.Key.LastPort, last.Port = last.Port, e.Key.Port
		ok = e.Key.Protocol != 0 && e.Key.LastPort > e.Key.Port && last == vip.FrontendKey{Addr: e.Key.Addr, Port: e.Key.Port, Protocol: e.Key.Protocol}
	case KindSource:
		e.Key = key.listener(f)
		same := end.listener(f) == e.Key
		e.Source, ok = netipx.IPRangeFrom(key.addr(f), end.addr(f)).Prefix()
		ok = ok && same && e.Key.Protocol != 0
	case KindMark:
		e.Key.Addr, e.Mark = unspecifiedOf(f), key.mark(binary.NativeEndian)
		ok = IsMark(e.Mark)
	case KindMarkSource:
		e.Key.Addr, e.Mark = unspecifiedOf(f), key.mark(binary.BigEndian)
		same := end.mark(binary.BigEndian) == e.Mark
		e.Source, ok = netipx.IPRangeFrom(key.addr(f), end.addr(f)).Prefix()
		ok = ok && same && IsMark(e.Mark)
	case KindPair:
		e.Key.Addr = key.addr(f)
		ok = e.Key.Addr.IsValid() && key.addr(f) == e.Key.Addr
	case KindProbe:
		data := reader{x.Value}
		e.Mark = key.mark(binary.NativeEndian)
		virtual, backend := key.addr(f), data.addr(f)
		if s == SetRestored {
			virtual, backend = backend, virtual
		}
		e.Key.Addr, e.Source = virtual, netip.PrefixFrom(backend, backend.BitLen())
		ok = IsProbeMark(e.Mark) && virtual.IsValid() && backend.IsValid() && len(data.b) == 0
	default:
		e.Key.Addr = key.addr(f)
		ok = e.Key.Addr.IsValid()
	}
	if s.IsMap() {
		val := reader{x.Value}
		e.Mark = val.mark(binary.BigEndian)
		ok = ok && IsMark(e.Mark)
	}
	if s == SetInternal || s == SetInternalRanges {
		e.Key.Audience = vip.InternalClients
	}
	return e, ok && len(key.b) == 0 && (len(end.b) == 0) && (len(x.End) > 0) == (s.interval())
}

func unspecifiedOf(f vip.Family) netip.Addr {
	if f == vip.IPv4 {
		return netip.IPv4Unspecified()
	}
	return netip.IPv6Unspecified()
}

// reader reads the parts of a key in order. Missing parts are zero.
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
