package bgp

import (
	"bufio"
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net/netip"
	"strings"
	"testing"
	"time"
)

func prefix(s string) netip.Prefix { return netip.MustParsePrefix(s) }

func TestReadMessage(t *testing.T) {
	ff := strings.Repeat("\xff", 16)
	for _, c := range []struct {
		name, in     string
		typ          messageType
		code, sub    uint8
		data, failed string
	}{
		{"keepalive", ff + "\x00\x13\x04", typeKeepalive, 0, 0, "", ""},
		{"skipped update", ff + "\x00\x17\x02\x00\x00\x00\x00", typeUpdate, 0, 0, "", ""},
		{"marker", "\xfe" + ff[1:] + "\x00\x13\x04", 0, codeHeader, headerNotSynchronized, "", ""},
		{"long keepalive", ff + "\x00\x14\x04\x00", 0, codeHeader, headerBadLength, "\x00\x14", ""},
		{"short", ff + "\x00\x12\x04", 0, codeHeader, headerBadLength, "\x00\x12", ""},
		{"short open", ff + "\x00\x1c\x01", 0, codeHeader, headerBadLength, "\x00\x1c", ""},
		{"oversized", ff + "\x10\x01\x02", 0, codeHeader, headerBadLength, "\x10\x01", ""},
		{"type 0", ff + "\x00\x13\x00", 0, codeHeader, headerBadType, "\x00", ""},
		{"type 6", ff + "\x00\x13\x06", 0, codeHeader, headerBadType, "\x06", ""},
		{"end", "", 0, 0, 0, "", "EOF"},
		{"reset in the middle", ff + "\x00\x30\x02\x00", 0, 0, 0, "", "in the middle of an UPDATE"},
	} {
		typ, _, err := readMessage(bufio.NewReader(strings.NewReader(c.in)), make([]byte, maxMessage))
		var n *notification
		switch {
		case c.code != 0 && (!errors.As(err, &n) || n.code != c.code || n.subcode != c.sub || string(n.data) != c.data):
			t.Errorf("%s: %#v, want notification %d/%d %x", c.name, err, c.code, c.sub, c.data)
		case c.code == 0 && (err == nil) != (c.failed == "") || c.failed != "" && !strings.Contains(err.Error(), c.failed):
			t.Errorf("%s: error %v, want %q", c.name, err, c.failed)
		case typ != c.typ:
			t.Errorf("%s: %v", c.name, typ)
		}
	}
}

var sampleOpen = open{asn: 4200000000, holdTime: 90 * time.Second, id: netip.MustParseAddr("10.0.0.2"), families: [families]bool{true, true},
	refresh: true, nextHop6: true, restart: true, restarted: true, restartTime: 120 * time.Second}

func TestOpen(t *testing.T) {
	b := sampleOpen.append(nil)
	// RFC 4271, 4.2; the capabilities by their RFCs.
	const want = "\x04\x5b\xa0\x00\x5a\x0a\x00\x00\x02\x2a\x02\x28" + "\x01\x04\x00\x01\x00\x01" + "\x01\x04\x00\x02\x00\x01" + "\x02\x00" +
		"\x05\x06\x00\x01\x00\x01\x00\x02" + "\x41\x04\xfa\x56\xea\x00" + "\x40\x0a\x80\x78\x00\x01\x01\x80\x00\x02\x01\x80"
	if got := string(b[headerSize:]); got != want {
		t.Errorf("OPEN\n%x, want\n%x", got, want)
	}
	if int(binary.BigEndian.Uint16(b[16:])) != len(b) {
		t.Error("wrong length")
	}
	o, err := parseOpen(b[headerSize:])
	parsed := sampleOpen
	parsed.multi, parsed.as4 = true, true
	if err != nil || o != parsed {
		t.Errorf("parsed %+v, %v", o, err)
	}
}

