package bgp

import (
	"bufio"
	"encoding/binary"
	"fmt"
	"io"
)

// The sizes of RFC 4271, section 4.1. Extended messages (RFC 8654) are not negotiated.
const (
	headerSize = 19
	maxMessage = 4096
)

// messageType is the type of a message.
type messageType uint8

const (
	typeOpen         messageType = 1
	typeUpdate       messageType = 2
	typeNotification messageType = 3
	typeKeepalive    messageType = 4
	typeRefresh      messageType = 5 // RFC 2918
)

var typeWords = [...]string{"message of type 0", "OPEN", "UPDATE", "NOTIFICATION", "KEEPALIVE", "ROUTE-REFRESH"}

func (t messageType) String() string {
	if int(t) < len(typeWords) {
		return typeWords[t]
	}
	return fmt.Sprintf("message of type %d", uint8(t))
}

// smallest has the least length of each type (RFC 4271, 4.1; RFC 2918, 3).
var smallest = [...]int{typeOpen: 29, typeUpdate: 23, typeNotification: 21, typeKeepalive: 19, typeRefresh: 23}

// readMessage reads one message. The body is valid until the next call with the same buf, of
// maxMessage bytes. The error is a *notification if the header is malformed.
func readMessage(r *bufio.Reader, buf []byte) (messageType, []byte, error) {
	header := buf[:headerSize]
	if _, err := io.ReadFull(r, header); err != nil {
		return 0, nil, err
	}
	for _, b := range header[:16] {
		if b != 0xff {
			return 0, nil, &notification{code: codeHeader, subcode: headerNotSynchronized}
		}
	}
	size, typ := int(binary.BigEndian.Uint16(header[16:])), messageType(header[18])
	if typ == 0 || int(typ) >= len(smallest) {
		return 0, nil, &notification{code: codeHeader, subcode: headerBadType, data: []byte{byte(typ)}}
	}
	if size < smallest[typ] || size > maxMessage || typ == typeKeepalive && size != headerSize {
		return 0, nil, &notification{code: codeHeader, subcode: headerBadLength, data: []byte{header[16], header[17]}}
	}
	body := buf[headerSize:size]
	if _, err := io.ReadFull(r, body); err != nil {
		if err == io.EOF {
			err = io.ErrUnexpectedEOF
		}
		return 0, nil, fmt.Errorf("in the middle of an %s: %w", typ, err)
	}
	return typ, body, nil
}

// beginMessage appends a header. endMessage sets its length.
func beginMessage(b []byte, t messageType) []byte {
	for range 16 {
		b = append(b, 0xff)
	}
	return append(b, 0, 0, byte(t))
}

func endMessage(m []byte) { binary.BigEndian.PutUint16(m[16:], uint16(len(m))) }

func appendKeepalive(b []byte) []byte {
	at := len(b)
	b = beginMessage(b, typeKeepalive)
	endMessage(b[at:])
	return b
}
