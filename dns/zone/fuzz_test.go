package zone

import (
	"bytes"
	"slices"
	"strings"
	"testing"

	"github.com/miekg/dns"

	"github.com/ironvip/ironvip/test/must"
)

// Any message gets no reply, or one that can be read and that is what a slow search finds: a walk
// over the services.
func FuzzAnswer(f *testing.F) {
	w := newWorld(f)
	w.set(web(), svc("db", 2, "10.64.17.2"), svc("new", 0), svc("prod/late", 3, "10.64.16.9").with("shop.example.com"))
	for _, name := range []string{"web.prod.svc.vip.internal.", "Shop.Example.com.", "_http._tcp.web.prod.svc.vip.internal.", "1.16.64.10.in-addr.arpa.",
		"db.vip.internal.", `d\\.vip.internal.`, `d\.vip.internal.`, "new.vip.internal.", "a.b.vip.internal.", "vip.internal.", "example.com.", ".", "16.64.10.in-addr.arpa.", "8.b.d.0.1.0.0.2.ip6.arpa."} {
		for _, qtype := range []uint16{dns.TypeA, dns.TypeSRV, dns.TypePTR, dns.TypeANY, dns.TypeSOA} {
			f.Add(query(f, name, qtype), qtype%2 == 0)
		}
	}
	f.Add([]byte("\x00\x00\x00\x00\x00\x01\x00\x00\x00\x00\x00\x00\xc0\x0c\x00\x01\x00\x01"), true)
	f.Fuzz(func(t *testing.T, msg []byte, tcp bool) {
		before := slices.Clone(msg)
		reply, outcome := w.Answer(msg, tcp)
		must.True(t, bytes.Equal(msg, before), "the query was changed")
		if len(reply) == 0 {
			if len(msg) >= 12 && msg[2]&0x80 == 0 {
				t.Fatalf("%x gets no reply", msg)
			}
			return
		}
		var r dns.Msg
		must.Succeed(t, r.Unpack(reply), "reply %x to %x", reply, msg)
		code := r.Rcode
		if !r.Response || r.Id != uint16(msg[0])<<8|uint16(msg[1]) || code != outcome.Code || !tcp && len(reply) > MaxUDP {
			t.Fatalf("reply %v to %x, outcome %v", &r, msg, outcome)
		}
		if len(r.Question) != 1 || r.Truncated {
			return
		}
		q := r.Question[0]
		if q.Qclass != dns.ClassINET || r.Opcode != dns.OpcodeQuery || code == dns.RcodeBadVers || code == dns.RcodeFormatError {
			return
		}
		if got, want := sections(&r), slowAnswer(strings.ToLower(q.Name), q.Qtype); want != "" && got != want {
			t.Fatalf("%s %s: %s, want %s", q.Name, dns.TypeToString[q.Qtype], got, want)
		}
	})
}

// sections returns the code and the data of a reply's answer.
func sections(r *dns.Msg) string {
	parts := []string{dns.RcodeToString[r.Rcode]}
	for _, rr := range r.Answer {
		parts = append(parts, data(rr))
	}
	return strings.Join(parts, " ")
}

// slowAnswer is the oracle for what FuzzAnswer's zone has; "" if it has no opinion.
func slowAnswer(name string, qtype uint16) string {
	if meta(qtype) {
		return "NOTIMP"
	}
	type records map[uint16]string
	webAddrs := records{dns.TypeA: "10.64.16.1", dns.TypeAAAA: "2001:db8:1::1"}
	srv := func(port string) records {
		return records{dns.TypeSRV: "0 100 " + port + " web.prod.svc.vip.internal."}
	}
	all := map[string]records{
		"web.prod.svc.vip.internal.":            webAddrs,
		"web.vip.internal.":                     webAddrs,
		"shop.example.com.":                     webAddrs,
		"db.default.svc.vip.internal.":          {dns.TypeA: "10.64.17.2"},
		"db.vip.internal.":                      {dns.TypeA: "10.64.17.2"},
		"new.default.svc.vip.internal.":         {},
		"new.vip.internal.":                     {},
		"late.prod.svc.vip.internal.":           {dns.TypeA: "10.64.16.9"},
		"_http._tcp.web.prod.svc.vip.internal.": srv("80"),
		"_dns._udp.web.prod.svc.vip.internal.":  srv("53"),
		"_tcp.web.prod.svc.vip.internal.":       {},
		"_udp.web.prod.svc.vip.internal.":       {},
		"prod.svc.vip.internal.":                {},
		"default.svc.vip.internal.":             {},
		"svc.vip.internal.":                     {},
		"dns.vip.internal.":                     {},
		"ns.dns.vip.internal.":                  {dns.TypeA: "127.0.0.1", dns.TypeAAAA: "::1"},
		"dns-version.vip.internal.":             {dns.TypeTXT: `"1.1.0"`},
		"vip.internal.":                         {},
	}
	below := func(zone string) bool {
		rest, is := strings.CutSuffix(name, "."+zone)
		return is && (len(rest)-len(strings.TrimRight(rest, `\`)))%2 == 0 // else the dot belongs to a label
	}
	found, ok := all[name]
	switch {
	case qtype == dns.TypeANY || qtype == dns.TypeSOA || qtype == dns.TypeNS || strings.HasSuffix(name, "arpa."):
		return "" // TestAnswers and TestReverse have these
	case ok:
		return strings.TrimSpace("NOERROR " + found[qtype])
	case below("vip.internal."), below("shop.example.com."):
		return "NXDOMAIN"
	}
	return "REFUSED"
}