func TestParseOpenVariants(t *testing.T) {
	const head = "\x04\xfd\xe8\x00\x5a\x0a\x00\x00\x01"
	for _, c := range []struct {
		name, in string
		sub      int // of the notification, -1: none
		check    func(open) bool
	}{
		{"no capabilities", head + "\x00", -1, func(o open) bool { return o.families == [families]bool{true, false} && o.asn == 65000 && !o.as4 }},
		{"IPv6 only", head + "\x08\x02\x06\x01\x04\x00\x02\x00\x01", -1, func(o open) bool { return o.families == [families]bool{false, true} }},
		{"foreign family", head + "\x08\x02\x06\x01\x04\x40\x04\x00\x47", -1, func(o open) bool { return o.families == [families]bool{} }},
		{"two parameters", head + "\x08\x02\x02\x02\x00\x02\x02\x46\x00", -1, func(o open) bool { return o.refresh }},
		{"extended length", head + "\xff\xff\x00\x05\x02\x00\x02\x02\x00", -1, func(o open) bool { return o.refresh }},
		{"restart without families", head + "\x06\x02\x04\x40\x02\x00\x78", -1, func(o open) bool { return o.restart && !o.restarted && o.restartTime == 2*time.Minute }},
		{"version 3", "\x03" + head[1:] + "\x00", openVersion, nil},
		{"cut", head, 0, nil},
		{"length of the parameters", head + "\x01", 0, nil},
		{"parameter too long", head + "\x02\x02\x01", 0, nil},
		{"capability too long", head + "\x04\x02\x02\x02\x01", 0, nil},
		{"family of 3 bytes", head + "\x07\x02\x05\x01\x03\x00\x02\x00", 0, nil},
		{"ASN of 2 bytes", head + "\x06\x02\x04\x41\x02\x00\x01", 0, nil},
		{"restart of 1 byte", head + "\x05\x02\x03\x40\x01\x00", 0, nil},
		{"next hop of 5 bytes", head + "\x09\x02\x07\x05\x05\x00\x01\x00\x01\x00", 0, nil},
		{"unknown parameter", head + "\x02\x01\x00", openParameter, nil},
	} {
		o, err := parseOpen([]byte(c.in))
		var n *notification
		if c.sub < 0 {
			if err != nil || !c.check(o) {
				t.Errorf("%s: %+v, %v", c.name, o, err)
			}
		} else if !errors.As(err, &n) || n.code != codeOpen || int(n.subcode) != c.sub {
			t.Errorf("%s: %v, want a notification %d/%d", c.name, err, codeOpen, c.sub)
		}
	}
}

func TestCheckOpen(t *testing.T) {
	id := netip.MustParseAddr("10.0.0.9")
	for _, c := range []struct {
		name   string
		o      open
		asn    uint32
		sub    uint8
		reason string
	}{
		{"fine", open{asn: 1, id: id, holdTime: 90 * time.Second}, 1, 0, ""},
		{"no hold timer", open{asn: 1, id: id}, 1, 0, ""},
		{"ASN", open{asn: 2, id: id}, 1, openBadAS, "ASN wrong: the router has ASN 2, the configuration has 1"},
		{"router ID 0", open{asn: 1, id: netip.IPv4Unspecified()}, 1, openBadID, "router ID wrong"},
		{"our router ID in another AS", open{asn: 1, id: netip.MustParseAddr("10.0.0.2")}, 1, 0, ""},
		{"our router ID in our AS", open{asn: 65010, id: netip.MustParseAddr("10.0.0.2")}, 65010, openBadID, "router ID wrong"},
		{"hold time", open{asn: 1, id: id, holdTime: 2 * time.Second}, 1, openHoldTime, "unacceptable hold time"},
	} {
		err := c.o.check(&Peer{ASN: c.asn, LocalASN: 65010}, netip.MustParseAddr("10.0.0.2"))
		var n *notification
		if (err != nil) != (c.sub != 0) || err != nil && (!errors.As(err, &n) || n.subcode != c.sub || !strings.Contains(err.Error(), c.reason)) {
			t.Errorf("%s: %v", c.name, err)
		}
	}
}

// decoded is what an independent reading of an UPDATE gives.
type decoded struct {
	announced, withdrawn []netip.Prefix
	attributes           map[byte]string
	nextHop              netip.Addr
	order                []byte
}

