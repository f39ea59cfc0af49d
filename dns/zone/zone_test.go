package zone

import (
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/miekg/dns"

	"github.com/ironvip/ironvip/test/expect"
	"github.com/ironvip/ironvip/test/must"
	"github.com/ironvip/ironvip/vip"
)

func web() Service {
	return svc("prod/web", 1, "10.64.16.1", "2001:db8:1::1").ports("80/tcp/http", "53/udp/dns", "443/tcp").with("shop.example.com", "web.vip.internal")
}

// Each row of DNS.md's table of answers.
func TestAnswers(t *testing.T) {
	w := newWorld(t)
	w.set(web(), svc("db", 2, "10.64.17.2"), svc("new", 0))
	w.check(
		"web.prod.svc.vip.internal A: 10.64.16.1",
		"web.prod.svc.vip.internal AAAA: 2001:db8:1::1",
		"WEB.Prod.SVC.vip.INTERNAL A: 10.64.16.1",
		"db.vip.internal A: 10.64.17.2",
		"shop.example.com A: 10.64.16.1",
		"shop.example.com AAAA: 2001:db8:1::1",
		"web.vip.internal A: 10.64.16.1",
		"web.prod.svc.vip.internal ANY: 10.64.16.1",

		// NODATA: the name exists, and has no such record.
		"db.vip.internal AAAA: soa:vip.internal.",
		"db.vip.internal MX: soa:vip.internal.",
		"db.vip.internal HTTPS: soa:vip.internal.",
		"db.vip.internal NS: soa:vip.internal.",
		"new.vip.internal A: soa:vip.internal.",
		"new.default.svc.vip.internal ANY: soa:vip.internal.",
		"vip.internal A: soa:vip.internal.",
		"svc.vip.internal A: soa:vip.internal.",
		"prod.svc.vip.internal A: soa:vip.internal.",
		"_tcp.web.prod.svc.vip.internal A: soa:vip.internal.",
		"_http._tcp.web.prod.svc.vip.internal A: soa:vip.internal.",
		"dns.vip.internal A: soa:vip.internal.",
		"shop.example.com MX: soa:shop.example.com.",

		// NXDOMAIN
		"none.vip.internal A: NXDOMAIN, soa:vip.internal.",
		"none.prod.svc.vip.internal A: NXDOMAIN, soa:vip.internal.",
		"web.none.svc.vip.internal A: NXDOMAIN, soa:vip.internal.",
		"none.svc.vip.internal A: NXDOMAIN, soa:vip.internal.",
		"web.default.svc.vip.internal A: NXDOMAIN, soa:vip.internal.",
		"_https._tcp.web.prod.svc.vip.internal SRV: NXDOMAIN, soa:vip.internal.",
		"_http._udp.web.prod.svc.vip.internal SRV: NXDOMAIN, soa:vip.internal.",
		"below.web.vip.internal A: NXDOMAIN, soa:vip.internal.",
		"below.shop.example.com A: NXDOMAIN, soa:shop.example.com.",
		"a.b.shop.example.com A: NXDOMAIN, soa:shop.example.com.",

		// REFUSED: other zones. NOTIMP: not a query for records.
		"example.com A: REFUSED",
		"www.example.com A: REFUSED",
		"internal A: REFUSED",
		"xvip.internal A: REFUSED",
		"com A: REFUSED",
		". NS: REFUSED",
		"vip.internal AXFR: NOTIMP",
		"vip.internal IXFR: NOTIMP",

		// The zone itself.
		"vip.internal SOA: ns.dns.vip.internal. hostmaster.vip.internal. 1 7200 1800 86400 1",
		"vip.internal NS: ns.dns.vip.internal.",
		"vip.internal ANY: ns.dns.vip.internal.",
		"ns.dns.vip.internal A: 127.0.0.1",
		"ns.dns.vip.internal AAAA: ::1",
		"shop.example.com NS: ns.dns.vip.internal.",
		"shop.example.com SOA: ns.dns.vip.internal. hostmaster.vip.internal. 1 7200 1800 86400 1",
		"dns-version.vip.internal TXT: \"1.1.0\"",
	)
	ns := w.ask(t, "vip.internal", dns.TypeNS)
	if len(ns.Extra) != 2 || ns.Extra[0].Header().Name != "ns.dns.vip.internal." || data(ns.Extra[1]) != "::1" {
		t.Errorf("addresses of the name server: %v", ns.Extra)
	}
	r := w.ask(t, "shop.example.com", dns.TypeA)
	expect.Equal(t, r.Answer[0].Header().Ttl, 30, "answer %v", r.Answer)
	w.remove("prod/web")
	w.check(
		"web.prod.svc.vip.internal A: NXDOMAIN, soa:vip.internal.",
		"prod.svc.vip.internal A: NXDOMAIN, soa:vip.internal.",
		"svc.vip.internal A: soa:vip.internal.",
		"shop.example.com A: REFUSED",
		"below.shop.example.com A: REFUSED",
		"db.vip.internal A: 10.64.17.2",
	)
	w.remove("db")
	w.remove("new")
	if len(w.names) != 6 || w.Len() != 0 || len(w.rivals) != 0 {
		t.Errorf("%d names remain, %d with a service: %v", len(w.names), w.Len(), w.names)
	}
}

