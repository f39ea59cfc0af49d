package ipvs

import (
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"testing"

	"github.com/ironvip/ironvip/vip"
	"go4.org/netipx"
	"pgregory.net/rapid"
)

var testPods = podSet([]netip.Prefix{netip.MustParsePrefix("10.1.0.0/30"), netip.MustParsePrefix("fd01::/120")})

func drawFrontend(t *rapid.T, key vip.FrontendKey) *vip.Frontend {
	f := &vip.Frontend{Key: key, Kind: vip.OnVIP, Scheduler: vip.RoundRobin}
	f.Masquerade = rapid.SampledFrom([]vip.Masquerade{vip.MasqueradeAuto, vip.MasqueradeAlways, vip.MasqueradeNever}).Draw(t, "masquerade")
	if rapid.Bool().Draw(t, "node port") {
		f.Kind = vip.OnHost
	}
	base := netip.MustParseAddr("10.1.0.0")
	if key.Addr.Is6() {
		base = netip.MustParseAddr("fd01::")
	}
	for range rapid.IntRange(0, 5).Draw(t, "backends") {
		for port := range uint16(2) {
			f.Backends = append(f.Backends, vip.Endpoint{
				Addr: netip.AddrPortFrom(base, 80+port), Weight: rapid.Uint32Range(0, 1).Draw(t, "weight"),
			})
		}
		base = base.Next()
	}
	return f
}

// needed is the plain statement of which elements a set of frontends needs.
func needed(all map[vip.FrontendKey]*vip.Frontend) map[element]bool {
	out := map[element]bool{}
	for k, f := range all {
		usable := false
		for _, b := range f.Backends {
			usable = usable || b.Weight > 0
			if f.Kind == vip.OnVIP && f.Masquerade == vip.MasqueradeAuto && testPods.Contains(b.Addr.Addr()) {
				out[addrElement(setHairpin, b.Addr.Addr())] = true
			}
		}
		if f.Kind == vip.OnVIP {
			out[element{setFrontends, k}] = true
			out[addrElement(setVIPs, k.Addr)] = true
		} else {
			out[element{setNodePorts, k}] = true
		}
		if !usable {
			out[element{setRefused, k}] = true
		}
		switch {
		case f.Masquerade == vip.MasqueradeAlways, f.Masquerade == vip.MasqueradeAuto && f.Kind == vip.OnHost:
			out[element{setMasqAlways, k}] = true
		case f.Masquerade == vip.MasqueradeAuto:
			out[element{setMasqAuto, k}] = true
		}
	}
	return out
}

// Whatever is put and taken, in batches, the table holds what is needed: no
// less before an address comes up, no more afterwards.
func TestElementsFollowTheFrontends(t *testing.T) {
	keys := []vip.FrontendKey{
		{Addr: netip.MustParseAddr("10.96.0.1"), Port: 80, Protocol: vip.TCP},
		{Addr: netip.MustParseAddr("10.96.0.1"), Port: 80, Protocol: vip.UDP},
		{Addr: netip.MustParseAddr("10.96.0.2"), Port: 80, Protocol: vip.TCP},
		{Addr: netip.MustParseAddr("fd96::1"), Port: 80, Protocol: vip.TCP},
	}
	rapid.Check(t, func(t *rapid.T) {
		target := &Target{held: newHoldings(testPods)}
		want := map[vip.FrontendKey]*vip.Frontend{}
		table := map[element]bool{}
		for range rapid.IntRange(1, 8).Draw(t, "batches") {
			var items []*item
			for _, k := range keys {
				what := rapid.IntRange(0, 3).Draw(t, "what")
				if what == 0 {
					continue
				}
				u := &updateOf{Key: k, Old: want[k], Repair: rapid.Bool().Draw(t, "repair")}
				if what > 1 {
					u.New = drawFrontend(t, k)
					if u.Old != nil { // a key doesn't change its kind
						u.New.Kind = u.Old.Kind
					}
				} else if u.Old == nil && !u.Repair {
					continue
				}
				if u.New == nil {
					delete(want, k)
				} else {
					want[k] = u.New
				}
				items = append(items, &item{update: u, key: k, old: target.held.frontends[k], repair: u.Repair})
			}
			up, down := change{}, change{}
			for _, it := range items {
				target.raise(up, it)
			}
			for _, it := range items {
				target.held.set(it.key, it.update.New)
			}
			for e, present := range up {
				if !present {
					t.Fatalf("%v goes before its frontend", e)
				}
				table[e] = true
			}
			for e := range needed(want) {
				if !table[e] {
					t.Fatalf("%v is not there in time", e)
				}
			}
			for _, it := range items {
				if it.update.New != nil && rapid.IntRange(0, 5).Draw(t, "refused") == 0 {
					it.blocked = true // the kernel doesn't make the service
					delete(want, it.key)
				}
			}
			for _, it := range items {
				target.lower(down, it)
			}
			for e := range down {
				delete(table, e)
			}
			if n := needed(want); !maps.Equal(n, table) {
				t.Fatalf("the table has %v\nneeded is %v", table, n)
			}
			if all := target.held.all(); !maps.Equal(map[element]bool(all), table) {
				t.Fatalf("a table built anew would have %v, not %v", all, table)
			}
		}
	})
}