func decode(t testing.TB, stream []byte) (all []decoded) {
	t.Helper()
	take := func(b *[]byte, n int) []byte {
		if n > len(*b) {
			t.Fatalf("%d bytes missing", n-len(*b))
		}
		head := (*b)[:n]
		*b = (*b)[n:]
		return head
	}
	size := func(b *[]byte) int { return int(binary.BigEndian.Uint16(take(b, 2))) }
	list := func(b []byte, v6 bool) (ps []netip.Prefix) {
		for len(b) > 0 {
			bits := int(take(&b, 1)[0])
			raw := make([]byte, 4)
			if v6 {
				raw = make([]byte, 16)
			}
			copy(raw, take(&b, (bits+7)/8))
			a, _ := netip.AddrFromSlice(raw)
			ps = append(ps, netip.PrefixFrom(a, bits))
		}
		return ps
	}
	r := bufio.NewReader(bytes.NewReader(stream))
	for {
		typ, b, err := readMessage(r, make([]byte, maxMessage))
		if err == io.EOF {
			return all
		}
		if err != nil || typ != typeUpdate {
			t.Fatal(typ, err)
		}
		d := decoded{attributes: map[byte]string{}}
		d.withdrawn = list(take(&b, size(&b)), false)
		attrs := take(&b, size(&b))
		d.announced = list(b, false)
		for len(attrs) > 0 {
			head := take(&attrs, 2)
			n := 0
			if head[0]&flagLong != 0 {
				n = size(&attrs)
			} else {
				n = int(take(&attrs, 1)[0])
			}
			value := take(&attrs, n)
			d.order = append(d.order, head[1])
			d.attributes[head[1]] = fmt.Sprintf("%02x %x", head[0], value)
			switch head[1] {
			case attrNextHop:
				d.nextHop = netip.AddrFrom4([4]byte(value))
			case attrReach:
				v6 := take(&value, 3)[1] == 2
				d.nextHop, _ = netip.AddrFromSlice(take(&value, int(take(&value, 1)[0])))
				take(&value, 1)
				d.announced = append(d.announced, list(value, v6)...)
			case attrUnreach:
				v6 := take(&value, 3)[1] == 2
				d.withdrawn = append(d.withdrawn, list(value, v6)...)
			}
		}
		all = append(all, d)
	}
}

func TestAttributes(t *testing.T) {
	hops := [families]netip.Addr{netip.MustParseAddr("10.0.0.2"), netip.MustParseAddr("fd00::2")}
	ebgp, ibgp := Peer{ASN: 65000, LocalASN: 4200000000}, Peer{ASN: 65010, LocalASN: 65010}
	some := Attributes{Communities: []Community{65010<<16 | 100}, MED: 7, LocalPref: 300}
	for _, c := range []struct {
		name      string
		p         Peer
		a         Attributes
		as4, down bool
		f         family
		want      map[byte]string
	}{
		{"eBGP", ebgp, Attributes{}, true, false, ip4, map[byte]string{1: "40 00", 2: "40 0201fa56ea00", 3: "40 0a000002"}},
		{"eBGP with everything", ebgp, some, true, true, ip4, map[byte]string{1: "40 00", 2: "40 0201fa56ea00", 3: "40 0a000002", 4: "80 00000007",
			8: "d0 fdf20064ffff0000"}},
		{"peer with 2-byte ASNs", ebgp, Attributes{}, false, false, ip4, map[byte]string{1: "40 00", 2: "40 02015ba0", 3: "40 0a000002", 17: "c0 0201fa56ea00"}},
		{"2-byte ASN", Peer{ASN: 1, LocalASN: 65010}, Attributes{}, false, false, ip4, map[byte]string{1: "40 00", 2: "40 0201fdf2", 3: "40 0a000002"}},
		{"iBGP", ibgp, Attributes{}, true, false, ip4, map[byte]string{1: "40 00", 2: "40 ", 3: "40 0a000002", 5: "40 00000064"}},
		{"iBGP with everything", ibgp, some, true, false, ip4, map[byte]string{1: "40 00", 2: "40 ", 3: "40 0a000002", 4: "80 00000007", 5: "40 0000012c", 8: "d0 fdf20064"}},
		{"iBGP draining", ibgp, some, true, true, ip4, map[byte]string{1: "40 00", 2: "40 ", 3: "40 0a000002", 4: "80 00000007", 5: "40 00000000", 8: "d0 fdf20064ffff0000"}},
		{"IPv6", ibgp, Attributes{}, true, false, ip6, map[byte]string{1: "40 00", 2: "40 ", 5: "40 00000064",
			14: "90 00020110fd0000000000000000000000000000020080fd960000000000000000000000000001"}},
	} {
		a := c.a
		p := prefix("10.96.0.1/32")
		if c.f == ip6 {
			p = prefix("fd96::1/128")
		}
		e := newEncoder(&c.p, &a, c.as4, c.down, hops)
		all := decode(t, e.announce(nil, c.f, []netip.Prefix{p}))
		if len(all) != 1 || fmt.Sprint(all[0].attributes) != fmt.Sprint(c.want) || fmt.Sprint(all[0].announced) != fmt.Sprintf("[%s]", p) {
			t.Errorf("%s: %+v, want %v", c.name, all, c.want)
		}
		if c.f == ip6 && all[0].order[0] != attrReach {
			t.Errorf("%s: attributes in the order %v", c.name, all[0].order)
		}
		if fmt.Sprint(a) != fmt.Sprint(c.a) {
			t.Errorf("%s: the settings were changed to %+v", c.name, a)
		}
	}
}

