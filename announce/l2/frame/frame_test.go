package frame

import (
	"bytes"
	"encoding/hex"
	"net/netip"
	"strings"
	"testing"

	"github.com/ironvip/ironvip/test/expect"
)

var (
	ours   = MAC{2, 0, 0, 0, 0, 1}
	theirs = MAC{2, 0, 0, 0, 0, 2}
	vip4   = netip.MustParseAddr("10.0.0.200")
	vip6   = netip.MustParseAddr("fd00::1:200")
	asker4 = netip.MustParseAddr("10.0.0.7")
	asker6 = netip.MustParseAddr("fe80::7")
)

// The bytes are those of the RFCs, written by hand.
func TestFormats(t *testing.T) {
	for _, tc := range []struct {
		name string
		got  []byte
		want string
	}{
		{"gratuitous ARP", AppendAnnounce(nil, ours, vip4),
			"ffffffffffff 020000000001 0806 0001 0800 06 04 0001 020000000001 0a0000c8 000000000000 0a0000c8"},
		{"ARP probe", AppendProbe(nil, ours, vip4),
			"ffffffffffff 020000000001 0806 0001 0800 06 04 0001 020000000001 00000000 000000000000 0a0000c8"},
		{"ARP reply", AppendAnswer(nil, ours, Claim{Addr: vip4, From: theirs, Kind: Question, Asker: asker4}),
			"020000000002 020000000001 0806 0001 0800 06 04 0002 020000000001 0a0000c8 020000000002 0a000007"},
		{"unsolicited advertisement", AppendAnnounce(nil, ours, vip6),
			"333300000001 020000000001 86dd 60000000 0020 3a ff fd000000000000000000000000010200 ff020000000000000000000000000001" +
				"88 00 SUM 20000000 fd000000000000000000000000010200 02 01 020000000001"},
		{"solicited advertisement", AppendAnswer(nil, ours, Claim{Addr: vip6, From: theirs, Kind: Question, Asker: asker6}),
			"020000000002 020000000001 86dd 60000000 0020 3a ff fd000000000000000000000000010200 fe800000000000000000000000000007" +
				"88 00 SUM 60000000 fd000000000000000000000000010200 02 01 020000000001"},
		{"answer to duplicate address detection", AppendAnswer(nil, ours, Claim{Addr: vip6, From: theirs, Kind: Probe}),
			"333300000001 020000000001 86dd 60000000 0020 3a ff fd000000000000000000000000010200 ff020000000000000000000000000001" +
				"88 00 SUM 20000000 fd000000000000000000000000010200 02 01 020000000001"},
		{"duplicate address detection", AppendProbe(nil, ours, vip6),
			"3333ff010200 020000000001 86dd 60000000 0018 3a ff 00000000000000000000000000000000 ff0200000000000000000001ff010200" +
				"87 00 SUM 00000000 fd000000000000000000000000010200"},
		{"verification", AppendVerify(nil, ours, asker6, vip6),
			"3333ff010200 020000000001 86dd 60000000 0020 3a ff fe800000000000000000000000000007 ff0200000000000000000001ff010200" +
				"87 00 SUM 00000000 fd000000000000000000000000010200 01 01 020000000001"},
		{"verification without an own address", AppendVerify(nil, ours, netip.Addr{}, vip6), ""},
	} {
		want := strings.ReplaceAll(tc.want, " ", "")
		got := hex.EncodeToString(tc.got)
		if at := strings.Index(want, "SUM"); at >= 0 && len(got) > at+4 {
			want = want[:at] + got[at:at+4] + want[at+3:]
			if src, dst := netip.AddrFrom16([16]byte(tc.got[22:38])), netip.AddrFrom16([16]byte(tc.got[38:54])); slowChecksum(src, dst, tc.got[54:]) != 0xffff {
				t.Errorf("%s: wrong checksum", tc.name)
			}
		}
		expect.Equal(t, got, want, "%s:\n got %s\nwant %s", tc.name, got, want)
	}
}

// slowChecksum sums a message with its pseudo header, which must give all ones.
func slowChecksum(src, dst netip.Addr, m []byte) uint16 {
	all := append(append(src.AsSlice(), dst.AsSlice()...), 0, 0, 0, byte(len(m)), 0, 0, 0, 58)
	all = append(all, m...)
	sum := 0
	for i := 0; i+1 < len(all); i += 2 {
		sum += int(all[i])<<8 + int(all[i+1])
		if sum > 0xffff {
			sum -= 0xffff
		}
	}
	return uint16(sum)
}

