package zone

import (
	"strings"

	"github.com/miekg/dns"
)

// MaxUDP is the longest reply by UDP, in bytes. It fits a packet of IPv6's smallest MTU, so no fragment is
// lost.
const MaxUDP = 1232

// headerSize is the length of a message's header, in bytes. No reply can be made to less.
const headerSize = 12

// Outcome is what a query asked and how it was answered, for counters.
type Outcome struct {
	Type uint16 // 0 if the question was not read
	Code int    // of the reply
}

// Answer returns the reply to a query, or nothing if no reply must be sent: the message is too short, or is
// a reply itself, so that two servers never answer each other.
func (z *Zone) Answer(query []byte, tcp bool) (reply []byte, o Outcome) {
	var q, r dns.Msg
	malformed := q.Unpack(query) != nil
	if len(query) < headerSize || q.Response {
		return nil, Outcome{}
	}
	r.SetReply(&q)
	limit := dns.MinMsgSize
	opt := q.IsEdns0()
	if opt != nil {
		limit = int(min(max(opt.UDPSize(), dns.MinMsgSize), MaxUDP))
		r.SetEdns0(MaxUDP, opt.Do()) // RFC 3225 requires the copy of DO, also without signatures
	}
	if tcp {
		limit = dns.MaxMsgSize
	}
	switch {
	case malformed:
		r.Rcode = dns.RcodeFormatError
	case q.Opcode != dns.OpcodeQuery:
		r.Rcode = dns.RcodeNotImplemented
	case len(q.Question) != 1: // RFC 9619
		r.Rcode = dns.RcodeFormatError
	case opt != nil && opt.Version() > 0:
		r.Rcode = dns.RcodeBadVers
	case q.Question[0].Qclass != dns.ClassINET && q.Question[0].Qclass != dns.ClassANY:
		r.Rcode = dns.RcodeRefused
	default:
		z.lookup(&r)
	}
	if len(q.Question) == 1 {
		o.Type = q.Question[0].Qtype
	}
	r.Truncate(limit)
	reply, err := r.Pack()
	if err != nil { // the question can't be repeated
		return nil, Outcome{}
	}
	o.Code = r.Rcode
	return reply, o
}

// canonical returns a name in lower case and without a dot at the end, as the zone stores names.
func canonical(name string) string {
	return strings.TrimSuffix(dns.CanonicalName(name), ".")
}