// Every prefix is in exactly one message, and the messages are as full as they can be.
func TestPacking(t *testing.T) {
	v4, v6 := netip.MustParseAddr("10.0.0.2"), netip.MustParseAddr("fe80::2")
	for _, c := range []struct {
		name     string
		hops     [families]netip.Addr
		f        family
		n        int
		announce int // messages
		withdraw int
	}{
		{"IPv4", [families]netip.Addr{v4, v6}, ip4, 10000, 13, 13},
		{"IPv4 with an IPv6 next hop", [families]netip.Addr{v6, v6}, ip4, 10000, 13, 13},
		{"IPv6", [families]netip.Addr{v4, v6}, ip6, 10000, 43, 42},
		{"one", [families]netip.Addr{v4, v6}, ip4, 1, 1, 1},
		{"none", [families]netip.Addr{v4, v6}, ip4, 0, 0, 0},
	} {
		want := map[netip.Prefix]bool{}
		var ps []netip.Prefix
		for i := range c.n {
			a := netip.AddrFrom4([4]byte{10, 96, byte(i >> 8), byte(i)})
			if c.f == ip6 {
				a = netip.AddrFrom16([16]byte{0xfd, 14: byte(i >> 8), 15: byte(i)})
			}
			ps = append(ps, netip.PrefixFrom(a, a.BitLen()))
			want[ps[i]] = true
		}
		e := newEncoder(&Peer{ASN: 1, LocalASN: 2}, &Attributes{Communities: []Community{1, 2, 3}}, true, false, c.hops)
		for withdraw, messages := range map[bool]int{false: c.announce, true: c.withdraw} {
			var b []byte
			if withdraw {
				b = e.withdraw(nil, c.f, ps)
			} else {
				b = e.announce(nil, c.f, ps)
			}
			all := decode(t, b)
			seen := map[netip.Prefix]bool{}
			for _, d := range all {
				for _, p := range append(d.announced, d.withdrawn...) {
					if seen[p] || !want[p] {
						t.Errorf("%s: %v is unexpected", c.name, p)
					}
					seen[p] = true
				}
				if (len(d.announced) > 0) == withdraw || !withdraw && d.nextHop != c.hops[c.f] {
					t.Errorf("%s: withdraw %t, announced %d, next hop %v", c.name, withdraw, len(d.announced), d.nextHop)
				}
			}
			if len(seen) != c.n || len(all) != messages {
				t.Errorf("%s: withdraw %t: %d prefixes in %d messages, want %d in %d", c.name, withdraw, len(seen), len(all), c.n, messages)
			}
		}
	}
}

func TestPrefixesOfAllLengths(t *testing.T) {
	e := newEncoder(&Peer{ASN: 1, LocalASN: 2}, &Attributes{}, true, false, [families]netip.Addr{netip.MustParseAddr("10.0.0.2"), netip.MustParseAddr("fd00::2")})
	for _, a := range []netip.Addr{netip.MustParseAddr("203.0.113.255"), netip.MustParseAddr("fdff:ffff:ffff:ffff:ffff:ffff:ffff:ffff")} {
		for bits := range a.BitLen() + 1 {
			p := netip.PrefixFrom(a, bits).Masked()
			if all := decode(t, e.announce(nil, familyOfPrefix(p), []netip.Prefix{p})); all[0].announced[0] != p {
				t.Errorf("%v becomes %v", p, all[0].announced)
			}
		}
	}
}