func TestElementKeys(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		s := rapid.SampledFrom([]setID{setFrontends, setNodePorts, setRefused, setMasqAlways, setMasqAuto, setVIPs, setHairpin}).Draw(t, "set")
		b := rapid.SliceOfN(rapid.Byte(), 16, 16).Draw(t, "address")
		e := element{s, vip.FrontendKey{Addr: netip.AddrFrom16([16]byte(b))}}
		if rapid.Bool().Draw(t, "v4") {
			e.key.Addr = netip.AddrFrom4([4]byte(b))
		}
		if s.kind() == kindListener {
			e.key.Port = rapid.Uint16().Draw(t, "port")
			e.key.Protocol = vip.Protocol(rapid.ByteRange(1, 255).Draw(t, "protocol"))
		}
		got, ok := decodeElement(s, vip.FamilyOf(e.key.Addr), elementKey(e))
		if !ok || got != e {
			t.Fatalf("%v is read as %v, %v", e, got, ok)
		}
	})
}

func FuzzDecodeElement(f *testing.F) {
	f.Add(uint8(0), true, []byte{10, 0, 0, 1, 6, 0, 0, 0, 0, 80, 0, 0})
	f.Add(uint8(6), false, make([]byte, 32))
	f.Fuzz(func(t *testing.T, set uint8, v4 bool, b []byte) {
		s, fam := setID(set%uint8(setPods)), vip.IPv6
		if v4 {
			fam = vip.IPv4
		}
		if e, ok := decodeElement(s, fam, b); ok && len(elementKey(e)) != len(b) {
			t.Errorf("%x is read as %v", b, e)
		}
	})
}

func TestPodRangesAreMergedAndReadBack(t *testing.T) {
	cases := [][]string{
		{},
		{"10.0.0.0/8"},
		{"10.0.0.0/9", "10.128.0.0/9", "10.5.0.0/16"},
		{"10.0.0.0/24", "10.0.2.0/24", "fd00::/8", "fe00::/8"},
		{"0.0.0.0/0", "::/0"},
		{"255.255.255.0/24", "ffff::/16"},
		{"10.1.2.3/8"},
	}
	for _, c := range cases {
		t.Run(fmt.Sprint(c), func(t *testing.T) {
			var in []netip.Prefix
			for _, s := range c {
				in = append(in, netip.MustParsePrefix(s))
			}
			want := podSet(in)
			var b netipx.IPSetBuilder
			for _, f := range []vip.Family{vip.IPv4, vip.IPv6} {
				elems := rangeElements(want, f)
				slices.Reverse(elems)
				addRanges(&b, elems)
			}
			got, err := b.IPSet()
			if err != nil || !got.Equal(want) {
				t.Errorf("%v is read as %v, %v", want.Ranges(), got.Ranges(), err)
			}
			for _, p := range in {
				if !got.ContainsPrefix(p.Masked()) {
					t.Errorf("%s is not in %v", p, got.Ranges())
				}
			}
		})
	}
}

func TestLayoutIsWhole(t *testing.T) {
	l := newLayout("ironvip", DefaultMark)
	chains := map[string]bool{}
	for _, c := range l.chains {
		chains[c.Name] = true
	}
	for _, r := range l.rules {
		if !chains[r.chain] {
			t.Errorf("rule %q is in no chain: %q", r.comment, r.chain)
		}
		if n := len(r.userData()); n > 128 {
			t.Errorf("the comment of %q takes %d bytes, the kernel keeps 256 and nft shows 128", r.comment, n)
		}
	}
}
