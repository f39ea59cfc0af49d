package zone

import (
	"encoding/binary"
	"net/netip"

	"github.com/ironvip/ironvip/dns/message"
	"github.com/ironvip/ironvip/vip"
)

// The records of a name are a string of blocks, one for each type:
//
//	type                2 bytes
//	number of records   1 byte; and of additional records, 1 byte
//	length of records   2 bytes; and of additional records, 2 bytes
//	the records, the additional records
//
// The first block is the answer to ANY.
const blockHead = 8

// findBlock sets the answer of a reply to the records of a type, and reports whether there are any.
func findBlock(records string, t message.Type, r *message.Reply) bool {
	for len(records) >= blockHead {
		answer := int(records[4])<<8 | int(records[5])
		end := blockHead + answer + int(records[6])<<8 + int(records[7])
		if of := message.Type(records[0])<<8 | message.Type(records[1]); of == t || t == message.ANY {
			r.Answers, r.Extras = int(records[2]), int(records[3])
			r.Answer, r.Extra = records[blockHead:blockHead+answer], records[blockHead+answer:end]
			return true
		}
		records = records[end:]
	}
	return false
}

// addressRecords returns the A and AAAA records of a name.
func (z *Zone) addressRecords(addrs []netip.Addr) string {
	out := z.out[:0]
	for _, t := range [...]message.Type{message.A, message.AAAA} {
		start, n := len(out), 0
		out = append(out, 0, 0, 0, 0, 0, 0, 0, 0) // the head
		for _, a := range addrs {
			if a.Is4() == (t == message.A) && n < 255 {
				out = message.AppendAddr(out, message.Question, z.ttl, a)
				n++
			}
		}
		if n == 0 {
			out = out[:start]
			continue
		}
		binary.BigEndian.PutUint16(out[start:], uint16(t))
		out[start+2] = byte(n)
		binary.BigEndian.PutUint16(out[start+4:], uint16(len(out)-start-blockHead))
	}
	z.out = out
	return string(out)
}

// portRecords returns the SRV record of a port, with the addresses of the target, in z.out. The canonical
// name is the end of the port's name, from at on.
func (z *Zone) portRecords(s *service, p *vip.Port, at int) []byte {
	out := append(z.out[:0], 0, byte(message.SRV), 1, byte(len(s.vips)), 0, 0, 0, 0)
	out = message.AppendSRV(out, z.ttl, p.Port, s.node.name)
	answer := len(out)
	for _, a := range s.vips {
		out = message.AppendAddr(out, message.Question+at, z.ttl, a)
	}
	binary.BigEndian.PutUint16(out[4:], uint16(answer-blockHead))
	binary.BigEndian.PutUint16(out[6:], uint16(len(out)-answer))
	z.out = out
	return out
}

// maxPTR bounds the PTR records of one address. Resolvers use the first one, and an address that
// hundreds of services share would exceed a message.
const maxPTR = 4

// pointerRecords returns the PTR records of an address, in z.out: the oldest services that have it.
func (z *Zone) pointerRecords(owner *service, rivals []*service) []byte {
	rivals = rivals[:min(len(rivals), maxPTR-1)]
	out := append(z.out[:0], 0, byte(message.PTR), byte(1+len(rivals)), 0, 0, 0, 0, 0)
	out = message.AppendName(out, message.PTR, z.ttl, owner.node.name)
	for _, s := range rivals {
		out = message.AppendName(out, message.PTR, z.ttl, s.node.name)
	}
	binary.BigEndian.PutUint16(out[4:], uint16(len(out)-blockHead))
	z.out = out
	return out
}

// textRecord returns a TXT record.
func (z *Zone) textRecord(text string) string {
	out := append(z.out[:0], 0, byte(message.TXT), 1, 0, 0, 0, 0, 0)
	out = message.AppendTXT(out, z.ttl, text)
	binary.BigEndian.PutUint16(out[4:], uint16(len(out)-blockHead))
	return string(out)
}
