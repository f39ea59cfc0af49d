package message_test

import (
	"fmt"
	"net/netip"
	"slices"
	"testing"

	"github.com/ironvip/ironvip/announce/bgp/bgptest"
	"github.com/ironvip/ironvip/announce/bgp/message"
)

func prefix(s string) netip.Prefix { return netip.MustParsePrefix(s) }

var nextHops = [message.Families]netip.Addr{netip.MustParseAddr("10.0.0.2"), netip.MustParseAddr("fd00::2")}

func TestAttributes(t *testing.T) {
	const mpReachNLRI = 14
	some := []message.Community{65010<<16 | 100}
	large := []message.LargeCommunity{{4200000000, 1, 2}, {65010, 0, 4294967295}}
	type attributes = message.PathAttributes
	for _, c := range []struct {
		name string
		a    attributes
		as4  bool
		f    message.Family
		want map[byte]string
	}{
		{"eBGP", attributes{ASN: 4200000000, LocalPref: 100}, true, message.IPv4, map[byte]string{1: "40 00", 2: "40 0201fa56ea00", 3: "40 0a000002"}},
		{"eBGP with everything", attributes{ASN: 4200000000, MED: 7, LocalPref: 300, Communities: append(some, 0xffff0000)}, true, message.IPv4,
			map[byte]string{1: "40 00", 2: "40 0201fa56ea00", 3: "40 0a000002", 4: "80 00000007", 8: "d0 fdf20064ffff0000"}},
		{"peer with 2-byte ASNs", attributes{ASN: 4200000000}, false, message.IPv4,
			map[byte]string{1: "40 00", 2: "40 02015ba0", 3: "40 0a000002", 17: "c0 0201fa56ea00"}},
		{"2-byte ASN", attributes{ASN: 65010}, false, message.IPv4, map[byte]string{1: "40 00", 2: "40 0201fdf2", 3: "40 0a000002"}},
		{"iBGP", attributes{ASN: 65010, IBGP: true, LocalPref: 100}, true, message.IPv4, map[byte]string{1: "40 00", 2: "40 ", 3: "40 0a000002", 5: "40 00000064"}},
		{"iBGP with everything", attributes{ASN: 65010, IBGP: true, MED: 7, LocalPref: 300, Communities: some}, true, message.IPv4,
			map[byte]string{1: "40 00", 2: "40 ", 3: "40 0a000002", 4: "80 00000007", 5: "40 0000012c", 8: "d0 fdf20064"}},
		// RFC 8092, 3: the flags are optional and transitive, and each community has 12 bytes.
		{"large communities", attributes{ASN: 65010, LargeCommunities: large}, true, message.IPv4,
			map[byte]string{1: "40 00", 2: "40 02010000fdf2", 3: "40 0a000002", 32: "d0 fa56ea000000000100000002" + "0000fdf200000000ffffffff"}},
		{"prepended", attributes{ASN: 65010, Prepend: 2}, true, message.IPv4, map[byte]string{1: "40 00", 2: "40 02030000fdf20000fdf20000fdf2", 3: "40 0a000002"}},
		{"prepended for a peer with 2-byte ASNs", attributes{ASN: 4200000000, Prepend: 1}, false, message.IPv4,
			map[byte]string{1: "40 00", 2: "40 02025ba05ba0", 3: "40 0a000002", 17: "c0 0202fa56ea00fa56ea00"}},
		{"prepended in the AS", attributes{ASN: 65010, IBGP: true, Prepend: 2}, true, message.IPv4, map[byte]string{1: "40 00", 2: "40 ", 3: "40 0a000002", 5: "40 00000000"}},
		// RFC 10005: type 0x00 or 0x40, subtype 0x04, the ASN in two bytes, bytes per second in IEEE 754: 125000 is 0x47f42400.
		{"link bandwidth", attributes{ASN: 65010, LinkBandwidth: 125000}, true, message.IPv4,
			map[byte]string{1: "40 00", 2: "40 02010000fdf2", 3: "40 0a000002", 16: "c0 0004fdf247f42400"}},
		{"link bandwidth in the AS", attributes{ASN: 4200000000, IBGP: true, LocalPref: 100, LinkBandwidth: 375000}, true, message.IPv4,
			map[byte]string{1: "40 00", 2: "40 ", 3: "40 0a000002", 5: "40 00000064", 16: "c0 40045ba048b71b00"}},
		{"IPv6", attributes{ASN: 65010, IBGP: true, LocalPref: 100}, true, message.IPv6, map[byte]string{1: "40 00", 2: "40 ", 5: "40 00000064",
			mpReachNLRI: "90 00020110fd0000000000000000000000000000020080fd960000000000000000000000000001"}},
	} {
		p := prefix("10.96.0.1/32")
		if c.f == message.IPv6 {
			p = prefix("fd96::1/128")
		}
		all := bgptest.Decode(t, message.AppendAnnounce(nil, c.f, c.a.Append(nil, c.as4), nextHops[c.f], []netip.Prefix{p}))
		if len(all) != 1 || fmt.Sprint(all[0].Attributes) != fmt.Sprint(c.want) || fmt.Sprint(all[0].Announced) != fmt.Sprintf("[%s]", p) {
			t.Errorf("%s: %+v, want %v", c.name, all, c.want)
		}
		if c.f == message.IPv4 && !slices.IsSorted(all[0].Order[:len(all[0].Order)-1]) { // the next hop comes last
			t.Errorf("%s: attributes in the order %v", c.name, all[0].Order)
		}
		if c.f == message.IPv6 && all[0].Order[0] != mpReachNLRI {
			t.Errorf("%s: attributes in the order %v", c.name, all[0].Order)
		}
	}
}

