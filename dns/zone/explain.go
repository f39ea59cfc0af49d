package zone

import (
	"fmt"
	"net/netip"

	"github.com/miekg/dns"

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
	z.mu.RLock()
	defer z.mu.RUnlock()
	s := z.find(k)
	if s == nil {
		return nil
	}
	var out []Name
	for _, c := range z.claims(s) {
		if c.kind > Hostname {
			break
		}
		name := Name{Name: c.name, Kind: c.kind, Service: k, VIPs: s.VIPs, Since: s.Since}
		n := z.names[c.name]
		winner, held := z.heldFor(n)
		switch {
		case c.kind != Canonical && z.reserved(c.name):
			name.Lost = true
		case held:
			name.Lost, name.Winner, name.Undecided = true, winner, true
		case n != nil && n.owner != nil && n.owner != s:
			name.Lost, name.Winner = true, n.owner.Key
		}
		out = append(out, name)
	}
	return out
}

// Hostnames returns the hostnames that a known service claims, and whether the service is known.
func (z *Zone) Hostnames(k vip.ServiceKey) (hostnames []string, known bool) {
	z.mu.RLock()
	defer z.mu.RUnlock()
	s := z.find(k)
	if s == nil {
		return nil, false
	}
	return s.Hostnames, true
}

// Explanation is the answer to a question, and how it came about.
type Explanation struct {
	Name          string // as in the question, in lower case and without a dot at the end
	Type          uint16
	Code          int
	Authoritative bool
	Answer        []dns.RR
	Authority     []dns.RR
	Extra         []dns.RR
	Why           Why

	Kind    Kind
	Service vip.ServiceKey   // that has the name; zero: none
	Rivals  []vip.ServiceKey // that claim it and don't have it, oldest first
}

// Explain answers a question as Answer does, by TCP, and says why. The error says what is wrong with the
// name.
func (z *Zone) Explain(name string, t uint16) (Explanation, error) {
	if _, ok := dns.IsDomainName(name); !ok || len(canonical(name)) > maxName {
		return Explanation{}, fmt.Errorf("%q is no name: labels have 1 to 63 characters, and a name up to %d", name, maxName)
	}
	var r dns.Msg
	r.SetQuestion(dns.CanonicalName(name), t)
	e := Explanation{Name: canonical(name), Type: t, Why: z.lookup(&r)}
	e.Code, e.Authoritative, e.Answer, e.Authority, e.Extra = r.Rcode, r.Authoritative, r.Answer, r.Ns, r.Extra
	z.mu.RLock()
	defer z.mu.RUnlock()
	if n := z.names[e.Name]; n != nil {
		e.Kind = n.kind
		switch _, held := z.heldFor(n); {
		case n.owner == nil:
		case held:
			e.Rivals = append(e.Rivals, n.owner.Key)
		default:
			e.Service = n.owner.Key
		}
		for _, s := range z.rivals[n] {
			e.Rivals = append(e.Rivals, s.Key)
		}
	}
	return e, nil
}
