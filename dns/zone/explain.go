package zone

import (
	"net/netip"

	"github.com/ironvip/ironvip/dns/message"
	"github.com/ironvip/ironvip/vip"
)

// Name is a name that a service has or claims.
type Name struct {
	Name    string // without a dot at the end
	Kind    Kind   // Canonical, Short or Hostname
	Service vip.ServiceKey
	VIPs    []netip.Addr // of Service; it is answered with them only if Lost is false
	Since   vip.Instant  // the age of the claim; zero: the service has no lease
	Lost    bool         // the service doesn't have the name; see Winner
	// Winner and Undecided are those of a Conflict.
	Winner    vip.ServiceKey
	Undecided bool
}

// NamesOf returns the names that a service has and claims, without those of its ports and addresses:
// the canonical one first. It is empty for an unknown service.
func (z *Zone) NamesOf(k vip.ServiceKey) []Name {
	read := z.reader()
	z.mu.RLock()
	defer z.mu.RUnlock()
	s := read.find(k)
	if s == nil {
		return nil
	}
	var out []Name
	c := s.content()
	read.eachName(&c, func(kind Kind, _ int) {
		if kind > Hostname {
			return
		}
		name := Name{Name: message.NameString(read.buf), Kind: kind, Service: k, VIPs: c.VIPs, Since: c.Since}
		for _, o := range out {
			if o.Name == name.Name {
				return // a hostname that is the short name
			}
		}
		n := z.names[string(read.buf)]
		winner, held := z.heldFor(n)
		switch {
		case kind != Canonical && read.reserved(read.buf):
			name.Lost = true
		case held:
			name.Lost, name.Winner, name.Undecided = true, winner, true
		case n != nil && n.owner != nil && n.owner != s:
			name.Lost, name.Winner = true, n.owner.key()
		}
		out = append(out, name)
	})
	return out
}

// Hostnames returns the hostnames that a known service claims, and whether the service is known.
func (z *Zone) Hostnames(k vip.ServiceKey) (hostnames []string, known bool) {
	read := z.reader()
	z.mu.RLock()
	defer z.mu.RUnlock()
	s := read.find(k)
	if s == nil {
		return nil, false
	}
	return s.content().Hostnames, true
}

// reader returns a view of the zone with its own scratch space, for methods beside the writer. Use it
// under mu.
func (z *Zone) reader() *Zone {
	return &Zone{domain: z.domain, domainText: z.domainText, services: z.services, shortNames: z.shortNames, pools: z.pools, names: z.names}
}

// Explanation is the answer to a question, and how it came about.
type Explanation struct {
	Name          string // as in the question, in lower case and without a dot at the end
	Type          message.Type
	Code          message.Code
	Authoritative bool
	Answer        []message.Record
	Authority     []message.Record
	Extra         []message.Record
	Why           Why

	Kind    Kind
	Service vip.ServiceKey   // that has the name; zero: none
	Rivals  []vip.ServiceKey // that claim it and don't have it, oldest first
}

// Explain answers a question as Answer does, by TCP, and says why. The name has no escapes. The error
// says what is wrong with it.
func (z *Zone) Explain(name string, t message.Type) (Explanation, error) {
	wire, err := message.PackName(nil, name)
	if err != nil {
		return Explanation{}, err
	}
	reply, _ := z.Answer(nil, message.NewQuery(0, wire, t), true)
	d, err := message.Decode(reply)
	if err != nil {
		return Explanation{}, err
	}
	e := Explanation{Name: message.NameString(wire), Type: t, Code: d.Code, Authoritative: d.Authoritative,
		Answer: d.Answer, Authority: d.Authority, Extra: d.Extra}
	var r message.Reply
	e.Why = z.lookup(wire, t, &r)
	z.mu.RLock()
	defer z.mu.RUnlock()
	if n := z.names[string(wire)]; n != nil {
		e.Kind = n.kind
		switch _, held := z.heldFor(n); {
		case n.owner == nil:
		case held:
			e.Rivals = append(e.Rivals, n.owner.key())
		default:
			e.Service = n.owner.key()
		}
		for _, s := range z.rivals[n] {
			e.Rivals = append(e.Rivals, s.key())
		}
	}
	return e, nil
}