// The class and other forms of a query.
func TestOtherQueries(t *testing.T) {
	w := newWorld(t)
	w.set(web())
	for _, c := range []struct {
		class uint16
		code  int
	}{{dns.ClassINET, dns.RcodeSuccess}, {dns.ClassANY, dns.RcodeSuccess}, {dns.ClassCHAOS, dns.RcodeRefused}, {dns.ClassHESIOD, dns.RcodeRefused}} {
		m := new(dns.Msg)
		m.SetQuestion("web.vip.internal.", dns.TypeA)
		m.Question[0].Qclass = c.class
		query, _ := m.Pack()
		reply, _ := w.Answer(query, false)
		var r dns.Msg
		if err := r.Unpack(reply); err != nil || r.Rcode != c.code {
			t.Errorf("class %d: %v, %v", c.class, &r, err)
		}
	}
	if reply, outcome := w.Answer([]byte("short"), false); len(reply) > 0 || outcome != (Outcome{}) {
		t.Errorf("reply %x, outcome %v", reply, outcome)
	}
}

// A name between two hostnames exists, and has no records. One above all of them is in another zone.
func TestNamesBetweenHostnames(t *testing.T) {
	w := newWorld(t, func(s *Settings) { s.Domain = "in.the.zone.example.net" })
	low := svc("low", 1, "10.64.16.1").with("a.b.c.example.com", "other.example.org")
	w.set(low)
	nodes := len(w.names)
	w.check("b.c.example.com A: REFUSED", "example.com A: REFUSED", "com A: REFUSED", "zone.example.net A: REFUSED")
	high := svc("high", 2, "10.64.16.2").with("example.com", "example.net")
	w.set(high)
	w.check(
		"a.b.c.example.com A: 10.64.16.1",
		"example.com A: 10.64.16.2",
		"b.c.example.com A: soa:example.com.",
		"b.c.example.com NS: soa:example.com.",
		"c.example.com A: soa:example.com.",
		"d.c.example.com A: NXDOMAIN, soa:example.com.",
		"x.a.b.c.example.com A: NXDOMAIN, soa:a.b.c.example.com.",
		"zone.example.net A: soa:example.net.",
		"x.zone.example.net A: NXDOMAIN, soa:example.net.",
		"example.org A: REFUSED",
		"com A: REFUSED",
	)
	w.Zone.synced = false
	w.check("c.example.com A: soa:example.com.", "d.c.example.com A: SERVFAIL", "com A: SERVFAIL")
	w.SetSynced()
	w.set(low.with("other.example.org"))
	w.check("b.c.example.com A: NXDOMAIN, soa:example.com.", "example.com A: 10.64.16.2")
	w.set(low)
	w.remove("high")
	w.check("b.c.example.com A: REFUSED", "a.b.c.example.com A: 10.64.16.1")
	expect.Equal(t, len(w.names), nodes, "%d nodes, before %d", len(w.names), nodes)
}

