package message

import (
	"encoding/binary"
	"errors"
	"fmt"
	"net/netip"
	"strconv"
	"strings"
)

// Record is a decoded record.
type Record struct {
	Name string // without a dot at the end
	Type Type
	TTL  uint32 // seconds
	Data string // as in a zone file, with names without a dot at the end
}

// String returns the record as in a zone file.
func (r Record) String() string {
	return fmt.Sprintf("%s %d IN %s %s", r.Name, r.TTL, r.Type, r.Data)
}

// Decoded is a decoded reply.
type Decoded struct {
	ID                       uint16
	Code                     Code
	Authoritative, Truncated bool
	Answer, Authority, Extra []Record // Extra is without OPT
}

var errDecode = errors.New("malformed reply")

// NewQuery returns a query with EDNS for a name in wire format, as Decode's opposite direction
// needs it.
func NewQuery(id uint16, name []byte, t Type) []byte {
	out := binary.BigEndian.AppendUint16(nil, id)
	out = append(out, 0, 0, 0, 1, 0, 0, 0, 0, 0, 1)
	out = append(out, name...)
	out = binary.BigEndian.AppendUint16(out, uint16(t))
	out = append(out, 0, classIN)
	return append(out, 0, 0, byte(OPT), MaxUDP>>8, MaxUDP&0xff, 0, 0, 0, 0, 0, 0)
}

// Decode reads a reply with any number of questions.
func Decode(msg []byte) (*Decoded, error) {
	if len(msg) < headerSize || binary.BigEndian.Uint16(msg[2:])&flagQR == 0 {
		return nil, errDecode
	}
	flags := binary.BigEndian.Uint16(msg[2:])
	d := &Decoded{ID: binary.BigEndian.Uint16(msg), Code: Code(flags & 0xf), Authoritative: flags&flagAA != 0, Truncated: flags&flagTC != 0}
	at := headerSize
	for range binary.BigEndian.Uint16(msg[4:]) {
		if at = skipName(msg, at); at < 0 || at+4 > len(msg) {
			return nil, errDecode
		}
		at += 4
	}
	for i, section := range []*[]Record{&d.Answer, &d.Authority, &d.Extra} {
		for range binary.BigEndian.Uint16(msg[6+2*i:]) {
			r, end, err := decodeRecord(msg, at)
			if err != nil {
				return nil, err
			}
			if r.Type == OPT {
				d.Code |= Code(msg[end.head+4]) << 4
			} else {
				*section = append(*section, r)
			}
			at = end.data
		}
	}
	return d, nil
}

// ends are where the owner of a record ends, and where its data does.
type ends struct{ head, data int }

func decodeRecord(msg []byte, at int) (Record, ends, error) {
	owner, at, err := expand(msg, at)
	if err != nil || len(msg) < at+10 {
		return Record{}, ends{}, errDecode
	}
	r := Record{Name: NameString(owner), Type: Type(binary.BigEndian.Uint16(msg[at:])), TTL: binary.BigEndian.Uint32(msg[at+4:])}
	start := at + 10
	end := start + int(binary.BigEndian.Uint16(msg[at+8:]))
	if end > len(msg) {
		return Record{}, ends{}, errDecode
	}
	r.Data, err = decodeData(msg[:end], start, r.Type)
	return r, ends{at, end}, err
}

// decodeData returns the data of a record, from start to the end of msg, as text.
func decodeData(msg []byte, start int, t Type) (string, error) {
	data := msg[start:]
	switch {
	case t == A && len(data) == 4, t == AAAA && len(data) == 16:
		addr, _ := netip.AddrFromSlice(data)
		return addr.String(), nil
	case t == PTR || t == NS:
		name, end, err := expand(msg, start)
		if err != nil || end != len(msg) {
			return "", errDecode
		}
		return NameString(name), nil
	case t == SRV && len(data) > 6:
		name, end, err := expand(msg, start+6)
		if err != nil || end != len(msg) {
			return "", errDecode
		}
		return fmt.Sprintf("%d %d %d %s", binary.BigEndian.Uint16(data), binary.BigEndian.Uint16(data[2:]), binary.BigEndian.Uint16(data[4:]), NameString(name)), nil
	case t == SOA:
		server, at, err := expand(msg, start)
		if err != nil {
			return "", err
		}
		mailbox, at, err := expand(msg, at)
		if err != nil || len(msg)-at != soaNumbers {
			return "", errDecode
		}
		text := NameString(server) + " " + NameString(mailbox)
		for ; at < len(msg); at += 4 {
			text += " " + strconv.FormatUint(uint64(binary.BigEndian.Uint32(msg[at:])), 10)
		}
		return text, nil
	case t == TXT && len(data) > 0:
		var parts []string
		for len(data) > 0 {
			n := int(data[0])
			if len(data) < 1+n {
				return "", errDecode
			}
			parts = append(parts, strconv.Quote(string(data[1:1+n])))
			data = data[1+n:]
		}
		return strings.Join(parts, " "), nil
	case t == A, t == AAAA, t == SRV, t == TXT:
		return "", errDecode
	}
	return fmt.Sprintf(`\# %d %x`, len(data), data), nil
}

// expand returns the name at a place with its pointers followed, and where it ends. Each pointer must
// point backward, so the search ends.
func expand(msg []byte, at int) (name []byte, end int, err error) {
	end, lowest := -1, at
	for at < len(msg) {
		n := int(msg[at])
		switch {
		case n >= 0xc0:
			if at+1 >= len(msg) {
				return nil, 0, errDecode
			}
			if end < 0 {
				end = at + 2
			}
			if at = n&0x3f<<8 | int(msg[at+1]); at >= lowest {
				return nil, 0, errDecode
			}
			lowest = at
		case n > 63 || at+1+n > len(msg) || len(name)+1+n > MaxName:
			return nil, 0, errDecode
		default:
			name = append(name, msg[at:at+1+n]...)
			at += 1 + n
			if n == 0 {
				if end < 0 {
					end = at
				}
				return name, end, nil
			}
		}
	}
	return nil, 0, errDecode
}
