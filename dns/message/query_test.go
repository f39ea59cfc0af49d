package message

import (
	"bytes"
	"encoding/binary"
	"slices"
	"strings"
	"testing"

	"github.com/miekg/dns"

	"github.com/ironvip/ironvip/test/expect"
	"github.com/ironvip/ironvip/test/must"
)

// wire packs a message of the oracle.
func wire(t testing.TB, m *dns.Msg) []byte {
	t.Helper()
	return must.Get(m.Pack())(t)
}

func question(name string, qtype uint16) *dns.Msg {
	m := new(dns.Msg)
	m.SetQuestion(name, qtype)
	m.Id = 0x1234
	return m
}

// Each row is a message that is no ordinary query, and what becomes of it.
func TestParse(t *testing.T) {
	plain := wire(t, question("web.vip.internal.", dns.TypeA))
	edit := func(f func([]byte) []byte) []byte { return f(slices.Clone(plain)) }
	edns := func(change func(*dns.OPT)) []byte {
		m := question("web.vip.internal.", dns.TypeA)
		o := &dns.OPT{Hdr: dns.RR_Header{Name: ".", Rrtype: dns.TypeOPT, Class: 4096}}
		change(o)
		m.Extra = append(m.Extra, o)
		return wire(t, m)
	}
	extra := func(records ...dns.RR) []byte {
		m := question("web.vip.internal.", dns.TypeA)
		m.Extra = records
		return wire(t, m)
	}
	opt := func(name string) dns.RR {
		return &dns.OPT{Hdr: dns.RR_Header{Name: name, Rrtype: dns.TypeOPT, Class: 1232}}
	}
	for _, c := range []struct {
		what string
		msg  []byte
		code Code
		ok   bool
	}{
		{"an ordinary query", plain, NoError, true},
		{"no bytes", nil, 0, false},
		{"half a header", plain[:11], 0, false},
		{"a response", edit(func(b []byte) []byte { b[2] |= 0x80; return b }), 0, false},
		{"only a header", edit(func(b []byte) []byte { b[5] = 0; return b[:12] }), FormErr, true},
		{"no question", edit(func(b []byte) []byte { b[5] = 0; return b }), FormErr, true},
		{"two questions", edit(func(b []byte) []byte { b[5] = 2; return append(b, b[12:]...) }), FormErr, true},
		{"many questions", edit(func(b []byte) []byte { b[4], b[5] = 0xff, 0xff; return b }), FormErr, true},
		{"an update", edit(func(b []byte) []byte { b[2] = 5 << 3; return b }), NotImp, true},
		{"a notification", edit(func(b []byte) []byte { b[2] = 4 << 3; return b }), NotImp, true},
		{"an unknown opcode", edit(func(b []byte) []byte { b[2] = 15 << 3; return b }), NotImp, true},
		{"a name that ends early", plain[:20], FormErr, true},
		{"a question without its type", plain[:len(plain)-4], FormErr, true},
		{"a question without its class", plain[:len(plain)-1], FormErr, true},
		{"a pointer to itself", edit(func(b []byte) []byte { b[12], b[13] = 0xc0, 12; return b }), FormErr, true},
		{"a pointer backward", edit(func(b []byte) []byte { b[12], b[13] = 0xc0, 0; return b }), FormErr, true},
		{"a pointer after a label", edit(func(b []byte) []byte { b[16], b[17] = 0xc0, 12; return b }), FormErr, true},
		{"a label of a reserved kind", edit(func(b []byte) []byte { b[12] = 0x40; return b }), FormErr, true},
		{"a record that is missing", edit(func(b []byte) []byte { b[11] = 1; return b }), FormErr, true},
		{"a record that ends early", extra(opt("."))[:len(plain)+5], FormErr, true},
		{"a record whose owner points to itself", edit(func(b []byte) []byte {
			b[11] = 1
			return append(b, 0xc0, byte(len(b)), 0, 1, 0, 1, 0, 0, 0, 0, 0, 0)
		}), NoError, true}, // nobody follows it
		{"bytes behind the message", append(slices.Clone(plain), 1, 2, 3), NoError, true},
		{"EDNS", edns(func(*dns.OPT) {}), NoError, true},
		{"EDNS with an unknown option", edns(func(o *dns.OPT) {
			o.Option = append(o.Option, &dns.EDNS0_LOCAL{Code: 65001, Data: []byte("x")}, &dns.EDNS0_COOKIE{Code: dns.EDNS0COOKIE, Cookie: "24a5ac1223344556"})
		}), NoError, true},
		{"EDNS of another version", edns(func(o *dns.OPT) { o.SetVersion(1) }), BadVers, true},
		{"two OPT records", extra(opt("."), opt(".")), FormErr, true},
		{"an OPT record with a name", extra(opt("web.")), FormErr, true},
		{"a transaction signature", extra(&dns.TSIG{Hdr: dns.RR_Header{Name: "key.", Rrtype: dns.TypeTSIG, Class: dns.ClassANY}, Algorithm: dns.HmacSHA256}), NoError, true},
		{"a label of 63", wire(t, question(strings.Repeat("a", 63)+".vip.internal.", dns.TypeA)), NoError, true},
		{"a name of 255", wire(t, question(strings.Repeat(strings.Repeat("a", 62)+".", 4)+"a.", dns.TypeA)), NoError, true},
	} {
		var q Query
		if code, ok := q.Parse(c.msg); code != c.code || ok != c.ok {
			t.Errorf("%s: %s, %v; want %s, %v", c.what, code, ok, c.code, c.ok)
		} else if ok {
			reply := q.Append(nil, &Reply{Code: code}, MinUDP)
			var m dns.Msg
			if err := m.Unpack(reply); err != nil {
				t.Errorf("%s: the reply %x: %v", c.what, reply, err)
			} else if m.Id != 0x1234 || !m.Response || m.Rcode != int(c.code) {
				t.Errorf("%s: reply %v", c.what, m)
			}
		}
	}
	long := edit(func(b []byte) []byte { // a name of 256 bytes
		name := bytes.Repeat(append([]byte{63}, bytes.Repeat([]byte("a"), 63)...), 4)
		return append(append(b[:12], name...), 0, 0, 1, 0, 1)
	})
	if code, ok := new(Query).Parse(long); code != FormErr || !ok {
		t.Errorf("a name of 257 bytes: %s, %v", code, ok)
	}
}