// Before every source has listed its services, what is known is answered, and what is unknown may
// still come.
func TestBeforeTheSync(t *testing.T) {
	w := newWorld(t)
	w.Zone.synced = false
	w.set(web())
	w.check(
		"web.prod.svc.vip.internal A: 10.64.16.1",
		"web.prod.svc.vip.internal MX: soa:vip.internal.",
		"shop.example.com A: 10.64.16.1",
		"prod.svc.vip.internal A: soa:vip.internal.",
		"vip.internal SOA: ns.dns.vip.internal. hostmaster.vip.internal. 1 7200 1800 86400 1",
		"1.16.64.10.in-addr.arpa PTR: web.prod.svc.vip.internal.",
		"16.64.10.in-addr.arpa PTR: soa:16.64.10.in-addr.arpa.",
		"db.vip.internal A: SERVFAIL",
		"below.shop.example.com A: SERVFAIL",
		"_https._tcp.web.prod.svc.vip.internal SRV: SERVFAIL",
		"www.example.com A: SERVFAIL",
		"2.16.64.10.in-addr.arpa PTR: SERVFAIL",
		"vip.internal AXFR: NOTIMP",
	)
	w.SetSynced()
	w.check(
		"db.vip.internal A: NXDOMAIN, soa:vip.internal.",
		"www.example.com A: REFUSED",
		"2.16.64.10.in-addr.arpa PTR: NXDOMAIN, soa:16.64.10.in-addr.arpa.",
	)
}

// Before every source has listed its services, a name that several services wanted in the last run is
// answered for its former winner only. The zone's own names are answered.
func TestHeldNames(t *testing.T) {
	w := newWorld(t)
	w.Zone.synced = false
	w.report(w.Hold(map[string]vip.ServiceKey{"shop.example.com": key("old"), "b.example.com": key("old"), "other.example.com": key("gone"), "young.vip.internal": key("young"), "vip.internal": key("old")}))
	hosts := func(name string, since int, addr string) Service {
		return svc(name, since, addr).with("shop.example.com", "a.b.example.com", "other.example.com")
	}
	w.set(hosts("young", 2, "10.64.16.2"))
	check := func(shop string) {
		t.Helper()
		w.check(
			"shop.example.com A: "+shop,
			"b.example.com A: SERVFAIL", // exists between hostnames
			"other.example.com A: SERVFAIL",
			"other.example.com TXT: SERVFAIL",
			"a.b.example.com A: "+strings.Replace(shop, "SERVFAIL", "10.64.16.2", 1),
			"young.vip.internal A: 10.64.16.2",
			"vip.internal A: soa:vip.internal.",
		)
	}
	check("SERVFAIL")
	if e, err := w.Explain("shop.example.com", dns.TypeA); err != nil || e.Why != NotDecided || e.Code != dns.RcodeServerFailure || e.Service != (vip.ServiceKey{}) || !slices.Equal(e.Rivals, []vip.ServiceKey{key("young")}) {
		t.Errorf("%+v, %v", e, err)
	}
	w.checkConflicts("other.example.com young gone undecided", "shop.example.com young old undecided")
	w.set(hosts("old", 1, "10.64.16.1"))
	check("10.64.16.1")
	w.checkConflicts("a.b.example.com young old", "other.example.com old gone undecided", "other.example.com young gone undecided", "shop.example.com young old")
	w.remove("old")
	check("SERVFAIL")
	w.checkConflicts("other.example.com young gone undecided", "shop.example.com young old undecided")
	w.report(w.SetSynced())
	w.checkConflicts()
	w.check("shop.example.com A: 10.64.16.2", "b.example.com A: REFUSED", "other.example.com A: 10.64.16.2")
	w.Hold(map[string]vip.ServiceKey{"shop.example.com": key("old")}) // too late
	w.check("shop.example.com A: 10.64.16.2")
}

