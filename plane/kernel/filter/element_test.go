package filter

import (
	"net/netip"
	"testing"

	"pgregory.net/rapid"

	"github.com/ironvip/ironvip/internal/nftwire"
	"github.com/ironvip/ironvip/vip"
)

func TestElementKeys(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		s := Set(rapid.IntRange(0, int(setPods)-1).Draw(t, "set"))
		b := rapid.SliceOfN(rapid.Byte(), 16, 16).Draw(t, "address")
		v4 := rapid.Bool().Draw(t, "v4")
		addr := func(b []byte) netip.Addr {
			if v4 {
				return netip.AddrFrom4([4]byte(b))
			}
			return netip.AddrFrom16([16]byte(b))
		}
		e := AddrElement(s, addr(b))
		switch s.Kind() {
		case kindListener, KindSource, KindPorts:
			e.Key.Port = rapid.Uint16Range(0, 65534).Draw(t, "port")
			e.Key.Protocol = vip.Protocol(rapid.ByteRange(1, 255).Draw(t, "protocol"))
		case KindMark, KindMarkSource:
			e.Key.Addr = unspecifiedOf(vip.FamilyOf(e.Key.Addr)) // sets of marks don't contain the address
		}
		if s.Kind() == KindPorts {
			e.Key.LastPort = rapid.Uint16Range(e.Key.Port+1, 65535).Draw(t, "last port")
		}
		if s == SetInternal || s == SetInternalRanges {
			e.Key.Audience = vip.InternalClients
		}
		if s.Kind() == KindSource || s.Kind() == KindMarkSource {
			from := addr(rapid.SliceOfN(rapid.Byte(), 16, 16).Draw(t, "source"))
			e.Source = netip.PrefixFrom(from, rapid.IntRange(0, from.BitLen()).Draw(t, "bits")).Masked()
		}
		if s.Kind() == KindProbe {
			backend, mark := addr(rapid.SliceOfN(rapid.Byte(), 16, 16).Draw(t, "backend")), ProbeMarkAt(rapid.Uint32Range(0, ProbeMarkCount-1).Draw(t, "mark"))
			e = ProbeElements(e.Key.Addr, backend, mark)[s-SetAnswers]
		}
		if s.HasMark() {
			e.Mark = MarkAt(rapid.Uint32Range(0, MarkCount-1).Draw(t, "mark"))
		}
		var x nftwire.Element
		EncodeElement(&x, &e)
		got, ok := DecodeElement(s, vip.FamilyOf(e.Key.Addr), &x)
		if !ok || got != e {
			t.Fatalf("%v is read as %v, %v", e, got, ok)
		}
	})
}

func FuzzDecodeElement(f *testing.F) {
	f.Add(uint8(SetFrontends), true, []byte{10, 0, 0, 1, 6, 0, 0, 0, 0, 80, 0, 0}, []byte{})
	f.Add(uint8(SetHairpin), false, make([]byte, 32), []byte{})
	f.Add(uint8(SetHairpin), false, []byte{1}, []byte{}) // of no address
	f.Add(uint8(SetSources), true, []byte{10, 0, 0, 1, 6, 0, 0, 0, 0, 80, 0, 0, 10, 0, 0, 0}, []byte{10, 0, 0, 1, 6, 0, 0, 0, 0, 80, 0, 0, 10, 255, 255, 255})
	f.Fuzz(func(t *testing.T, set uint8, v4 bool, key, end []byte) {
		s, fam := Set(set%uint8(setPods)), vip.IPv6
		if v4 {
			fam = vip.IPv4
		}
		e, ok := DecodeElement(s, fam, &nftwire.Element{Key: key, End: end})
		if !ok {
			return
		}
		var again nftwire.Element
		if EncodeElement(&again, &e); len(again.Key) != len(key) {
			t.Errorf("%x is read as %v", key, e)
		}
	})
}

func TestLayoutIsWhole(t *testing.T) {
	for _, l := range layouts() {
		chains := map[string]bool{}
		for _, c := range l.chains {
			chains[c.Name] = true
		}
		for _, r := range l.rules {
			if !chains[r.chain] {
				t.Errorf("rule %q is in no chain: %q", r.comment, r.chain)
			}
			if n := len(newLayout("ironvip").userData(r)); n > 128 {
				t.Errorf("the comment of %q takes %d bytes, the kernel keeps 256 and nft shows 128", r.comment, n)
			}
		}
	}
}

// Each mark has its number, and is either of frontends or of probes.
func TestMarks(t *testing.T) {
	for i := range uint32(MarkCount) {
		if m := MarkAt(i); !IsMark(m) || IsProbeMark(m) || IndexOfMark(m) != i {
			t.Fatalf("mark %d of frontends is %#x: %v, %v, number %d", i, m, IsMark(m), IsProbeMark(m), IndexOfMark(m))
		}
	}
	for i := range uint32(ProbeMarkCount) {
		if m := ProbeMarkAt(i); IsMark(m) || !IsProbeMark(m) || IndexOfProbeMark(m) != i {
			t.Fatalf("mark %d of probes is %#x: %v, %v, number %d", i, m, IsMark(m), IsProbeMark(m), IndexOfProbeMark(m))
		}
	}
	for _, m := range []uint32{0, 0x1000, 0x7f, 0x4000, 0x80001000, 0x80000080, 0x81800000} {
		if IsMark(m) || IsProbeMark(m) {
			t.Errorf("%#x is of another program", m)
		}
	}
}