// The largest attributes that the configuration allows leave room for a prefix.
func TestLargestAttributes(t *testing.T) {
	a := message.PathAttributes{ASN: 4200000000, Prepend: 32, MED: 1, LinkBandwidth: 1}
	for i := range 64 {
		if err := a.AddCommunity(fmt.Sprintf("4200000000:%d:1", i)); err != nil {
			t.Fatal(err)
		}
	}
	for _, as4 := range []bool{true, false} {
		all := bgptest.Decode(t, message.AppendAnnounce(nil, message.IPv6, a.Append(nil, as4), nextHops[message.IPv6], []netip.Prefix{prefix("fd96::1/128")}))
		if len(all) != 1 || len(all[0].Attributes[32]) != len("d0 ")+2*12*64 || len(all[0].Attributes[2]) < 2*(2+2*33) {
			t.Errorf("as4 %t: %+v", as4, all)
		}
	}
}

// Every prefix is in exactly one message, and the messages are as full as they can be.
func TestPacking(t *testing.T) {
	v4, v6 := netip.MustParseAddr("10.0.0.2"), netip.MustParseAddr("fe80::2")
	for _, c := range []struct {
		name     string
		hops     [message.Families]netip.Addr
		f        message.Family
		n        int
		announce int // messages
		withdraw int
	}{
		{"IPv4", [message.Families]netip.Addr{v4, v6}, message.IPv4, 10000, 13, 13},
		{"IPv4 with an IPv6 next hop", [message.Families]netip.Addr{v6, v6}, message.IPv4, 10000, 13, 13},
		{"IPv6", [message.Families]netip.Addr{v4, v6}, message.IPv6, 10000, 43, 42},
		{"one", [message.Families]netip.Addr{v4, v6}, message.IPv4, 1, 1, 1},
		{"none", [message.Families]netip.Addr{v4, v6}, message.IPv4, 0, 0, 0},
	} {
		want := map[netip.Prefix]bool{}
		var ps []netip.Prefix
		for i := range c.n {
			a := netip.AddrFrom4([4]byte{10, 96, byte(i >> 8), byte(i)})
			if c.f == message.IPv6 {
				a = netip.AddrFrom16([16]byte{0xfd, 14: byte(i >> 8), 15: byte(i)})
			}
			ps = append(ps, netip.PrefixFrom(a, a.BitLen()))
			want[ps[i]] = true
		}
		attributes := (&message.PathAttributes{ASN: 2, Communities: []message.Community{1, 2, 3}}).Append(nil, true)
		for withdraw, messages := range map[bool]int{false: c.announce, true: c.withdraw} {
			var b []byte
			if withdraw {
				b = message.AppendWithdraw(nil, c.f, c.hops[c.f], ps)
			} else {
				b = message.AppendAnnounce(nil, c.f, attributes, c.hops[c.f], ps)
			}
			all := bgptest.Decode(t, b)
			seen := map[netip.Prefix]bool{}
			for _, d := range all {
				for _, p := range append(d.Announced, d.Withdrawn...) {
					if seen[p] || !want[p] {
						t.Errorf("%s: %v is unexpected", c.name, p)
					}
					seen[p] = true
				}
				if (len(d.Announced) > 0) == withdraw || !withdraw && d.NextHop != c.hops[c.f] {
					t.Errorf("%s: withdraw %t, announced %d, next hop %v", c.name, withdraw, len(d.Announced), d.NextHop)
				}
			}
			if len(seen) != c.n || len(all) != messages {
				t.Errorf("%s: withdraw %t: %d prefixes in %d messages, want %d in %d", c.name, withdraw, len(seen), len(all), c.n, messages)
			}
		}
	}
}

func TestPrefixesOfAllLengths(t *testing.T) {
	attributes := (&message.PathAttributes{ASN: 2}).Append(nil, true)
	for _, a := range []netip.Addr{netip.MustParseAddr("203.0.113.255"), netip.MustParseAddr("fdff:ffff:ffff:ffff:ffff:ffff:ffff:ffff")} {
		for bits := range a.BitLen() + 1 {
			p := netip.PrefixFrom(a, bits).Masked()
			if all := bgptest.Decode(t, message.AppendAnnounce(nil, message.FamilyOf(p), attributes, nextHops[message.FamilyOf(p)], []netip.Prefix{p})); all[0].Announced[0] != p {
				t.Errorf("%v becomes %v", p, all[0].Announced)
			}
		}
	}
}