// Names of addresses, for pools that end at label boundaries and for others.
func TestReverse(t *testing.T) {
	w := newWorld(t)
	w.set(web(), svc("db", 2, "10.64.31.255"), svc("outside", 3, "192.0.2.1"))
	const nibbles = "0.0.0.0.0.0.0.0.0.0.0.0.0.0.0"
	const zone6 = "0.0.0.0.1.0.0.0.8.b.d.0.1.0.0.2.ip6.arpa"
	w.check(
		"1.16.64.10.in-addr.arpa PTR: web.prod.svc.vip.internal.",
		"1.16.64.10.IN-ADDR.ARPA PTR: web.prod.svc.vip.internal.",
		"255.31.64.10.in-addr.arpa PTR: db.default.svc.vip.internal.",
		"1."+nibbles+"."+zone6+" PTR: web.prod.svc.vip.internal.",
		"1."+nibbles+"."+strings.ToUpper(zone6)+" PTR: web.prod.svc.vip.internal.",
		"1.16.64.10.in-addr.arpa A: soa:16.64.10.in-addr.arpa.",

		// Inside the pools, without a service.
		"2.16.64.10.in-addr.arpa PTR: NXDOMAIN, soa:16.64.10.in-addr.arpa.",
		"2."+nibbles+"."+zone6+" PTR: NXDOMAIN, soa:"+zone6+".",
		"x.1.16.64.10.in-addr.arpa PTR: NXDOMAIN, soa:16.64.10.in-addr.arpa.",
		"b._dns-sd._udp.0.16.64.10.in-addr.arpa PTR: NXDOMAIN, soa:16.64.10.in-addr.arpa.",
		"01.16.64.10.in-addr.arpa PTR: NXDOMAIN, soa:16.64.10.in-addr.arpa.",
		"256.16.64.10.in-addr.arpa PTR: NXDOMAIN, soa:16.64.10.in-addr.arpa.",

		// The questions of resolvers that minimize query names.
		"16.64.10.in-addr.arpa A: soa:16.64.10.in-addr.arpa.",
		"64.10.in-addr.arpa A: soa:64.10.in-addr.arpa.",
		"10.in-addr.arpa A: soa:10.in-addr.arpa.",
		"in-addr.arpa A: soa:in-addr.arpa.",
		"0.0."+zone6+" A: soa:"+zone6+".",
		"b.d.0.1.0.0.2.ip6.arpa A: soa:b.d.0.1.0.0.2.ip6.arpa.",
		"17.64.10.in-addr.arpa SOA: ns.dns.vip.internal. hostmaster.vip.internal. 1 7200 1800 86400 1",
		"17.64.10.in-addr.arpa NS: ns.dns.vip.internal.",

		// Outside.
		"1.2.0.192.in-addr.arpa PTR: REFUSED",
		"1.32.64.10.in-addr.arpa PTR: REFUSED",
		"32.64.10.in-addr.arpa A: REFUSED",
		"x.10.in-addr.arpa A: REFUSED",
		"11.in-addr.arpa A: REFUSED",
		"1.1.0.0.2.ip6.arpa A: REFUSED",
		"arpa A: REFUSED",
	)
	w.remove("prod/web")
	w.check("1.16.64.10.in-addr.arpa PTR: NXDOMAIN, soa:16.64.10.in-addr.arpa.")

	small := newWorld(t, func(s *Settings) {
		s.Pools = []netip.Prefix{netip.MustParsePrefix("10.0.0.16/30"), netip.MustParsePrefix("2001:db8::/126")}
	})
	small.set(svc("web", 1, "10.0.0.17"))
	small.check(
		"17.0.0.10.in-addr.arpa PTR: web.default.svc.vip.internal.",
		"17.0.0.10.in-addr.arpa A: soa:17.0.0.10.in-addr.arpa.",
		"18.0.0.10.in-addr.arpa PTR: NXDOMAIN, soa:18.0.0.10.in-addr.arpa.",
		"20.0.0.10.in-addr.arpa PTR: REFUSED",
		"0.0.10.in-addr.arpa PTR: soa:0.0.10.in-addr.arpa.",
	)
	off := newWorld(t, func(s *Settings) { s.Reverse = false })
	off.set(web())
	off.check("1.16.64.10.in-addr.arpa PTR: REFUSED", "16.64.10.in-addr.arpa A: REFUSED")
	all := newWorld(t, func(s *Settings) { s.Pools = []netip.Prefix{netip.MustParsePrefix("0.0.0.0/0")} })
	all.set(web())
	all.check("1.16.64.10.in-addr.arpa PTR: web.prod.svc.vip.internal.", "9.9.9.9.in-addr.arpa PTR: NXDOMAIN, soa:in-addr.arpa.")
}

