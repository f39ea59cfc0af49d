package netlink

import (
	"bytes"
	"encoding/binary"
	"net/netip"

	"golang.org/x/sys/unix"
)

// attrTypeMask removes the flag bits from an attribute's type.
const attrTypeMask = ^uint16(unix.NLA_F_NESTED | unix.NLA_F_NET_BYTEORDER)

// Header contains the used fields of nlmsghdr.
type Header struct {
	Type, Flags uint16
	Seq         uint32
}

// NextMessage splits b into the first message and the rest.
func NextMessage(b []byte) (h Header, data, rest []byte, err error) {
	if len(b) < unix.SizeofNlMsghdr {
		return h, nil, nil, ErrMalformed
	}
	size := int(binary.NativeEndian.Uint32(b))
	if size < unix.SizeofNlMsghdr || size > len(b) {
		return h, nil, nil, ErrMalformed
	}
	h.Type = binary.NativeEndian.Uint16(b[4:])
	h.Flags = binary.NativeEndian.Uint16(b[6:])
	h.Seq = binary.NativeEndian.Uint32(b[8:])
	return h, b[unix.SizeofNlMsghdr:size], b[min(align(size), len(b)):], nil
}

// BeginMessage appends a message header. EndMessage completes it.
func BeginMessage(b []byte, typ, flags uint16) []byte {
	b = binary.NativeEndian.AppendUint32(b, 0)
	b = binary.NativeEndian.AppendUint16(b, typ)
	b = binary.NativeEndian.AppendUint16(b, flags|unix.NLM_F_REQUEST)
	return append(b, 0, 0, 0, 0, 0, 0, 0, 0)
}

// EndMessage completes the header of the message m.
func EndMessage(m []byte, seq, port uint32) {
	binary.NativeEndian.PutUint32(m, uint32(len(m)))
	binary.NativeEndian.PutUint32(m[8:], seq)
	binary.NativeEndian.PutUint32(m[12:], port)
}

func align(n int) int { return (n + 3) &^ 3 }

// AppendAttr appends one attribute and its padding.
func AppendAttr(b []byte, typ uint16, value ...byte) []byte {
	return pad(append(appendAttrHeader(b, typ, len(value)), value...))
}

// appendAttrHeader appends the header of an attribute with a value of size bytes.
func appendAttrHeader(b []byte, typ uint16, size int) []byte {
	b = binary.NativeEndian.AppendUint16(b, uint16(4+size))
	return binary.NativeEndian.AppendUint16(b, typ)
}

// pad appends zeros up to the next multiple of 4 bytes.
func pad(b []byte) []byte {
	for len(b)%4 != 0 {
		b = append(b, 0)
	}
	return b
}

// AppendAttr16 appends a number in the host's byte order.
func AppendAttr16(b []byte, typ, v uint16) []byte {
	return append(binary.NativeEndian.AppendUint16(appendAttrHeader(b, typ, 2), v), 0, 0)
}

// AppendAttr32 appends a number in the host's byte order.
func AppendAttr32(b []byte, typ uint16, v uint32) []byte {
	return binary.NativeEndian.AppendUint32(appendAttrHeader(b, typ, 4), v)
}

// AppendAttr32BE appends a number in network byte order.
func AppendAttr32BE(b []byte, typ uint16, v uint32) []byte {
	return binary.BigEndian.AppendUint32(appendAttrHeader(b, typ, 4), v)
}

// AppendAttr64BE appends a number in network byte order.
func AppendAttr64BE(b []byte, typ uint16, v uint64) []byte {
	return binary.BigEndian.AppendUint64(appendAttrHeader(b, typ, 8), v)
}

// AppendAttrString appends a zero-terminated string.
func AppendAttrString(b []byte, typ uint16, s string) []byte {
	b = append(appendAttrHeader(b, typ, len(s)+1), s...)
	return pad(append(b, 0))
}

// BeginNest appends the header of a nested attribute and returns its position.
// EndNest sets its length.
func BeginNest(b []byte, typ uint16) ([]byte, int) {
	return binary.NativeEndian.AppendUint16(append(b, 0, 0), typ), len(b)
}

// EndNest sets the length of the nested attribute that begins at start.
func EndNest(b []byte, start int) []byte {
	binary.NativeEndian.PutUint16(b[start:], uint16(len(b)-start))
	return b
}

// Attrs iterates over the attributes in B. After the last one, Err is
// ErrMalformed if B was malformed.
type Attrs struct {
	B   []byte
	Err error
}

// Next returns the next attribute's type without flag bits, and its value.
func (a *Attrs) Next() (typ uint16, value []byte, ok bool) {
	if len(a.B) == 0 || a.Err != nil {
		return 0, nil, false
	}
	size := 0
	if len(a.B) >= 4 {
		size = int(binary.NativeEndian.Uint16(a.B))
	}
	if size < 4 || size > len(a.B) {
		a.Err = ErrMalformed
		return 0, nil, false
	}
	typ = binary.NativeEndian.Uint16(a.B[2:]) & attrTypeMask
	value = a.B[4:size]
	a.B = a.B[min(align(size), len(a.B)):]
	return typ, value, true
}

// Find returns the value of the first attribute of a type in b, or nil.
func Find(b []byte, want uint16) ([]byte, error) {
	a := Attrs{B: b}
	for typ, v, ok := a.Next(); ok; typ, v, ok = a.Next() {
		if typ == want {
			return v, nil
		}
	}
	return nil, a.Err
}

// Uint16 reads a value in the host's byte order.
func (a *Attrs) Uint16(v []byte) uint16 { return binary.NativeEndian.Uint16(a.atLeast(2, v)) }

// Uint32 reads a value in the host's byte order.
func (a *Attrs) Uint32(v []byte) uint32 { return binary.NativeEndian.Uint32(a.atLeast(4, v)) }

// Uint64 reads a value in the host's byte order.
func (a *Attrs) Uint64(v []byte) uint64 { return binary.NativeEndian.Uint64(a.atLeast(8, v)) }

// Port reads a port in network byte order.
func (a *Attrs) Port(v []byte) uint16 { return binary.BigEndian.Uint16(a.atLeast(2, v)) }

// atLeast returns v, or zeros and an error in a.Err if v is shorter than n bytes.
func (a *Attrs) atLeast(n int, v []byte) []byte {
	if len(v) < n {
		a.Err = ErrMalformed
		return make([]byte, 8)
	}
	return v
}

// String returns v up to its terminating zero.
func String(v []byte) string {
	if i := bytes.IndexByte(v, 0); i >= 0 {
		v = v[:i]
	}
	return string(v)
}

// AppendAddr appends an address of 4 or 16 bytes.
func AppendAddr(b []byte, typ uint16, a netip.Addr) []byte {
	b, _ = a.AppendBinary(appendAttrHeader(b, typ, a.BitLen()/8)) // it returns no error
	return b
}

// AppendPort appends a port in network byte order.
func AppendPort(b []byte, typ, port uint16) []byte {
	return AppendAttr(b, typ, byte(port>>8), byte(port))
}
