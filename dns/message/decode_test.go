package message

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"testing"

	"github.com/miekg/dns"

	"github.com/ironvip/ironvip/test/must"
)

// Every record that is serialized here is read alike by the oracle and by Decode.
func TestRecords(t *testing.T) {
	target := must.Get(PackName(nil, "web.prod.svc.vip.internal"))(t)
	server, _ := PackName(nil, "ns.dns.vip.internal")
	mailbox, _ := PackName(nil, "hostmaster.vip.internal")
	for _, c := range []struct {
		record []byte
		want   string
	}{
		{AppendAddr(nil, Question, 30, netip.MustParseAddr("192.0.2.1")), "web.vip.internal 30 IN A 192.0.2.1"},
		{AppendAddr(nil, Question+4, 30, netip.MustParseAddr("2001:db8::1")), "vip.internal 30 IN AAAA 2001:db8::1"},
		{AppendName(nil, PTR, 30, target), "web.vip.internal 30 IN PTR web.prod.svc.vip.internal"},
		{AppendName(nil, NS, 86400, string(server)), "web.vip.internal 86400 IN NS ns.dns.vip.internal"},
		{AppendSRV(nil, 30, 8080, target), "web.vip.internal 30 IN SRV 0 100 8080 web.prod.svc.vip.internal"},
		{AppendTXT(nil, 0, "1.1.0"), `web.vip.internal 0 IN TXT "1.1.0"`},
	} {
		compareRecord(t, Reply{Answers: 1, Answer: string(c.record)}, c.want)
	}
	compareRecord(t, Reply{SOA: SOARecord(server, mailbox, 1), Serial: 7, Apex: 4, SOAAnswer: true},
		"vip.internal 1 IN SOA ns.dns.vip.internal hostmaster.vip.internal 7 7200 1800 86400 1")
}

func compareRecord(t *testing.T, r Reply, want string) {
	t.Helper()
	var q Query
	if code, ok := q.Parse(wire(t, question("web.vip.internal.", dns.TypeA))); code != NoError || !ok {
		t.Fatal(code, ok)
	}
	reply := q.Append(nil, &r, MinUDP)
	var m dns.Msg
	if err := m.Unpack(reply); err != nil || len(m.Answer) != 1 {
		t.Fatalf("%s: %v, %v", want, m.Answer, err)
	}
	oracle := strings.ReplaceAll(strings.Join(strings.Fields(m.Answer[0].String()), " "), ". ", " ")
	if oracle = strings.TrimSuffix(oracle, "."); oracle != want {
		t.Errorf("the oracle reads %s, want %s", oracle, want)
	}
	d, err := Decode(reply)
	if err != nil || len(d.Answer) != 1 || d.Answer[0].String() != want {
		t.Errorf("Decode reads %v, %v; want %s", d, err, want)
	}
}

func TestQueryForDecode(t *testing.T) {
	name, _ := PackName(nil, "web.vip.internal")
	var m dns.Msg
	if err := m.Unpack(NewQuery(7, name, SRV)); err != nil || m.Id != 7 || m.Question[0] != (dns.Question{Name: "web.vip.internal.", Qtype: dns.TypeSRV, Qclass: dns.ClassINET}) || m.IsEdns0() == nil {
		t.Errorf("%v, %v", &m, err)
	}
}

// Decode reads any reply of the oracle, or reports an error, and ends.
func FuzzDecode(f *testing.F) {
	m := question("web.vip.internal.", dns.TypeA)
	m.Response, m.Compress = true, true
	for _, s := range []string{"web.vip.internal. 30 IN A 192.0.2.1", "web.vip.internal. 30 IN SRV 0 0 80 a.vip.internal.", `vip.internal. 0 TXT "a" "b\"c"`,
		"vip.internal. 1 SOA ns.vip.internal. a.vip.internal. 1 2 3 4 5", "vip.internal. 1 MX 10 web.vip.internal.", "vip.internal. 1 NS ns.vip.internal."} {
		rr := must.Get(dns.NewRR(s))(f)
		m.Answer = append(m.Answer, rr)
		f.Add(wire(f, m))
	}
	m.SetEdns0(4096, true)
	f.Add(wire(f, m))
	f.Add([]byte("\x00\x00\x80\x00\x00\x01\x00\x01\x00\x00\x00\x00\xc0\x0c\x00\x01\x00\x01\xc0\x0c"))
	f.Fuzz(func(t *testing.T, msg []byte) {
		d, err := Decode(msg)
		if err != nil {
			return
		}
		var m dns.Msg
		if m.Unpack(msg) != nil || slices.ContainsFunc(m.Extra, func(rr dns.RR) bool { return rr.Header().Rrtype == dns.TypeOPT }) {
			return // the oracle checks more, and counts OPT
		}
		if len(d.Answer) != len(m.Answer) || len(d.Authority) != len(m.Ns) {
			return // the oracle forgives wrong counts
		}
		for i, r := range d.Answer {
			h := m.Answer[i].Header()
			if uint16(r.Type) != h.Rrtype || r.TTL != h.Ttl {
				t.Fatalf("record %d of %x is %v, want %v", i, msg, r, m.Answer[i])
			}
			if srv, ok := m.Answer[i].(*dns.SRV); ok && !strings.HasPrefix(r.Data, fmt.Sprintf("%d %d %d ", srv.Priority, srv.Weight, srv.Port)) {
				t.Fatalf("record %d of %x is %v, want %v", i, msg, r, srv)
			}
		}
	})
}