// The reasons of NOTIFICATION messages in words.
func TestReasons(t *testing.T) {
	for _, c := range []struct{ body, want string }{
		{"\x02\x02", "ASN wrong: the router expects another ASN than 65010 from this host"},
		{"\x02\x03", "router ID wrong: the router rejects 10.0.0.2, which is its own or not valid"},
		{"\x02\x07\x01", "the router ended the session: OPEN message error: unsupported capability"},
		{"\x04\x00", "hold timer expired: the router received nothing from this host within the hold time"},
		{"\x06\x01\x00\x02\x01\x00\x00\x00\x64", "maximum prefixes exceeded: the router accepts 100 IPv6 prefixes"},
		{"\x06\x01", "maximum prefixes exceeded: this host announces more than the router accepts"},
		{"\x06\x02\x05hello", `the router has shut the session down: "hello"`},
		{"\x06\x02\x05he\x1b\x0ao", `the router has shut the session down: "he  o"`},
		{"\x06\x02\x06hello", "the router has shut the session down"},
		{"\x06\x02\x02\xff\xfe", "the router has shut the session down"},
		{"\x06\x03", "the router no longer has this host as a neighbor"},
		{"\x06\x05", "connection rejected by the router: it has no matching neighbor, or the neighbor is disabled"},
		{"\x06\x0a", "the router ended the session: its BFD session is down"},
		{"\x06\x63", "the router ended the session: cease, subcode 99"},
		{"\x03\x0b", "the router ended the session: UPDATE message error: malformed AS_PATH"},
		{"\x63\x01", "the router ended the session: code 99, subcode 1"},
		{"\x00\x00", "the router ended the session: code 0"},
	} {
		got := parseNotification([]byte(c.body)).received(&Peer{LocalASN: 65010}, "10.0.0.2")
		if got != c.want {
			t.Errorf("%x: %q, want %q", c.body, got, c.want)
		}
	}
}

func TestParseCommunity(t *testing.T) {
	for _, c := range []struct {
		in   string
		want Community
		ok   bool
	}{{"65010:100", 65010<<16 | 100, true}, {"no-export", 0xffffff01, true}, {"graceful-shutdown", GracefulShutdown, true}, {"0:0", 0, true},
		{"65536:1", 0, false}, {"1:65536", 0, false}, {"1", 0, false}, {"1:2:3", 0, false}, {"", 0, false}, {"-1:2", 0, false}} {
		got, err := ParseCommunity(c.in)
		if got != c.want || (err == nil) != c.ok {
			t.Errorf("%q: %v, %v", c.in, got, err)
		}
	}
}

func FuzzReadMessage(f *testing.F) {
	f.Add(sampleOpen.append(nil))
	f.Add(appendKeepalive(appendEndOfRIB(nil, ip6)))
	f.Add((&notification{code: 6, subcode: 2, data: []byte("\x05hello")}).append(nil))
	f.Fuzz(func(t *testing.T, in []byte) {
		r, buf := bufio.NewReader(bytes.NewReader(in)), make([]byte, maxMessage)
		for {
			typ, body, err := readMessage(r, buf)
			if err != nil {
				return
			}
			switch typ {
			case typeOpen:
				parseOpen(body)
			case typeNotification:
				if s := parseNotification(body).received(&Peer{}, ""); s == "" {
					t.Error("no reason")
				}
			}
		}
	})
}

func FuzzParseOpen(f *testing.F) {
	f.Add(sampleOpen.append(nil)[headerSize:])
	f.Fuzz(func(t *testing.T, in []byte) {
		o, err := parseOpen(in)
		if err != nil {
			return
		}
		again, err := parseOpen(o.append(nil)[headerSize:])
		if err != nil || again.asn != o.asn || again.restart != o.restart || again.refresh != o.refresh || again.nextHop6 != o.nextHop6 {
			t.Errorf("%+v becomes %+v, %v", o, again, err)
		}
	})
}

func FuzzDiscovery(f *testing.F) {
	f.Add(advertisement(), []byte{})
	f.Fuzz(func(t *testing.T, b, oob []byte) {
		accept(b, netip.MustParseAddr("fe80::1"), 255)
		hopLimit(oob)
	})
}

func TestAcceptsAdvertisements(t *testing.T) {
	link, global := netip.MustParseAddr("fe80::1%eth0"), netip.MustParseAddr("fd00::1")
	for _, c := range []struct {
		name  string
		b     []byte
		from  netip.Addr
		limit int
		want  int
	}{
		{"advertisement", advertisement(), link, 255, icmpAdvertisement},
		{"solicitation", solicitation(), link, 255, icmpSolicitation},
		{"forwarded", advertisement(), link, 254, 0},
		{"not link-local", advertisement(), global, 255, 0},
		{"short", advertisement()[:15], link, 255, 0},
		{"code 1", append([]byte{icmpAdvertisement, 1}, make([]byte, 14)...), link, 255, 0},
		{"empty", nil, link, 255, 0},
	} {
		if got := accept(c.b, c.from, c.limit); got != c.want {
			t.Errorf("%s: %d, want %d", c.name, got, c.want)
		}
	}
}