// The reply to a message with an OPT record has one, whatever else is wrong with the message.
func TestReplyHasOPT(t *testing.T) {
	m := question("web.vip.internal.", dns.TypeA)
	plain := wire(t, m)
	m.SetEdns0(1232, true)
	query := wire(t, m)
	opt := query[len(plain):]
	edit := func(f func([]byte) []byte) []byte { return f(slices.Clone(query)) }
	opcode := func(n byte) []byte { return edit(func(b []byte) []byte { b[2] = n << 3; return b }) }
	for _, c := range []struct {
		what string
		msg  []byte
		want bool
	}{
		{"a query", query, true},
		{"a query without", plain, false},
		{"an update", opcode(5), true},
		{"a notification", opcode(4), true},
		{"an unknown opcode", opcode(15), true},
		{"an update without", edit(func(b []byte) []byte { b[2], b[11] = 5<<3, 0; return b[:len(plain)] }), false},
		{"no question", edit(func(b []byte) []byte { b[5] = 0; return append(b[:12], opt...) }), true},
		{"two questions", edit(func(b []byte) []byte {
			b[5] = 2
			return append(append(b[:len(plain)], plain[12:]...), opt...)
		}), true},
		{"a pointer in the question", edit(func(b []byte) []byte { return append(append(b[:12], 0xc0, 12, 0, 1, 0, 1), opt...) }), true},
		{"many questions", edit(func(b []byte) []byte { b[4], b[5] = 0xff, 0xff; return b }), false},
		{"a record that is missing", edit(func(b []byte) []byte { b[11] = 2; return b }), true},
		{"a record that is missing before", edit(func(b []byte) []byte { b[7] = 1; return b }), false},
		{"two OPT records", edit(func(b []byte) []byte { b[11] = 2; return append(b, opt...) }), true},
		{"half an OPT record", query[:len(query)-5], false},
	} {
		var q Query
		code, ok := q.Parse(c.msg)
		var got dns.Msg
		if err := got.Unpack(q.Append(nil, &Reply{Code: code}, q.Limit(false))); err != nil || !ok {
			t.Errorf("%s: %v, %v", c.what, err, ok)
			continue
		}
		if o := got.IsEdns0(); (o != nil) != c.want || o != nil && (o.Version() != 0 || !o.Do()) {
			t.Errorf("%s: %s with %v, want an OPT record: %v", c.what, code, o, c.want)
		}
	}
}

