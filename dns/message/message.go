// Package message reads DNS queries and appends replies, for a server that is authoritative and
// never recurses.
//
// Its inputs are the bytes of a query, and a Reply whose records are serialized already. Its output
// is the bytes of the reply. It does no I/O, keeps no reference to its arguments after a call, and
// allocates nothing: an answer costs one copy of its records. Decode is its opposite, for tests and
// for people who read replies.
//
// The sections of RFC 1035, RFC 6891 (EDNS) and RFC 9619 (one question) define what is well-formed.
package message

import "strconv"

// Sizes in bytes.
const (
	MaxName = 255  // of a name, with the lengths of its labels
	MinUDP  = 512  // of a reply to a client without EDNS
	MaxUDP  = 1232 // of any reply by UDP: it fits a packet of IPv6's smallest MTU, so no fragment is lost
	MaxTCP  = 65535

	headerSize = 12
	optSize    = 11
)

// Type is the type of a record or of a question.
type Type uint16

// The types that the server has records of, or treats in a special way.
const (
	A     Type = 1
	NS    Type = 2
	SOA   Type = 6
	PTR   Type = 12
	TXT   Type = 16
	AAAA  Type = 28
	SRV   Type = 33
	OPT   Type = 41
	HTTPS Type = 65
	ANY   Type = 255
)

var typeNames = map[Type]string{A: "A", NS: "NS", SOA: "SOA", PTR: "PTR", TXT: "TXT", AAAA: "AAAA", SRV: "SRV", OPT: "OPT", HTTPS: "HTTPS", ANY: "ANY",
	5: "CNAME", 15: "MX", 64: "SVCB", 251: "IXFR", 252: "AXFR"}

// String returns "A", or "TYPE99" (RFC 3597) for a type without a name here.
func (t Type) String() string {
	if name := typeNames[t]; name != "" {
		return name
	}
	return "TYPE" + strconv.Itoa(int(t))
}

// ParseType reads what String writes, in upper case.
func ParseType(s string) (Type, bool) {
	for t, name := range typeNames {
		if name == s {
			return t, true
		}
	}
	if len(s) > 4 && s[:4] == "TYPE" {
		n, err := strconv.ParseUint(s[4:], 10, 16)
		return Type(n), err == nil
	}
	return 0, false
}

// Meta reports whether the type asks for something other than records of that type: a transfer, for
// example. ANY is none of these.
func (t Type) Meta() bool { return t >= 128 && t < ANY || t == OPT || t == 0 }

// Code is the response code of a reply.
type Code uint8

// The codes that the server sends.
const (
	NoError  Code = 0
	FormErr  Code = 1
	ServFail Code = 2
	NXDomain Code = 3
	NotImp   Code = 4
	Refused  Code = 5
	BadVers  Code = 16 // an EDNS version above 0; its upper bits are in the OPT record
)

// Codes are all codes that the server sends, in ascending order.
var Codes = []Code{NoError, FormErr, ServFail, NXDomain, NotImp, Refused, BadVers}

// String returns the code as dig prints it: "NOERROR", "NXDOMAIN".
func (c Code) String() string {
	switch c {
	case NoError:
		return "NOERROR"
	case FormErr:
		return "FORMERR"
	case ServFail:
		return "SERVFAIL"
	case NXDomain:
		return "NXDOMAIN"
	case NotImp:
		return "NOTIMP"
	case Refused:
		return "REFUSED"
	case BadVers:
		return "BADVERS"
	}
	return "RCODE" + strconv.Itoa(int(c))
}

// Classes.
const (
	classIN  = 1
	classAny = 255
)
