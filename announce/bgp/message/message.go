package message

import (
	"bufio"
	"encoding/binary"
	"fmt"
	"io"
)

// The sizes of RFC 4271, section 4.1, in bytes. Extended messages (RFC 8654) are not negotiated.
const (
	HeaderSize = 19
	MaxSize    = 4096
)

// Type is the type of a message.
type Type uint8

// The types of messages.
const (
	TypeOpen         Type = 1
	TypeUpdate       Type = 2
	TypeNotification Type = 3
	TypeKeepalive    Type = 4
	TypeRouteRefresh Type = 5 // RFC 2918
)

var typeNames = [...]string{"message of type 0", "OPEN", "UPDATE", "NOTIFICATION", "KEEPALIVE", "ROUTE-REFRESH"}

func (t Type) String() string {
	if int(t) < len(typeNames) {
		return typeNames[t]
	}
	return fmt.Sprintf("message of type %d", uint8(t))
}

// minSize has the least size of each type (RFC 4271, 4.1; RFC 2918, 3).
var minSize = [...]int{TypeOpen: 29, TypeUpdate: 23, TypeNotification: 21, TypeKeepalive: 19, TypeRouteRefresh: 23}

// Read reads one message from a reader with a buffer of MaxSize bytes. The body is valid until the next call. The
// error is a *Notification if the header is malformed. After another error, the reader still has the part of the message
// that has arrived.
func Read(r *bufio.Reader) (Type, []byte, error) {
	header, err := r.Peek(HeaderSize)
	if err != nil {
		if err == io.EOF && len(header) > 0 {
			err = io.ErrUnexpectedEOF
		}
		return 0, nil, err
	}
	for _, b := range header[:16] {
		if b != 0xff {
			return 0, nil, &Notification{Code: CodeHeader, Subcode: HeaderNotSynchronized}
		}
	}
	size, typ := int(binary.BigEndian.Uint16(header[16:])), Type(header[18])
	if typ == 0 || int(typ) >= len(minSize) {
		return 0, nil, &Notification{Code: CodeHeader, Subcode: HeaderBadType, Data: []byte{byte(typ)}}
	}
	if size < minSize[typ] || size > MaxSize || typ == TypeKeepalive && size != HeaderSize {
		return 0, nil, &Notification{Code: CodeHeader, Subcode: HeaderBadLength, Data: []byte{header[16], header[17]}}
	}
	m, err := r.Peek(size)
	if err != nil {
		if err == io.EOF {
			err = io.ErrUnexpectedEOF
		}
		return 0, nil, fmt.Errorf("in the middle of an %s: %w", typ, err)
	}
	r.Discard(size)
	return typ, m[HeaderSize:], nil
}

// begin appends a header. end sets its length.
func begin(b []byte, t Type) []byte {
	for range 16 {
		b = append(b, 0xff)
	}
	return append(b, 0, 0, byte(t))
}

func end(m []byte) { binary.BigEndian.PutUint16(m[16:], uint16(len(m))) }

// AppendKeepalive appends a KEEPALIVE.
func AppendKeepalive(b []byte) []byte {
	at := len(b)
	b = begin(b, TypeKeepalive)
	end(b[at:])
	return b
}

// ParseRouteRefresh returns the family that the peer wants again, from the body of a ROUTE-REFRESH.
// It returns false for other families, and for the enhanced form (RFC 7313), which has a subtype
// and was not negotiated.
func ParseRouteRefresh(body []byte) (Family, bool) {
	f, ok := parseFamily(binary.BigEndian.Uint16(body), body[3])
	return f, ok && body[2] == 0
}
