package zone

import (
	"slices"
	"strings"

	"github.com/miekg/dns"

	"github.com/ironvip/ironvip/vip"
)

// Kind says what a name is.
type Kind uint8

// The kinds. Between is a name that has no records and exists because there are names below it.
const (
	Between Kind = iota
	Reserved
	Canonical
	Short
	Hostname
	Port
	Address
)

var kinds = [...]string{"between", "reserved", "canonical", "short", "hostname", "port", "address"}

// String returns "canonical", "short" or "hostname", for example.
func (k Kind) String() string { return kinds[k] }

// maxName is the length of the longest name, in characters without a dot at the end.
const maxName = 253

// claim is a name of a service.
type claim struct {
	name string
	kind Kind
}

// claims returns the names of a service, the canonical one first.
func (z *Zone) claims(s *Service) []claim {
	out := []claim{{z.canonicalName(s.Key), Canonical}}
	short := z.shortName(s.Key)
	if short != "" {
		out = append(out, claim{short, Short})
	}
	for _, h := range s.Hostnames {
		if h != short && strings.Contains(h, ".") {
			out = append(out, claim{h, Hostname})
		}
	}
	for i := range s.Ports {
		if p := &s.Ports[i]; named(p) {
			if name := z.portName(s.Key, p); len(name) <= maxName {
				out = append(out, claim{name, Port})
			}
		}
	}
	for _, a := range s.VIPs {
		if z.inPools(a) {
			name, _ := dns.ReverseAddr(a.String()) // no address is invalid
			out = append(out, claim{canonical(name), Address})
		}
	}
	return out
}

func (z *Zone) canonicalName(k vip.ServiceKey) string {
	return k.Name + "." + k.Namespace + "." + z.services
}

// shortName returns the short name of a service, "" if it has none.
func (z *Zone) shortName(k vip.ServiceKey) string {
	if !z.shortNames || k.Namespace != vip.DefaultNamespace {
		return ""
	}
	return k.Name + "." + z.domain
}

func (z *Zone) portName(k vip.ServiceKey, p *vip.Port) string {
	return "_" + p.Name + "._" + p.Protocol.String() + "." + z.canonicalName(k)
}

// isAlias reports whether a name is a hostname or the short name of a service.
func (z *Zone) isAlias(s *Service, name string) bool {
	return slices.Contains(s.Hostnames, name) || name != "" && name == z.shortName(s.Key)
}

// named reports whether a port has an SRV record: one port with a name of its own, not "80/tcp".
// The label of the name has one more character.
func named(p *vip.Port) bool {
	if p.LastPort != 0 || p.Name == "" || len(p.Name) > 62 {
		return false
	}
	for i := range len(p.Name) {
		c := p.Name[i]
		if c != '-' && (c < 'a' || c > 'z') && (c < '0' || c > '9') {
			return false
		}
	}
	return true
}