// The reply repeats what a client compares: the question with its case, and the flags of its own.
func TestReplyRepeatsTheQuery(t *testing.T) {
	m := question("wEb.ViP.internal.", dns.TypeAAAA)
	m.RecursionDesired, m.CheckingDisabled, m.AuthenticatedData = true, true, true
	m.SetEdns0(4096, true)
	var q Query
	if code, ok := q.Parse(wire(t, m)); code != NoError || !ok {
		t.Fatal(code, ok)
	}
	expect.Equal(t, NameString(q.Name()), "web.vip.internal", "name")
	var r dns.Msg
	must.Succeed(t, r.Unpack(q.Append(nil, &Reply{Authoritative: true}, MinUDP)))
	if r.Question[0] != m.Question[0] || !r.RecursionDesired || !r.CheckingDisabled || !r.Authoritative || r.RecursionAvailable || r.AuthenticatedData || r.Truncated {
		t.Errorf("reply %v", &r)
	}
	if o := r.IsEdns0(); o == nil || o.UDPSize() != MaxUDP || !o.Do() || o.Version() != 0 {
		t.Errorf("OPT record %v", o)
	}
}

func TestLimit(t *testing.T) {
	for _, c := range []struct {
		edns uint16
		want int
	}{{0, 512}, {100, 512}, {512, 512}, {1000, 1000}, {1232, 1232}, {65535, 1232}} {
		m := question("web.vip.internal.", dns.TypeA)
		if c.edns > 0 {
			m.SetEdns0(c.edns, false)
		}
		var q Query
		q.Parse(wire(t, m))
		if got := q.Limit(false); got != c.want || q.Limit(true) != MaxTCP {
			t.Errorf("size %d: %d, %d by TCP", c.edns, got, q.Limit(true))
		}
	}
}

// A reply that is too long loses its additional records first. If that isn't enough it has no records,
// so that no client takes a part for the whole.
func TestTruncation(t *testing.T) {
	record := string(AppendTXT(nil, 30, strings.Repeat("x", 200)))
	m := question("web.vip.internal.", dns.TypeTXT)
	m.SetEdns0(1000, false)
	var q Query
	q.Parse(wire(t, m))
	for _, c := range []struct {
		answers, extras      int
		truncated            bool
		wantAnswer, wantMore int
	}{{3, 1, false, 3, 1}, {4, 0, false, 4, 0}, {4, 1, false, 4, 0}, {5, 0, true, 0, 0}, {5, 1, true, 0, 0}} {
		r := Reply{Answers: c.answers, Answer: strings.Repeat(record, c.answers), Extras: c.extras, Extra: strings.Repeat(record, c.extras)}
		b := q.Append(nil, &r, q.Limit(false))
		var got dns.Msg
		must.Succeed(t, got.Unpack(b))
		if len(b) > 1000 || got.Truncated != c.truncated || len(got.Answer) != c.wantAnswer || len(got.Extra) != c.wantMore+1 || got.IsEdns0() == nil {
			t.Errorf("%d and %d records: %d bytes, truncated %v, %d and %d", c.answers, c.extras, len(b), got.Truncated, len(got.Answer), len(got.Extra))
		}
	}
}

