package zone

import (
	"net/netip"

	"github.com/miekg/dns"
)

// maxPTR bounds the PTR records of one address. Resolvers use the first one, and an address that
// hundreds of services share would exceed a message.
const maxPTR = 4

// records returns the records of a name. Owner is the name as the client wrote it. The caller holds mu.
func (z *Zone) records(n *node, owner string) []dns.RR {
	switch n.kind {
	case Canonical, Short, Hostname:
		return z.addresses(owner, n.owner.VIPs)
	case Port:
		return z.portRecords(n, owner)
	case Address:
		return z.pointers(n, owner)
	case Reserved:
		switch n.name {
		case z.server:
			return z.addresses(owner, z.servers)
		case z.version:
			return []dns.RR{&dns.TXT{Hdr: z.header(owner, dns.TypeTXT), Txt: []string{Version}}}
		}
	}
	return nil
}

func (z *Zone) header(owner string, t uint16) dns.RR_Header {
	return dns.RR_Header{Name: owner, Rrtype: t, Class: dns.ClassINET, Ttl: z.ttl}
}

// addresses returns the A and AAAA records of addresses.
func (z *Zone) addresses(owner string, addrs []netip.Addr) []dns.RR {
	var out []dns.RR
	for _, a := range addrs {
		if a.Is4() {
			out = append(out, &dns.A{Hdr: z.header(owner, dns.TypeA), A: a.AsSlice()})
		} else {
			out = append(out, &dns.AAAA{Hdr: z.header(owner, dns.TypeAAAA), AAAA: a.AsSlice()})
		}
	}
	return out
}

// portRecords returns the SRV record of a port. Priority and weight are those of Kubernetes' servers: a
// service has one target.
func (z *Zone) portRecords(n *node, owner string) []dns.RR {
	s := n.owner
	for i := range s.Ports {
		if p := &s.Ports[i]; named(p) && z.portName(s.Key, p) == n.name {
			return []dns.RR{&dns.SRV{Hdr: z.header(owner, dns.TypeSRV), Weight: 100, Port: p.Port, Target: dns.Fqdn(z.canonicalName(s.Key))}}
		}
	}
	return nil
}

// pointers returns the PTR records of an address: the oldest services that have it.
func (z *Zone) pointers(n *node, owner string) []dns.RR {
	out := []dns.RR{z.pointer(n.owner, owner)}
	rivals := z.rivals[n]
	for _, s := range rivals[:min(len(rivals), maxPTR-1)] {
		out = append(out, z.pointer(s, owner))
	}
	return out
}

func (z *Zone) pointer(s *Service, owner string) dns.RR {
	return &dns.PTR{Hdr: z.header(owner, dns.TypePTR), Ptr: dns.Fqdn(z.canonicalName(s.Key))}
}

// soa returns the SOA record of a zone. The refresh, retry and expire times are for secondaries, which can't
// exist without transfers. RFC 2308 makes the TTL and the minimum the time for which a negative answer is
// cached.
func (z *Zone) soa(apex string) dns.RR {
	header := z.header(dns.Fqdn(apex), dns.TypeSOA)
	header.Ttl = z.negativeTTL
	return &dns.SOA{Hdr: header, Ns: dns.Fqdn(z.server), Mbox: "hostmaster." + dns.Fqdn(z.domain), Serial: z.serial,
		Refresh: 7200, Retry: 1800, Expire: 86400, Minttl: z.negativeTTL}
}
