package zone

import "github.com/miekg/dns"

// Why says how an answer came about.
type Why uint8

// The reasons, from the best answer to the worst.
const (
	Found       Why = iota // the records
	NoRecord               // the name exists and has no record of the type
	NoVIP                  // the service has no address of the type yet
	NoName                 // nothing has the name
	NotSynced              // nothing known has the name, and not every source has listed its services
	NotAssigned            // the service waits for its address
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
	NotAssigned: "the service waits for its address: see its problems",
	NotDecided:  "several services wanted this name before the restart, and not every source has listed its services yet",
	OtherZone:   "the name is in no zone of ironvip",
	NotAnswered: "queries of this type are not supported",
}

// String returns the reason as a sentence without its dot.
func (w Why) String() string { return whys[w] }

// lookup answers the question of a reply, which is of class IN.
func (z *Zone) lookup(r *dns.Msg) Why {
	owner, t := r.Question[0].Name, r.Question[0].Qtype
	if meta(t) {
		r.Rcode = dns.RcodeNotImplemented
		return NotAnswered
	}
	name := canonical(owner)
	z.mu.RLock()
	defer z.mu.RUnlock()
	n := z.names[name]
	if _, held := z.heldFor(n); held {
		r.Rcode = dns.RcodeServerFailure
		return NotDecided
	}
	apex, exists := z.apexOf(name)
	exists = exists || apex != "" && n != nil
	switch {
	case !z.synced && !exists:
		r.Rcode = dns.RcodeServerFailure
		return NotSynced
	case apex == "":
		r.Rcode = dns.RcodeRefused
		return OtherZone
	}
	r.Authoritative = true
	if !exists {
		r.Rcode = dns.RcodeNameError
		r.Ns = append(r.Ns, z.soa(apex))
		return NoName
	}
	if n != nil && z.addRecords(n, owner, t, r) {
		return Found
	}
	// An address may be missing because there is no VIP.
	own := n != nil && n.owner != nil && n.kind != Port && n.kind != Address
	switch {
	case name != apex:
	case t == dns.TypeSOA:
		r.Answer = append(r.Answer, z.soa(apex))
		return Found
	case t == dns.TypeNS || t == dns.TypeANY && !own:
		r.Answer = append(r.Answer, &dns.NS{Hdr: z.header(owner, dns.TypeNS), Ns: dns.Fqdn(z.server)})
		if name == z.domain {
			r.Extra = append(r.Extra, z.addresses(dns.Fqdn(z.server), z.servers)...)
		}
		return Found
	}
	own = own && (t == dns.TypeA || t == dns.TypeAAAA)
	if own && n.owner.Waiting {
		r.Authoritative, r.Rcode = false, dns.RcodeServerFailure
		return NotAssigned
	}
	r.Ns = append(r.Ns, z.soa(apex))
	if own {
		return NoVIP
	}
	return NoRecord
}

// addRecords adds the records of a type to a reply, and reports whether there are any. ANY gets one record (RFC
// 8482). An SRV record brings the addresses of its target.
func (z *Zone) addRecords(n *node, owner string, t uint16, r *dns.Msg) bool {
	for _, rr := range z.records(n, owner) {
		if rr.Header().Rrtype == t || t == dns.TypeANY && len(r.Answer) == 0 {
			r.Answer = append(r.Answer, rr)
		}
	}
	if len(r.Answer) > 0 && n.kind == Port {
		r.Extra = append(r.Extra, z.addresses(r.Answer[0].(*dns.SRV).Target, n.owner.VIPs)...)
	}
	return len(r.Answer) > 0
}

// meta reports whether a type asks for something other than records of that type: a transfer, for example.
// ANY is none of these.
func meta(t uint16) bool { return t >= 128 && t < dns.TypeANY || t == dns.TypeOPT || t == dns.TypeNone }

// apexOf returns the zone of a name, "" for none, and whether the name exists there without being stored. It
// searches a name of another zone once for each label above it. The caller holds mu.
func (z *Zone) apexOf(name string) (apex string, exists bool) {
	if dns.IsSubDomain(z.domain, name) {
		return z.domain, false
	}
	if apex, exists := z.reverse(name); apex != "" {
		return apex, exists
	}
	for at, end := 0, false; !end; at, end = dns.NextLabel(name, at) {
		if n := z.names[name[at:]]; n != nil && n.owner != nil {
			return name[at:], false // a hostname is a zone of one name
		}
	}
	return "", false
}