func TestMalformed(t *testing.T) {
	query := wire(t, question("web.vip.internal.", dns.TypeA))
	reply := Malformed([]byte("kept"), query)
	var m dns.Msg
	if err := m.Unpack(reply[4:]); string(reply[:4]) != "kept" || err != nil || m.Rcode != dns.RcodeFormatError || m.Id != 0x1234 || !m.Response {
		t.Errorf("reply %x, %v", reply, err)
	}
	query[2] |= 0x80
	for _, b := range [][]byte{nil, query[:5], query} {
		expect.Empty(t, Malformed(nil, b), "%x is answered", b)
	}
}

func TestNames(t *testing.T) {
	for text, want := range map[string]string{
		"":                   "\x00",
		".":                  "\x00",
		"Web.VIP.internal":   "\x03web\x03vip\x08internal\x00",
		"web.":               "\x03web\x00",
		"_http._tcp.web.a-b": "\x05_http\x04_tcp\x03web\x03a-b\x00",
	} {
		got, err := PackName([]byte("x"), text)
		if err != nil || string(got) != "x"+want {
			t.Errorf("%q: %q, %v", text, got, err)
		}
		if back := NameString(want); back != "." && back != strings.ToLower(strings.TrimSuffix(text, ".")) {
			t.Errorf("%q comes back as %q", text, back)
		}
	}
	for _, bad := range []string{"..", ".web", "a..b", strings.Repeat("a", 64), strings.Repeat("a.", 127) + "aa"} {
		if got, err := PackName(nil, bad); err == nil || len(got) > 0 {
			t.Errorf("%q: %q", bad, got)
		}
	}
	expect.Equal(t, NameString("\x03a.b\x02\x00\\\x00"), `a\.b.\000\\`, "escapes")
}

func TestTypes(t *testing.T) {
	for n := range 1 << 16 {
		s := Type(n).String()
		if back, ok := ParseType(s); !ok || back != Type(n) {
			t.Fatalf("%d is %s is %d", n, s, back)
		}
		if oracle, ok := dns.TypeToString[uint16(n)]; ok && !strings.HasPrefix(s, "TYPE") && s != oracle {
			t.Errorf("%d is %s, should be %s", n, s, oracle)
		}
	}
	for _, bad := range []string{"", "a", "TYPE", "TYPE65536", "TYPE-1"} {
		if _, ok := ParseType(bad); ok {
			t.Errorf("%q is a type", bad)
		}
	}
	for _, c := range Codes {
		if want := dns.RcodeToString[int(c)]; c.String() != want && c != NotImp && c != BadVers {
			t.Errorf("code %d is %s, should be %s", c, c, want)
		}
	}
	if NotImp.String() != "NOTIMP" || Code(9).String() != "RCODE9" {
		t.Error(NotImp, Code(9))
	}
}

func TestParseAllocatesNothing(t *testing.T) {
	m := question("web.vip.internal.", dns.TypeA)
	m.SetEdns0(1232, false)
	msg := wire(t, m)
	out := make([]byte, 0, MaxUDP)
	r := Reply{Answers: 1, Answer: string(AppendTXT(nil, 30, "x"))}
	if n := testing.AllocsPerRun(100, func() {
		var q Query
		q.Parse(msg)
		q.Append(out, &r, q.Limit(false))
	}); n != 0 {
		t.Errorf("%v allocations", n)
	}
}