// Several services share an address: each has a PTR record, the oldest first, up to a limit.
func TestSharedAddress(t *testing.T) {
	w := newWorld(t)
	w.set(svc("b", 2, "10.64.16.9"), svc("c", 3, "10.64.16.9"), svc("a", 1, "10.64.16.9"), svc("d", 0, "10.64.16.9"))
	const ptr = "9.16.64.10.in-addr.arpa PTR: "
	w.check(ptr + "a.default.svc.vip.internal., b.default.svc.vip.internal., c.default.svc.vip.internal., d.default.svc.vip.internal.")
	w.remove("b")
	w.set(svc("d", 1, "10.64.16.9"))
	w.check(ptr + "a.default.svc.vip.internal., d.default.svc.vip.internal., c.default.svc.vip.internal.")
	w.remove("a")
	w.set(svc("c", 3, "10.64.16.8"))
	w.check(ptr+"d.default.svc.vip.internal.", "8.16.64.10.in-addr.arpa PTR: c.default.svc.vip.internal.")
	for i := range 40 {
		w.set(svc("many"+strings.Repeat("x", i), 10+i, "10.64.16.9"))
	}
	if r := w.ask(t, "9.16.64.10.in-addr.arpa", dns.TypePTR); len(r.Answer) != maxPTR || data(r.Answer[1]) != "many.default.svc.vip.internal." {
		t.Errorf("%d records: %v", len(r.Answer), r.Answer)
	}
	for i := range 40 {
		w.remove("many" + strings.Repeat("x", i))
	}
	w.remove("d")
	w.check(ptr + "NXDOMAIN, soa:16.64.10.in-addr.arpa.")
	w.checkConflicts()
}

// A change of a service changes what follows from it, and nothing else.
func TestChanges(t *testing.T) {
	w := newWorld(t)
	w.set(web())
	moved := svc("prod/web", 1, "10.64.16.7").ports("81/tcp/http", "9/sctp/x").with("shop.example.com", "new.example.com")
	w.set(moved)
	w.check(
		"web.prod.svc.vip.internal A: 10.64.16.7",
		"web.prod.svc.vip.internal AAAA: soa:vip.internal.",
		"shop.example.com A: 10.64.16.7",
		"new.example.com A: 10.64.16.7",
		"web.vip.internal A: NXDOMAIN, soa:vip.internal.",
		"_http._tcp.web.prod.svc.vip.internal SRV: 0 100 81 web.prod.svc.vip.internal.",
		"_x._sctp.web.prod.svc.vip.internal SRV: 0 100 9 web.prod.svc.vip.internal.",
		"_dns._udp.web.prod.svc.vip.internal SRV: NXDOMAIN, soa:vip.internal.",
		"_udp.web.prod.svc.vip.internal A: NXDOMAIN, soa:vip.internal.",
		"7.16.64.10.in-addr.arpa PTR: web.prod.svc.vip.internal.",
		"1.16.64.10.in-addr.arpa PTR: NXDOMAIN, soa:16.64.10.in-addr.arpa.",
	)
	w.set(svc("prod/web", 1))
	w.check(
		"web.prod.svc.vip.internal A: soa:vip.internal.",
		"shop.example.com A: REFUSED",
		"_http._tcp.web.prod.svc.vip.internal SRV: NXDOMAIN, soa:vip.internal.",
		"_tcp.web.prod.svc.vip.internal SRV: NXDOMAIN, soa:vip.internal.",
	)
	waiting := svc("prod/web", 1)
	waiting.Waiting = true
	w.set(waiting)
	w.check("web.prod.svc.vip.internal A: SERVFAIL", "web.prod.svc.vip.internal MX: soa:vip.internal.")
	expect.Equal(t, w.Len(), 1, "names")
}

