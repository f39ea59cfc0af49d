package zone

import (
	"bytes"
	"slices"
	"strings"
	"testing"

	"github.com/miekg/dns"

	"github.com/ironvip/ironvip/test/expect"
	"github.com/ironvip/ironvip/test/must"
)

// Each row is a message that is no ordinary query, and what becomes of it.
func TestUnusualQueries(t *testing.T) {
	w := newWorld(t)
	w.set(web())
	message := func(name string, change func(*dns.Msg)) []byte {
		m := new(dns.Msg)
		m.SetQuestion(name, dns.TypeA)
		m.Id = 0x1234
		change(m)
		return must.Get(m.Pack())(t)
	}
	plain := message("web.vip.internal.", func(*dns.Msg) {})
	edit := func(f func([]byte) []byte) []byte { return f(slices.Clone(plain)) }
	edns := func(change func(*dns.OPT)) []byte {
		return message("web.vip.internal.", func(m *dns.Msg) {
			m.SetEdns0(4096, true)
			change(m.IsEdns0())
		})
	}
	const none = -1
	for _, c := range []struct {
		what string
		msg  []byte
		code int
		opt  bool // the reply has EDNS
	}{
		{"an ordinary query", plain, dns.RcodeSuccess, false},
		{"no bytes", nil, none, false},
		{"half a header", plain[:11], none, false},
		{"a response", edit(func(b []byte) []byte { b[2] |= 0x80; return b }), none, false},
		{"only a header", plain[:12], dns.RcodeFormatError, false},
		{"no question", edit(func(b []byte) []byte { b[5] = 0; return b }), dns.RcodeFormatError, false},
		{"two questions", edit(func(b []byte) []byte { b[5] = 2; return append(b, b[12:]...) }), dns.RcodeFormatError, false},
		{"an update", edit(func(b []byte) []byte { b[2] = 5 << 3; return b }), dns.RcodeNotImplemented, false},
		{"a notification", edit(func(b []byte) []byte { b[2] = 4 << 3; return b }), dns.RcodeNotImplemented, false},
		{"an unknown opcode with EDNS", message("web.vip.internal.", func(m *dns.Msg) { m.Opcode = 15; m.SetEdns0(1232, true) }), dns.RcodeNotImplemented, true},
		{"a name that ends early", plain[:20], dns.RcodeFormatError, false},
		{"a pointer to itself", edit(func(b []byte) []byte { b[12], b[13] = 0xc0, 12; return b }), dns.RcodeFormatError, false},
		{"a label of a reserved kind", edit(func(b []byte) []byte { b[12] = 0x40; return b }), dns.RcodeFormatError, false},
		{"a name of 257 bytes", edit(func(b []byte) []byte {
			name := bytes.Repeat(append([]byte{63}, bytes.Repeat([]byte("a"), 63)...), 4)
			return append(append(b[:12], name...), 0, 0, 1, 0, 1)
		}), dns.RcodeFormatError, false},
		{"bytes behind the message", append(slices.Clone(plain), 1, 2, 3), dns.RcodeSuccess, false},
		{"EDNS", edns(func(*dns.OPT) {}), dns.RcodeSuccess, true},
		{"EDNS with an unknown option", edns(func(o *dns.OPT) {
			o.Option = append(o.Option, &dns.EDNS0_LOCAL{Code: 65001, Data: []byte("x")}, &dns.EDNS0_COOKIE{Code: dns.EDNS0COOKIE, Cookie: "24a5ac1223344556"})
		}), dns.RcodeSuccess, true},
		{"EDNS of another version", edns(func(o *dns.OPT) { o.SetVersion(1) }), dns.RcodeBadVers, true},
		{"a label of 63", message(strings.Repeat("a", 63)+".vip.internal.", func(*dns.Msg) {}), dns.RcodeNameError, false},
		{"a name of 255", message(strings.Repeat(strings.Repeat("a", 62)+".", 4)+"a.", func(*dns.Msg) {}), dns.RcodeRefused, false},
		{"a dot in a label", message(`x\.vip.internal.`, func(*dns.Msg) {}), dns.RcodeRefused, false},
	} {
		reply, outcome := w.Answer(c.msg, false)
		if c.code == none {
			if len(reply) > 0 || outcome != (Outcome{}) {
				t.Errorf("%s: reply %x", c.what, reply)
			}
			continue
		}
		var m dns.Msg
		if err := m.Unpack(reply); err != nil || m.Id != 0x1234 || !m.Response || m.Rcode != c.code || outcome.Code != c.code {
			t.Errorf("%s: reply %v, %v", c.what, &m, err)
		}
		if o := m.IsEdns0(); (o != nil) != c.opt || o != nil && (o.UDPSize() != MaxUDP || !o.Do() || o.Version() != 0) {
			t.Errorf("%s: OPT record %v", c.what, o)
		}
	}
}

// The reply repeats what a client compares: the question with its case, and the flags of its own.
func TestReplyRepeatsTheQuery(t *testing.T) {
	w := newWorld(t)
	w.set(web())
	m := new(dns.Msg)
	m.SetQuestion("wEb.ViP.internal.", dns.TypeAAAA)
	m.RecursionDesired, m.CheckingDisabled, m.AuthenticatedData = true, true, true
	reply, _ := w.Answer(must.Get(m.Pack())(t), false)
	var r dns.Msg
	must.Succeed(t, r.Unpack(reply))
	if r.Question[0] != m.Question[0] || len(r.Answer) != 1 || !r.RecursionDesired || !r.CheckingDisabled || !r.Authoritative || r.RecursionAvailable || r.AuthenticatedData || r.Truncated {
		t.Errorf("reply %v", &r)
	}
}

// A reply by UDP has the size that the client allows, within bounds. One that is longer is truncated; by TCP
// it is complete.
func TestTruncation(t *testing.T) {
	w := newWorld(t)
	for i := range maxPTR { // each record takes about 140 bytes
		long := strings.Repeat("x", 60+i)
		w.set(svc(long+"/"+long, 1+i, "10.64.16.9"))
	}
	for _, c := range []struct {
		size      uint16 // 0: without EDNS
		truncated bool
	}{{0, true}, {100, true}, {512, true}, {1232, false}, {65535, false}} {
		m := new(dns.Msg)
		m.SetQuestion("9.16.64.10.in-addr.arpa.", dns.TypePTR)
		if c.size > 0 {
			m.SetEdns0(c.size, false)
		}
		query := must.Get(m.Pack())(t)
		var udp, tcp dns.Msg
		reply, _ := w.Answer(query, false)
		must.Succeed(t, udp.Unpack(reply))
		if len(reply) > int(max(min(c.size, MaxUDP), dns.MinMsgSize)) || udp.Truncated != c.truncated || (len(udp.Answer) < maxPTR) != c.truncated || (udp.IsEdns0() != nil) != (c.size > 0) {
			t.Errorf("size %d: %d bytes, %v", c.size, len(reply), &udp)
		}
		reply, _ = w.Answer(query, true)
		must.Succeed(t, tcp.Unpack(reply))
		if tcp.Truncated || len(tcp.Answer) != maxPTR {
			t.Errorf("size %d by TCP: %v", c.size, &tcp)
		}
	}
}

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
