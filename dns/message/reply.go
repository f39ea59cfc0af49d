package message

import "encoding/binary"

// Reply is the content of a reply. Its sections are whole records in wire format. The zero Reply is
// NOERROR without records, from a server that is not authoritative.
type Reply struct {
	Code          Code
	Authoritative bool

	Answers int // number of records in Answer
	Answer  string
	Extras  int // number of records in Extra
	Extra   string

	// SOA, if not empty, adds the SOA record of the zone: without its owner, as SOARecord makes it.
	// The owner is the end of the question's name from Apex on. It is in the authority section, or
	// in the answer if SOAAnswer is set.
	SOA       string
	SOAAnswer bool
	Serial    uint32
	Apex      int
}

// soaNumbers is the length of the five numbers at the end of an SOA record, the first of which is
// the serial.
const soaNumbers = 20

// Append appends the reply to a query, and returns the extended slice. A reply that is longer than
// limit bytes loses its additional records, or else all of them, and is marked as truncated.
func (q *Query) Append(out []byte, r *Reply, limit int) []byte {
	start := len(out)
	size := headerSize + len(q.question) + len(r.Answer)
	if r.SOA != "" {
		size += 2 + len(r.SOA)
	}
	if q.edns {
		size += optSize
	}
	flags := flagQR | q.flags&(opcodeMask|flagRD|flagCD) | uint16(r.Code&0xf)
	if r.Authoritative {
		flags |= flagAA
	}
	truncated := size > limit
	if truncated {
		flags |= flagTC
	}
	var counts [4]uint16
	out = binary.BigEndian.AppendUint16(out, q.id)
	out = binary.BigEndian.AppendUint16(out, flags)
	out = append(out, 0, 0, 0, 0, 0, 0, 0, 0) // the counts
	if len(q.question) > 0 {
		counts[0] = 1
		out = append(out, q.question...)
	}
	if !truncated {
		out = append(out, r.Answer...)
		counts[1] = uint16(r.Answers)
		if r.SOA != "" {
			out = binary.BigEndian.AppendUint16(out, 0xc000|uint16(headerSize+r.Apex))
			out = append(out, r.SOA...)
			binary.BigEndian.PutUint32(out[len(out)-soaNumbers:], r.Serial)
			if r.SOAAnswer {
				counts[1]++
			} else {
				counts[2] = 1
			}
		}
		if size+len(r.Extra) <= limit {
			out = append(out, r.Extra...)
			counts[3] = uint16(r.Extras)
		}
	}
	if q.edns {
		counts[3]++
		var bits byte
		if q.do { // RFC 3225 requires the copy, also without signatures
			bits = flagDO >> 8
		}
		out = append(out, 0, 0, byte(OPT), MaxUDP>>8, MaxUDP&0xff, byte(r.Code>>4), 0, bits, 0, 0, 0)
	}
	for i, n := range counts {
		binary.BigEndian.PutUint16(out[start+4+2*i:], n)
	}
	return out
}

// Malformed returns the reply to a message that can't be read whole, or to one of which only the
// begin is known: FORMERR without a question. It appends nothing if no reply must be sent.
func Malformed(out, msg []byte) []byte {
	var q Query
	if len(msg) < headerSize || binary.BigEndian.Uint16(msg[2:])&flagQR != 0 {
		return out
	}
	q.id, q.flags = binary.BigEndian.Uint16(msg), binary.BigEndian.Uint16(msg[2:])
	return q.Append(out, &Reply{Code: FormErr}, MinUDP)
}