// The domain has one label or many, and limits.
func TestDomains(t *testing.T) {
	for _, domain := range []string{"internal", "Vip.Internal.", "a.b.c.d.example.com", strings.Repeat("a.", MaxDomain/2) + "a"} {
		w := newWorld(t, func(s *Settings) { s.Domain = domain })
		w.set(web().with(), svc("db", 2, "10.64.17.2"), svc(strings.Repeat("n", 63)+"/"+strings.Repeat("s", 63), 2, "10.64.17.3").ports("1/tcp/"+strings.Repeat("p", 50)))
		w.check("db."+strings.TrimSuffix(domain, ".")+" A: 10.64.17.2", strings.Repeat("s", 63)+"."+strings.Repeat("n", 63)+".svc."+strings.TrimSuffix(domain, ".")+" A: 10.64.17.3")
	}
	for _, domain := range []string{"", ".", "a..b", strings.Repeat("a.", MaxDomain/2) + "aa"} {
		s := settings()
		s.Domain = domain
		_, err := New(s)
		expect.True(t, err != nil, "domain %q is accepted", domain)
	}
}

func TestExplain(t *testing.T) {
	w := newWorld(t)
	w.set(web(), svc("db", 2).with("shop.example.com"))
	for _, c := range []struct {
		name, qtype string
		why         Why
		service     string
		kind        Kind
		records     string
	}{
		{"SHOP.example.com.", "A", Found, "prod/web", Hostname, "shop.example.com. 30 IN A 10.64.16.1"},
		{"_http._tcp.web.prod.svc.vip.internal", "SRV", Found, "prod/web", Port, "_http._tcp.web.prod.svc.vip.internal. 30 IN SRV 0 100 80 web.prod.svc.vip.internal."},
		{"db.vip.internal", "A", NoVIP, "db", Short, ""},
		{"db.vip.internal", "MX", NoRecord, "db", Short, ""},
		{"vip.internal", "A", NoRecord, "", Reserved, ""},
		{"prod.svc.vip.internal", "A", NoRecord, "", Between, ""},
		{"none.vip.internal", "A", NoName, "", Between, ""},
		{"example.com", "A", OtherZone, "", Between, ""},
		{"vip.internal", "AXFR", NotAnswered, "", Reserved, ""},
	} {
		e := must.Get(w.Explain(c.name, dns.StringToType[c.qtype]))(t)
		records := ""
		if len(e.Answer) > 0 {
			records = strings.ReplaceAll(e.Answer[0].String(), "\t", " ")
		}
		got := ""
		if e.Service.Name != "" {
			got = e.Service.String()
		}
		if e.Why != c.why || got != c.service || e.Kind != c.kind || records != c.records {
			t.Errorf("%s %s: %+v", c.name, c.qtype, e)
		}
		expect.True(t, c.why.String() != "", "%d has no text", c.why)
	}
	if e, _ := w.Explain("shop.example.com", dns.TypeA); len(e.Rivals) != 1 || e.Rivals[0] != key("db") {
		t.Errorf("rivals %v", e.Rivals)
	}
	_, err := w.Explain("a..b", dns.TypeA)
	expect.True(t, err != nil, "a name with an empty label is accepted")
}

// Negative answers have the TTL that is configured; records the other.
func TestTTLs(t *testing.T) {
	w := newWorld(t, func(s *Settings) { s.TTL, s.NegativeTTL = 5*time.Minute, 7*time.Second })
	w.set(web())
	if r := w.ask(t, "none.vip.internal", dns.TypeA); r.Ns[0].Header().Ttl != 7 || r.Ns[0].(*dns.SOA).Minttl != 7 {
		t.Errorf("authority %v", r.Ns)
	}
	for _, name := range []string{"web.prod.svc.vip.internal", "_http._tcp.web.prod.svc.vip.internal", "1.16.64.10.in-addr.arpa", "vip.internal"} {
		r := w.ask(t, name, dns.TypeANY)
		for _, rr := range append(r.Answer, r.Extra...) {
			expect.Equal(t, rr.Header().Ttl, 300, "record %v", rr)
		}
	}
}
