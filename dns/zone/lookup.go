package zone

import (
	"github.com/ironvip/ironvip/dns/message"
)

// Why says how an answer came about.
type Why uint8

// The reasons, from the best answer to the worst.
const (
	Found       Why = iota // the records
	NoRecord               // the name exists and has no record of the type
	NoVIP                  // the service has no address of the type yet
	NoName                 // nothing has the name
	NotSynced              // nothing known has the name, and not every source has listed its services
	NotDecided             // the service that had the contested name doesn't claim it, and not every source has listed its services
	OtherZone              // the name is in no zone of ironvip
	NotAnswered            // a type that is not answered: a transfer, for example
)

var whys = [...]string{
	Found:       "found",
	NoRecord:    "the name exists and has no record of this type",
	NoVIP:       "the service has no address of this type",
	NoName:      "no service has this name",
	NotSynced:   "the name is unknown, and not every source has listed its services yet",
	NotDecided:  "several services wanted this name before the restart, and not every source has listed its services yet",
	OtherZone:   "the name is in no zone of ironvip",
	NotAnswered: "queries of this type are not supported",
}

// String returns the reason as a sentence without its dot.
func (w Why) String() string { return whys[w] }

// lookup finds the answer to a question. The name is in wire format and lower case. It allocates
// nothing.
func (z *Zone) lookup(name []byte, t message.Type, r *message.Reply) Why {
	if t.Meta() {
		r.Code = message.NotImp
		return NotAnswered
	}
	z.mu.RLock()
	n, synced := z.names[string(name)], z.synced
	r.Serial = z.serial
	if _, held := z.heldFor(n); held {
		z.mu.RUnlock()
		r.Code = message.ServFail
		return NotDecided
	}
	var apex int
	var exists, own bool // own: an address answer may be missing because there is no VIP
	known := true        // the name is in a zone
	if n != nil && !n.aboveHostnames() {
		apex, exists, own = int(n.apex), true, n.owner != nil && n.kind != Port && n.kind != Address
		r.Authoritative = findBlock(n.records, t, r)
	} else {
		apex, exists, known = z.unknown(name)
		exists = exists || known && n != nil
	}
	z.mu.RUnlock()
	switch {
	case r.Authoritative:
		return Found
	case !synced && !exists:
		r.Code = message.ServFail
		return NotSynced
	case !known:
		r.Code = message.Refused
		return OtherZone
	}
	r.Authoritative = true
	r.SOA, r.Apex = z.soa, apex
	switch {
	case !exists:
		r.Code = message.NXDomain
		return NoName
	case apex > 0:
	case t == message.SOA:
		r.SOAAnswer = true
		return Found
	case t == message.NS || t == message.ANY && !own:
		r.SOA, r.Answers, r.Answer = "", 1, z.ns
		if n != nil && len(name) == len(z.domain) && n.name == z.domain {
			r.Extras, r.Extra = z.nsAddrNum, z.nsAddrs
		}
		return Found
	}
	if own && (t == message.A || t == message.AAAA) {
		return NoVIP
	}
	return NoRecord
}

// unknown says of a name that no service has in which zone it is, and whether it exists. It searches a
// name of another zone once for each label above it. The last label is no hostname. The caller holds mu.
func (z *Zone) unknown(name []byte) (apex int, exists, known bool) {
	if at, ok := z.inside(name); ok {
		return at, false, true
	}
	if at, exists, ok := z.reverse(name); ok {
		return at, exists, true
	}
	at := 1 + int(name[0])
	for at < len(name) {
		above := at + 1 + int(name[at])
		if above >= len(name)-1 {
			break
		}
		if n := z.names[string(name[at:])]; n != nil && n.owner != nil {
			return at, false, true // below a hostname, which is a zone of one name
		}
		at = above
	}
	return 0, false, false
}

// inside returns where the domain begins in a name.
func (z *Zone) inside(name []byte) (apex int, ok bool) {
	return cutSuffix(name, z.domain)
}

// cutSuffix returns where a suffix of whole labels begins in a name.
func cutSuffix(name []byte, suffix string) (at int, ok bool) {
	end := len(name) - len(suffix)
	if end < 0 || string(name[end:]) != suffix {
		return 0, false
	}
	for at < end {
		at += 1 + int(name[at])
	}
	return at, at == end
}