func TestClaims(t *testing.T) {
	question4 := AppendProbe(nil, theirs, vip4)
	copy(question4[28:], asker4.AsSlice())
	for _, tc := range []struct {
		name  string
		frame []byte
		want  []Claim
	}{
		{"gratuitous ARP", AppendAnnounce(nil, theirs, vip4), []Claim{{Addr: vip4, From: theirs, Kind: Holds}}},
		{"ARP question", question4, []Claim{{Addr: asker4, From: theirs, Kind: Holds}, {Addr: vip4, From: theirs, Kind: Question, Asker: asker4}}},
		{"ARP probe", AppendProbe(nil, theirs, vip4), []Claim{{Addr: vip4, From: theirs, Kind: Probe, Asker: netip.IPv4Unspecified()}}},
		{"ARP reply", AppendAnswer(nil, theirs, Claim{Addr: vip4, From: ours, Kind: Question, Asker: asker4}), []Claim{{Addr: vip4, From: theirs, Kind: Holds}}},
		{"padded", append(AppendAnnounce(nil, theirs, vip4), make([]byte, 18)...), []Claim{{Addr: vip4, From: theirs, Kind: Holds}}},
		{"advertisement", AppendAnnounce(nil, theirs, vip6), []Claim{{Addr: vip6, From: theirs, Kind: Holds}}},
		{"solicitation", AppendVerify(nil, theirs, asker6, vip6), []Claim{{Addr: vip6, From: theirs, Kind: Question, Asker: asker6}}},
		{"duplicate address detection", AppendProbe(nil, theirs, vip6), []Claim{{Addr: vip6, From: theirs, Kind: Probe, Asker: netip.IPv6Unspecified()}}},
		{"padded solicitation", append(AppendVerify(nil, theirs, asker6, vip6), 1, 2, 3), []Claim{{Addr: vip6, From: theirs, Kind: Question, Asker: asker6}}},
		{"short", AppendAnnounce(nil, theirs, vip4)[:40], nil},
		{"through a router", changed(AppendAnnounce(nil, theirs, vip6), 14+7, 254), nil},
		{"wrong checksum", changed(AppendAnnounce(nil, theirs, vip6), 60, 9), nil},
		{"another message", changed(AppendAnnounce(nil, theirs, vip6), 54, 128), nil},
		{"another hardware", changed(AppendAnnounce(nil, theirs, vip4), 15, 6), nil},
		{"another operation", changed(AppendAnnounce(nil, theirs, vip4), 21, 3), nil},
	} {
		got := claimsOf(tc.frame)
		expect.True(t, equal(got, tc.want), "%s: %+v, want %+v", tc.name, got, tc.want)
	}
}

func claimsOf(b []byte) (all []Claim) {
	two := ARPClaims(b)
	for _, c := range append(two[:], NDPClaim(b)) {
		if c.Kind != None {
			all = append(all, c)
		}
	}
	return all
}

func equal(a, b []Claim) bool {
	if len(a) != len(b) {
		return false
	}
	for i := range a {
		if a[i] != b[i] {
			return false
		}
	}
	return true
}

func changed(b []byte, at int, value byte) []byte {
	b = bytes.Clone(b)
	b[at] = value
	return b
}

// Any input gives claims of stations and unicast addresses, or nothing.
func FuzzClaims(f *testing.F) {
	for _, b := range [][]byte{
		AppendAnnounce(nil, ours, vip4), AppendProbe(nil, ours, vip4), AppendAnnounce(nil, ours, vip6), AppendProbe(nil, ours, vip6),
		AppendVerify(nil, ours, asker6, vip6), AppendAnswer(nil, ours, Claim{Addr: vip6, From: theirs, Kind: Question, Asker: asker6}),
	} {
		f.Add(b)
		f.Add(b[:len(b)-1])
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		for _, c := range claimsOf(b) {
			if !c.Addr.IsValid() || c.Kind > Holds {
				t.Errorf("%+v", c)
			}
			if c.Kind != Holds { // the answer says what was asked
				answer := AppendAnswer(nil, ours, c)
				if got := claimsOf(answer); len(got) != 1 || got[0] != (Claim{Addr: c.Addr, From: ours, Kind: Holds}) {
					t.Errorf("the answer to %+v says %+v", c, got)
				}
			}
		}
	})
}

// The checksum of a message with a correct checksum is 0, and what is sent is accepted.
func FuzzOwnFrames(f *testing.F) {
	f.Add([]byte{10, 0, 0, 1}, []byte{2, 0, 0, 0, 0, 9})
	f.Add(vip6.AsSlice(), []byte{0xff, 0xff, 0xff, 0xff, 0xff, 0xff})
	f.Fuzz(func(t *testing.T, addr, mac []byte) {
		a, ok := netip.AddrFromSlice(addr)
		if !ok || a.IsUnspecified() || a.IsMulticast() || len(mac) != 6 || MAC(mac) == (MAC{}) {
			return
		}
		got := claimsOf(AppendAnnounce(nil, MAC(mac), a))
		if want := (Claim{Addr: a, From: MAC(mac), Kind: Holds}); len(got) != 1 || got[0] != want {
			t.Errorf("%+v, want %+v", got, want)
		}
	})
}
