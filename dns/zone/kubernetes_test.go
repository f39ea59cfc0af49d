package zone

import (
	"testing"

	"github.com/miekg/dns"

	"github.com/ironvip/ironvip/test/expect"
)

// The rows of "Kubernetes DNS-Based Service Discovery", version 1.1.0, by section. The zone stands
// for the cluster domain, and a VIP for a ClusterIP. A row that does not apply says why; the names of
// its records then don't exist, which the row checks.
func TestKubernetesSpecification(t *testing.T) {
	const noPods = "ironvip names services and knows no pods"
	const noHeadless = "every service has a VIP, and traffic goes through it; a service without one is not answered with its backends"
	for _, row := range []struct {
		section, what string
		question      string
		qtype         uint16
		want          string
		notApplied    string // the reason
	}{
		{"2.2", "schema version", "dns-version.vip.internal", dns.TypeTXT, `"1.1.0"`, ""},

		{"2.3.1", "A record of an IPv4 address", "web.prod.svc.vip.internal", dns.TypeA, "10.64.16.1", ""},
		{"2.3.1", "AAAA record of an IPv6 address", "web.prod.svc.vip.internal", dns.TypeAAAA, "2001:db8:1::1", ""},
		{"2.3.1", "no AAAA record without an IPv6 address", "db.default.svc.vip.internal", dns.TypeAAAA, "soa:vip.internal.", ""},
		{"2.3.1", "no A record without an IPv4 address", "six.default.svc.vip.internal", dns.TypeA, "soa:vip.internal.", ""},

		{"2.3.2", "SRV record of a named port, by TCP", "_http._tcp.web.prod.svc.vip.internal", dns.TypeSRV, "0 100 80 web.prod.svc.vip.internal.", ""},
		{"2.3.2", "SRV record of a named port, by UDP", "_dns._udp.web.prod.svc.vip.internal", dns.TypeSRV, "0 100 53 web.prod.svc.vip.internal.", ""},
		{"2.3.2", "SRV record of a named port, by SCTP", "_sig._sctp.web.prod.svc.vip.internal", dns.TypeSRV, "0 100 36412 web.prod.svc.vip.internal.", ""},
		{"2.3.2", "no SRV record of a port without a name", "_443._tcp.web.prod.svc.vip.internal", dns.TypeSRV, "NXDOMAIN, soa:vip.internal.", ""},
		{"2.3.2", "no SRV record of another protocol", "_http._udp.web.prod.svc.vip.internal", dns.TypeSRV, "NXDOMAIN, soa:vip.internal.", ""},

		{"2.3.3", "PTR record of an IPv4 address", "1.16.64.10.in-addr.arpa", dns.TypePTR, "web.prod.svc.vip.internal.", ""},
		{"2.3.3", "PTR record of an IPv6 address", "1.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.1.0.0.0.8.b.d.0.1.0.0.2.ip6.arpa", dns.TypePTR, "web.prod.svc.vip.internal.", ""},

		{"2.4.1", "A record of each ready endpoint of a headless service", "headless.default.svc.vip.internal", dns.TypeA, "soa:vip.internal.", noHeadless},
		{"2.4.1", "AAAA record of each ready endpoint of a headless service", "headless.default.svc.vip.internal", dns.TypeAAAA, "soa:vip.internal.", noHeadless},
		{"2.4.1", "A record of an endpoint with a hostname", "pod-0.headless.default.svc.vip.internal", dns.TypeA, "NXDOMAIN, soa:vip.internal.", noHeadless},
		{"2.4.2", "SRV record with a target per endpoint", "_http._tcp.pod-0.headless.default.svc.vip.internal", dns.TypeSRV, "NXDOMAIN, soa:vip.internal.", noHeadless},
		{"2.4.3", "PTR record of an endpoint with a hostname", "1.1.1.10.in-addr.arpa", dns.TypePTR, "REFUSED", noPods},

		{"2.5", "CNAME record of an external name", "external.default.svc.vip.internal", dns.TypeCNAME, "NXDOMAIN, soa:vip.internal.", "a service of type ExternalName has no VIP, so no source of ironvip provides it"},

		{"documentation", "A record of a pod", "10-1-1-1.default.pod.vip.internal", dns.TypeA, "NXDOMAIN, soa:vip.internal.", noPods},
	} {
		w := newWorld(t)
		w.set(
			web().ports("36412/sctp/sig"),
			svc("db", 2, "10.64.17.2"),
			svc("six", 3, "2001:db8:1::6"),
			svc("headless", 0).ports("80/tcp/other"),
		)
		expect.Equal(t, w.answer(t, row.question, row.qtype), row.want, "section %s, %s: %s %s", row.section, row.what, row.question, dns.TypeToString[row.qtype])
		if row.notApplied != "" {
			t.Logf("section %s, %s: does not apply: %s", row.section, row.what, row.notApplied)
		}
	}

	// Section 2.3.2: an SRV answer brings the addresses of its target.
	w := newWorld(t)
	w.set(web())
	r := w.ask(t, "_http._tcp.WEB.prod.svc.vip.internal", dns.TypeSRV)
	if len(r.Extra) != 2 || data(r.Extra[0]) != "10.64.16.1" || data(r.Extra[1]) != "2001:db8:1::1" || dns.CanonicalName(r.Extra[0].Header().Name) != "web.prod.svc.vip.internal." {
		t.Errorf("additional records %v", r.Extra)
	}
}
