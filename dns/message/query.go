package message

import "encoding/binary"

// Bits of the header's flags.
const (
	flagQR = 1 << 15
	flagAA = 1 << 10
	flagTC = 1 << 9
	flagRD = 1 << 8
	flagCD = 1 << 4

	opcodeMask = 0xf << 11
	flagDO     = 1 << 15 // of the OPT record
)

// Query is what a reply needs of a query. The zero Query has read none. It refers to the bytes of the
// message that Parse has read.
type Query struct {
	Type Type

	id, flags, class uint16
	question         []byte // as the client wrote it; empty if it can't be repeated
	name             [MaxName]byte
	length           uint8 // of name

	edns    bool
	do      bool
	version uint8
	size    uint16
}

// Name returns the name of the question in wire format and in lower case.
func (q *Query) Name() []byte { return q.name[:q.length] }

// Internet reports whether the question is of class IN, or of any class.
func (q *Query) Internet() bool { return q.class == classIN || q.class == classAny }

// Parse reads a message. A reply must not be sent unless ok is true: the message is too short for a
// header, or is a reply itself, so that two servers never answer each other. A code other than
// NoError is the code of the reply.
func (q *Query) Parse(msg []byte) (code Code, ok bool) {
	q.question, q.length, q.edns, q.Type = nil, 0, false, 0
	if len(msg) < headerSize {
		return 0, false
	}
	q.id, q.flags = binary.BigEndian.Uint16(msg), binary.BigEndian.Uint16(msg[2:])
	if q.flags&flagQR != 0 {
		return 0, false
	}
	if q.flags&opcodeMask != 0 {
		q.readOPT(msg)
		return NotImp, true
	}
	if binary.BigEndian.Uint16(msg[4:]) != 1 {
		q.readOPT(msg)
		return FormErr, true
	}
	at, ok := q.readName(msg)
	if !ok || len(msg) < at+4 {
		q.readOPT(msg)
		return FormErr, true
	}
	q.Type, q.class = Type(binary.BigEndian.Uint16(msg[at:])), binary.BigEndian.Uint16(msg[at+2:])
	q.question = msg[headerSize : at+4]
	if binary.BigEndian.Uint32(msg[6:]) == 0 && binary.BigEndian.Uint16(msg[10:]) == 0 {
		return NoError, true // the usual query without EDNS
	}
	return q.readRecords(msg, at+4), true
}

// readName reads the name of the question and returns where it ends. A pointer is malformed there:
// nothing precedes the name.
func (q *Query) readName(msg []byte) (end int, ok bool) {
	n := 0
	for at := headerSize; at < len(msg); {
		label := int(msg[at])
		if label > 63 || n+1+label > MaxName-1 && label > 0 || at+1+label > len(msg) {
			return 0, false
		}
		q.name[n] = byte(label)
		n++
		at++
		if label == 0 {
			q.length = uint8(n)
			return at, true
		}
		for _, c := range msg[at : at+label] {
			if c-'A' < 26 {
				c += 'a' - 'A'
			}
			q.name[n] = c
			n++
		}
		at += label
	}
	return 0, false
}

// readOPT reads the OPT record of a message with questions that are not answered, as far as the message
// can be read: the reply to a query with EDNS has EDNS, too.
func (q *Query) readOPT(msg []byte) {
	at := headerSize
	for range binary.BigEndian.Uint16(msg[4:]) {
		if at = skipName(msg, at); at < 0 || len(msg) < at+4 {
			return
		}
		at += 4
	}
	q.readRecords(msg, at)
}

// readRecords reads the records behind the question, of which only OPT has a meaning. It follows no
// pointers, so its cost is linear.
func (q *Query) readRecords(msg []byte, at int) Code {
	others := int(binary.BigEndian.Uint16(msg[6:])) + int(binary.BigEndian.Uint16(msg[8:]))
	additional := int(binary.BigEndian.Uint16(msg[10:]))
	for i := range others + additional {
		name := at
		at = skipName(msg, at)
		if at < 0 || len(msg) < at+10 {
			return FormErr
		}
		data := int(binary.BigEndian.Uint16(msg[at+8:]))
		if len(msg) < at+10+data {
			return FormErr
		}
		if i >= others && Type(binary.BigEndian.Uint16(msg[at:])) == OPT {
			if q.edns || msg[name] != 0 {
				return FormErr
			}
			q.edns = true
			q.size = binary.BigEndian.Uint16(msg[at+2:])
			q.version = msg[at+5]
			q.do = binary.BigEndian.Uint16(msg[at+6:])&flagDO != 0
		}
		at += 10 + data
	}
	if q.edns && q.version > 0 {
		return BadVers
	}
	return NoError
}

// skipName returns where the name at a place ends, or -1.
func skipName(msg []byte, at int) int {
	for at < len(msg) {
		switch n := int(msg[at]); {
		case n == 0:
			return at + 1
		case n >= 0xc0:
			return at + 2
		case n > 63:
			return -1
		default:
			at += 1 + n
		}
	}
	return -1
}

// Limit returns how long the reply may be, in bytes.
func (q *Query) Limit(tcp bool) int {
	switch {
	case tcp:
		return MaxTCP
	case q.edns:
		return int(min(max(q.size, MinUDP), MaxUDP))
	}
	return MinUDP
}
