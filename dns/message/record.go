package message

import (
	"encoding/binary"
	"net/netip"
)

// Question is the owner of a record as a pointer to the name of the question.
const Question = headerSize

// appendHead appends a record up to the length of its data. The owner is a pointer to a place in the
// message.
func appendHead(out []byte, owner int, t Type, ttl uint32, length int) []byte {
	out = binary.BigEndian.AppendUint16(out, 0xc000|uint16(owner))
	return appendRest(out, t, ttl, length)
}

func appendRest(out []byte, t Type, ttl uint32, length int) []byte {
	out = binary.BigEndian.AppendUint16(out, uint16(t))
	out = binary.BigEndian.AppendUint16(out, classIN)
	out = binary.BigEndian.AppendUint32(out, ttl)
	return binary.BigEndian.AppendUint16(out, uint16(length))
}

// AppendAddr appends an A or AAAA record, with the owner at a place in the message.
func AppendAddr(out []byte, owner int, ttl uint32, addr netip.Addr) []byte {
	if addr.Is4() {
		b := addr.As4()
		return append(appendHead(out, owner, A, ttl, len(b)), b[:]...)
	}
	b := addr.As16()
	return append(appendHead(out, owner, AAAA, ttl, len(b)), b[:]...)
}

// AppendName appends a record with a name as its data (PTR, NS), for the name of the question.
func AppendName[S ~string | ~[]byte](out []byte, t Type, ttl uint32, name S) []byte {
	return append(appendHead(out, Question, t, ttl, len(name)), name...)
}

// AppendSRV appends an SRV record for the name of the question. The target is not compressed (RFC
// 2782). Priority and weight are those of Kubernetes' servers: a service has one target.
func AppendSRV[S ~string | ~[]byte](out []byte, ttl uint32, port uint16, target S) []byte {
	out = appendHead(out, Question, SRV, ttl, 6+len(target))
	out = append(out, 0, 0, 0, 100)
	out = binary.BigEndian.AppendUint16(out, port)
	return append(out, target...)
}

// AppendTXT appends a TXT record of one string, of up to 255 bytes, for the name of the question.
func AppendTXT(out []byte, ttl uint32, text string) []byte {
	out = appendHead(out, Question, TXT, ttl, 1+len(text))
	return append(append(out, byte(len(text))), text...)
}

// SOARecord returns an SOA record without its owner and with serial 0, for Reply. The refresh, retry
// and expire times are for secondaries, which can't exist without transfers. RFC 2308 makes the TTL
// and the minimum the time for which a negative answer is cached.
func SOARecord(server, mailbox []byte, negativeTTL uint32) string {
	out := appendRest(nil, SOA, negativeTTL, len(server)+len(mailbox)+soaNumbers)
	out = append(append(out, server...), mailbox...)
	for _, n := range []uint32{0, 7200, 1800, 86400, negativeTTL} {
		out = binary.BigEndian.AppendUint32(out, n)
	}
	return string(out)
}