// A query that the oracle reads is read alike, and a question that is read here is one that the oracle
// reads.
func FuzzParse(f *testing.F) {
	m := question("Web.vip.internal.", dns.TypeSRV)
	f.Add(wire(f, m))
	m.SetEdns0(4096, true)
	f.Add(wire(f, m))
	m.Extra = append(m.Extra, &dns.TXT{Hdr: dns.RR_Header{Name: "web.vip.internal.", Rrtype: dns.TypeTXT, Class: 1}, Txt: []string{"x"}})
	m.Compress = true
	f.Add(wire(f, m))
	m.Question = append(m.Question, m.Question[0])
	f.Add(wire(f, m))
	f.Add([]byte("\x00\x00\x00\x00\x00\x01\x00\x00\x00\x00\x00\x00\xc0\x0c\x00\x01\x00\x01"))
	f.Fuzz(func(t *testing.T, msg []byte) {
		before := slices.Clone(msg)
		var q Query
		code, ok := q.Parse(msg)
		reply := Malformed(nil, msg)
		if ok {
			reply = q.Append(nil, &Reply{Code: code, Authoritative: true}, q.Limit(false))
		} else if len(reply) > 0 {
			t.Fatalf("%x gets no reply, and %x", msg, reply)
		}
		must.True(t, bytes.Equal(msg, before), "the query was changed")
		compareQuery(t, &q, code, ok, msg)
		if !ok {
			return
		}
		var got dns.Msg
		must.Succeed(t, got.Unpack(reply), "reply %x to %x", reply, msg)
		if got.Id != binary.BigEndian.Uint16(msg) || !got.Response || got.Rcode != int(code) || len(reply) > q.Limit(false) || len(reply) > len(msg)+optSize {
			t.Fatalf("reply %v to %x", &got, msg)
		}
		if d, err := Decode(reply); err != nil || d.Code != code || d.ID != got.Id {
			t.Fatalf("reply %x is decoded as %+v, %v", reply, d, err)
		}
	})
}

// compareQuery compares a parsed message with what the oracle reads.
func compareQuery(t *testing.T, q *Query, code Code, ok bool, msg []byte) {
	var want dns.Msg
	readable := want.Unpack(msg) == nil && len(want.Question) == 1 && !want.Response && want.Opcode == dns.OpcodeQuery &&
		int(binary.BigEndian.Uint16(msg[4:])) == 1 && // the oracle forgives wrong counts
		int(binary.BigEndian.Uint16(msg[6:])) == len(want.Answer) && int(binary.BigEndian.Uint16(msg[8:])) == len(want.Ns) && int(binary.BigEndian.Uint16(msg[10:])) == len(want.Extra)
	if readable {
		_, end, err := dns.UnpackDomainName(msg, headerSize)
		if len(msg) < end+4 {
			readable = false // the oracle forgives that the type is missing
		}
		if err != nil || end != headerSize+len(q.Name()) && ok && code == NoError {
			t.Fatalf("the name in %x ends at %d, not at %d", msg, headerSize+len(q.Name()), end)
		}
		opts := 0
		for _, rr := range want.Extra {
			if rr.Header().Rrtype == dns.TypeOPT {
				opts++
			}
		}
		pointer := hasPointer(msg)
		switch o := want.IsEdns0(); {
		case opts > 1 || pointer || !readable:
		case o != nil && (o.Hdr.Name != "." || o.Version() > 0):
		case code != NoError || !ok:
			t.Fatalf("%x: %s, %v; the oracle reads it", msg, code, ok)
		case q.edns != (o != nil) || o != nil && (q.size != o.UDPSize() || q.do != o.Do()):
			t.Fatalf("%x: EDNS %v, %d, %v; want %v", msg, q.edns, q.size, q.do, o)
		}
	}
	if ok && len(q.question) > 0 {
		alone := append(slices.Clone(msg[:4]), 0, 1, 0, 0, 0, 0, 0, 0)
		var one dns.Msg
		if err := one.Unpack(append(alone, q.question...)); err != nil || len(one.Question) != 1 {
			t.Fatalf("question %x: %v", q.question, err)
		}
		packed := make([]byte, 2*MaxName)
		n, err := dns.PackDomainName(strings.ToLower(one.Question[0].Name), packed, 0, nil, false)
		if err != nil || !bytes.Equal(packed[:n], q.Name()) {
			t.Fatalf("question %x: name %x, want %x, %v", q.question, q.Name(), packed[:n], err)
		}
		if one.Question[0].Qtype != uint16(q.Type) || one.Question[0].Qclass != q.class {
			t.Fatalf("question %x: %s of class %d, want %v", q.question, q.Type, q.class, one.Question[0])
		}
	}
}

// hasPointer reports whether the name of the question has a pointer, which only the oracle reads.
func hasPointer(msg []byte) bool {
	for at := headerSize; at < len(msg) && msg[at] != 0; at += 1 + int(msg[at]) {
		if msg[at] >= 0xc0 {
			return true
		}
	}
	return false
}
