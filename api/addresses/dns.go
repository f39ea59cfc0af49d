package addresses

import (
	"cmp"
	"context"
	"fmt"
	"net/netip"
	"slices"
	"strings"

	"github.com/miekg/dns"

	"github.com/ironvip/ironvip/api/request"

	"github.com/ironvip/ironvip/api/server"
	v1 "github.com/ironvip/ironvip/api/v1"
	"github.com/ironvip/ironvip/dns/zone"
	"github.com/ironvip/ironvip/internal/access"
	"github.com/ironvip/ironvip/vip"
)

func (h *handlers) dnsRoutes() {
	server.HandleJSON(h.http, server.Route{Path: v1.PathDNSNames, Need: access.View, ID: "list-dns-names", Tag: "dns", Summary: "List the DNS names of services",
		Description: "The names that services have or want. Of several services that want one name, one has it, and the others have a winner."}, h.listDNSNames)
	server.HandleJSON(h.http, server.Route{Path: v1.PathDNSQuery, Need: access.View, ID: "query-dns", Tag: "dns", Summary: "Answer a DNS query",
		Description: "The answer that this host gives, with the reason."}, h.queryDNS)
}

// nameOrder orders names by name, then by the service that wants it.
var nameOrder = request.Order[zone.ConflictKey]{List: "names", Compare: func(a, b zone.ConflictKey) int {
	return cmp.Or(cmp.Compare(a.Name, b.Name), a.Service.Compare(b.Service))
}}

type listDNSNamesInput struct {
	request.Paging
	Service string `query:"service" doc:"names of this service only: \"web\" or \"shop/web\""`
	State   string `query:"state" enum:"answered,conflict,undecided" doc:"names with this state only"`
}

// listDNSNames costs O(services) per page, or O(names of a service).
func (h *handlers) listDNSNames(_ context.Context, in *listDNSNamesInput) (out v1.DNSNameList, err error) {
	names := h.Tables.Naming.Names()
	if in.Service != "" {
		key, err := request.ServiceParameter(in.Service)
		if err != nil {
			return out, err
		}
		names = slices.Values(h.Tables.Naming.NamesOf(key))
	}
	domain, listen := h.Zone()
	out.Domain, out.Listen, out.Revision = domain, request.Convert(listen, netip.AddrPort.String), h.Tables.Revisions.Revision()
	var keys []zone.ConflictKey
	for n := range names {
		if in.State == "" || in.State == NameState(&n) {
			keys = append(keys, zone.ConflictKey{Name: n.Name, Service: n.Service})
		}
	}
	out.Items, out.Next, err = request.Page(in.Paging, nameOrder, slices.Values(keys), h.dnsName)
	return out, err
}

// dnsName returns a name that a service has or wants.
func (h *handlers) dnsName(k zone.ConflictKey) (v1.DNSName, bool) {
	names := h.Tables.Naming.NamesOf(k.Service)
	i := slices.IndexFunc(names, func(n zone.Name) bool { return n.Name == k.Name })
	if i < 0 {
		return v1.DNSName{}, false
	}
	n := &names[i]
	out := v1.DNSName{Name: n.Name, Kind: n.Kind.String(), Service: n.Service.String(), Addresses: append([]netip.Addr{}, n.VIPs...),
		State: NameState(n), Since: request.When(n.Since.Time())}
	if n.Winner != (vip.ServiceKey{}) {
		out.Winner = n.Winner.String()
	}
	return out, true
}

// NameState returns the state of a name that a service has or wants.
func NameState(n *zone.Name) string {
	switch {
	case n.Lost && n.Undecided:
		return v1.NameUndecided
	case n.Lost:
		return v1.NameConflict
	}
	return v1.NameAnswered
}

type queryDNSInput struct {
	Name string `query:"name" doc:"required: a name, or an address for its PTR record"`
	Type string `query:"type" doc:"\"A\" (the default), \"AAAA\", \"SRV\", \"PTR\", \"TXT\", \"SOA\", \"NS\", \"ANY\", or another type"`
}

func (h *handlers) queryDNS(_ context.Context, in *queryDNSInput) (v1.DNSAnswer, error) {
	name, kind := in.Name, dns.TypeA
	if name == "" {
		return v1.DNSAnswer{}, badName("a name is needed")
	}
	if addr, err := netip.ParseAddr(name); err == nil && addr.Zone() == "" {
		name, _ = dns.ReverseAddr(addr.Unmap().String()) // it is valid
		kind = dns.TypePTR
	}
	if in.Type != "" {
		var ok bool
		if kind, ok = dns.StringToType[strings.ToUpper(in.Type)]; !ok {
			return v1.DNSAnswer{}, server.BadRequest(fmt.Sprintf("%q is not a type of DNS records", in.Type), "use A, AAAA, SRV, PTR, TXT, SOA, NS or ANY",
				vip.Problem{Code: vip.CodeInvalid, Field: "query.type", Message: "is not a type"})
		}
	}
	e, err := h.Tables.Naming.Explain(name, kind)
	if err != nil {
		return v1.DNSAnswer{}, badName(err.Error())
	}
	out := v1.DNSAnswer{Name: e.Name, Type: dns.Type(e.Type).String(), RCode: dns.RcodeToString[e.Code], Answer: records(e.Answer), Authority: records(e.Authority), Additional: records(e.Extra), Why: why(&e)}
	if _, listen := h.Zone(); len(listen) == 0 {
		out.Why += "; dns.listen is empty, so no client gets this answer"
	}
	if e.Service != (vip.ServiceKey{}) {
		out.Service = e.Service.String()
	}
	for _, rival := range e.Rivals {
		if n, ok := h.dnsName(zone.ConflictKey{Name: e.Name, Service: rival}); ok {
			out.Conflicts = append(out.Conflicts, n)
		}
	}
	return out, nil
}

func badName(why string) error {
	return server.BadRequest(why, "use a DNS name", vip.Problem{Code: vip.CodeInvalid, Field: "query.name", Message: "is not a DNS name"})
}

// records returns records with their names as all names of the API: without a dot at the end.
func records(in []dns.RR) []v1.DNSRecord {
	return request.Convert(in, func(r dns.RR) v1.DNSRecord {
		header := r.Header()
		data := strings.TrimPrefix(r.String(), header.String())
		return v1.DNSRecord{Name: strings.TrimSuffix(header.Name, "."), TTL: header.Ttl, Type: dns.Type(header.Rrtype).String(),
			Data: strings.TrimSuffix(strings.ReplaceAll(data, ". ", " "), ".")}
	})
}

// why says what a name is, and why the answer is not its records.
func why(e *zone.Explanation) string {
	if e.Why == zone.NotDecided { // no service has the name
		return e.Why.String()
	}
	var is string
	switch e.Kind {
	case zone.Reserved:
		is = "a name of the zone itself"
	case zone.Canonical, zone.Short:
		is = fmt.Sprintf("the %s name of service %s", e.Kind, e.Service)
	case zone.Hostname:
		is = "a hostname of service " + e.Service.String()
	case zone.Port:
		is = "a port of service " + e.Service.String()
	case zone.Address:
		is = "a VIP of service " + e.Service.String()
	}
	switch {
	case is == "":
		return e.Why.String()
	case e.Why == zone.Found:
		return is
	}
	return is + "; " + e.Why.String()
}
