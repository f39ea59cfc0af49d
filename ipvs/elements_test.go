package ipvs

import (
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"testing"

	"pgregory.net/rapid"

	"github.com/ironvip/ironvip/internal/nftwire"
	"github.com/ironvip/ironvip/vip"
)

var testPods = podSet([]netip.Prefix{netip.MustParsePrefix("10.1.0.0/30"), netip.MustParsePrefix("fd01::/120")})

// sourceRanges are drawn from: some are within others, some everything there is.
var sourceRanges = []netip.Prefix{
	netip.MustParsePrefix("192.0.2.0/24"), netip.MustParsePrefix("192.0.2.128/25"), netip.MustParsePrefix("192.0.0.0/16"),
	netip.MustParsePrefix("2001:db8::/32"), netip.MustParsePrefix("0.0.0.0/0"), netip.MustParsePrefix("::/0"),
}

func drawFrontend(t *rapid.T, key vip.FrontendKey) *vip.Frontend {
	f := &vip.Frontend{Key: key, Kind: vip.OnVIP, Scheduler: vip.RoundRobin}
	f.Masquerade = rapid.SampledFrom([]vip.Masquerade{vip.MasqueradeAuto, vip.MasqueradeAlways, vip.MasqueradeNever, vip.MasqueradeOwn}).Draw(t, "masquerade")
	f.SourceRanges = rapid.SliceOfNDistinct(rapid.SampledFrom(sourceRanges), 0, 3, rapid.ID[netip.Prefix]).Draw(t, "source ranges")
	switch kinds := []vip.FrontendKind{vip.OnVIP, vip.OnVIP, vip.OnHost, vip.OnRealServer}; {
	case key.Audience != vip.Everyone:
	case key.Ranged():
		f.Kind = rapid.SampledFrom([]vip.FrontendKind{vip.OnVIP, vip.OnVIP, vip.OnRealServer}).Draw(t, "kind")
	default:
		f.Kind = rapid.SampledFrom(kinds).Draw(t, "kind")
	}
	if f.Kind == vip.OnRealServer {
		f.Forward = vip.ForwardDirect
		return f
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
		if f.Kind == vip.OnRealServer {
			record := setServed
			if k.LastPort != 0 {
				record = setServedRanges
			}
			out[element{set: record, key: k}] = true
			out[addrElement(setVIPs, k.Addr)] = true
			continue
		}
		refused, always, auto, own, restricted, sources := setRefused, setMasqAlways, setMasqAuto, setMasqOwn, setRestricted, setSources
		record := setFrontends
		switch {
		case k.LastPort != 0 && k.Audience == vip.InternalClients:
			record = setInternalRanges
		case k.LastPort != 0:
			record = setRanges
		case k.Audience == vip.InternalClients:
			record = setInternal
		}
		if record != setFrontends {
			refused, always, auto, own, restricted, sources = setMarkedRefused, setMarkedMasqAlways, setMarkedMasqAuto, setMarkedMasqOwn, setMarkedRestricted, setMarkedSources
			out[element{set: setMarks, key: k}] = true
		}
		usable := false
		for _, b := range f.Backends {
			usable = usable || b.Weight > 0
			if f.Masquerade == vip.MasqueradeOwn || f.Kind == vip.OnVIP && f.Masquerade == vip.MasqueradeAuto && testPods.Contains(b.Addr.Addr()) {
				out[addrElement(setHairpin, b.Addr.Addr())] = true
			}
		}
		if f.Kind == vip.OnVIP {
			out[element{set: record, key: k}] = true
			out[addrElement(setVIPs, k.Addr)] = true
		} else {
			out[element{set: setNodePorts, key: k}] = true
		}
		if !usable {
			out[element{set: refused, key: k}] = true
		}
		switch {
		case f.Forward == vip.ForwardDirect, f.Forward == vip.ForwardTunnel: // packets go as they came
		case f.Masquerade == vip.MasqueradeAlways, f.Masquerade == vip.MasqueradeAuto && f.Kind == vip.OnHost:
			out[element{set: always, key: k}] = true
		case f.Masquerade == vip.MasqueradeAuto:
			out[element{set: auto, key: k}] = true
		case f.Masquerade == vip.MasqueradeOwn:
			out[element{set: own, key: k}] = true
		}
		if len(f.SourceRanges) == 0 || f.Kind == vip.OnHost || slices.ContainsFunc(f.SourceRanges, func(p netip.Prefix) bool { return p.Bits() == 0 && p.Addr().Is4() == k.Addr.Is4() }) {
			continue
		}
		out[element{set: restricted, key: k}] = true
		for _, p := range f.SourceRanges {
			within := slices.ContainsFunc(f.SourceRanges, func(q netip.Prefix) bool { return q != p && q.Overlaps(p) && q.Bits() < p.Bits() })
			if p.Addr().Is4() == k.Addr.Is4() && !within {
				out[element{set: sources, key: k, source: p}] = true
			}
		}
	}
	return out
}

// modelTable is the table as the kernel keeps it.
type modelTable map[element]bool

// put makes a change, what goes first, and finds fault with what the kernel
// would not take or what would cut somebody off.
func (m modelTable) put(c change) error {
	for e, present := range c {
		if !present {
			delete(m, e)
		}
	}
	for e, present := range c {
		if !present {
			continue
		}
		for o := range m {
			switch {
			case e == o:
			case e.set == o.set && e.key == o.key && e.source == o.source,
				e.set.kind() == kindPorts && e.set == o.set && e.key.Addr == o.key.Addr && portsOf(e.key).Overlaps(portsOf(o.key)),
				e.source.IsValid() && e.set == o.set && e.key == o.key && e.source.Overlaps(o.source):
				return fmt.Errorf("%v, but there is %v", e, o)
			case e.set.hasMark() && o.set.hasMark() && (e.mark == o.mark) != (e.key == o.key):
				return fmt.Errorf("%v and %v have a mark wrong", e, o)
			}
		}
		if e.set.hasMark() != isMark(e.mark) {
			return fmt.Errorf("%v", e)
		}
		m[e] = true
	}
	return nil
}

// unmarked leaves the marks out.
func unmarked[M ~map[element]bool](m M) map[element]bool {
	out := map[element]bool{}
	for e := range m {
		e.mark = 0
		out[e] = true
	}
	return out
}

// Whatever is put and taken, in batches, the table holds what is needed: no
// less before an address comes up, no more afterwards. Nothing goes early but
// what would be in the way.
func TestElementsFollowTheFrontends(t *testing.T) {
	one, two, six := netip.MustParseAddr("10.96.0.1"), netip.MustParseAddr("10.96.0.2"), netip.MustParseAddr("fd96::1")
	keys := []vip.FrontendKey{
		{Addr: one, Port: 80, Protocol: vip.TCP},
		{Addr: one, Port: 80, Protocol: vip.TCP, Audience: vip.InternalClients},
		{Addr: one, Port: 80, Protocol: vip.UDP},
		{Addr: two, Port: 80, Protocol: vip.TCP},
		{Addr: six, Port: 80, Protocol: vip.TCP},
		{Addr: one, Port: 1000, LastPort: 1999, Protocol: vip.TCP},
		{Addr: one, Port: 1500, LastPort: 2500, Protocol: vip.TCP},
		{Addr: one, Port: 1000, LastPort: 1999, Protocol: vip.TCP, Audience: vip.InternalClients},
		{Addr: six, Port: 1, LastPort: 65535, Protocol: vip.UDP},
	}
	rapid.Check(t, func(t *rapid.T) {
		target := &Target{held: newHoldings(testPods), suspect: map[vip.FrontendKey]struct{}{}, needs: needs{forward6: true, realServer: true}, opt: Options{Owns: func(netip.Addr) bool { return true }}}
		want := map[vip.FrontendKey]*vip.Frontend{}
		table := modelTable{}
		for range rapid.IntRange(1, 8).Draw(t, "batches") {
			var batch []updateOf
			for _, k := range keys {
				what := rapid.IntRange(0, 3).Draw(t, "what")
				if what == 0 {
					continue
				}
				u := updateOf{Key: k, Old: want[k], Repair: rapid.Bool().Draw(t, "repair")}
				if what > 1 {
					u.New = drawFrontend(t, k)
					if u.Old != nil && onDevice(u.Old) != onDevice(u.New) { // an address isn't both
						u.New.Kind, u.New.Forward = u.Old.Kind, u.Old.Forward
					}
				} else if u.Old == nil && !u.Repair {
					continue
				}
				batch = append(batch, u)
			}
			items := target.accept(batch)
			for _, u := range batch {
				switch {
				case u.Err != nil: // as two ranges of ports that overlap
				case u.New == nil:
					delete(want, u.Key)
				default:
					want[u.Key] = u.New
				}
			}
			up := change{}
			for _, it := range items {
				target.raise(up, it)
			}
			for _, it := range items {
				target.held.set(it.key, it.update.New)
			}
			for e, present := range up {
				restricts := e.source.IsValid() || e.set == setRestricted || e.set == setMarkedRestricted
				replaced := slices.ContainsFunc(items, func(it *item) bool { return slices.Contains(it.replaces, e.key) }) // vacate has deleted its service
				if !present && !restricts && !replaced {
					t.Fatalf("%v goes before its frontend", e)
				}
			}
			if err := table.put(up); err != nil {
				t.Fatal(err)
			}
			for e, has := range needed(want) {
				if has && !unmarked(table)[e] {
					t.Fatalf("%v is not there in time", e)
				}
			}
			for _, it := range items {
				if it.service.want != nil && rapid.IntRange(0, 5).Draw(t, "refused") == 0 {
					it.service.rejected, it.service.have = true, nil // the kernel doesn't make the service
					delete(want, it.key)
				}
			}
			if err := table.put(target.lowerAll(items, up)); err != nil {
				t.Fatal(err)
			}
			target.releaseMarks(items)
			if n := needed(want); !maps.Equal(n, unmarked(table)) {
				t.Fatalf("the table has %v\nneeded is %v", table, n)
			}
			if all := target.held.all(&target.marks); !maps.Equal(map[element]bool(all), map[element]bool(table)) {
				t.Fatalf("a table built anew would have %v, not %v", all, table)
			}
			for k := range target.marks.of {
				if want[k] == nil || !hasMark(want[k]) {
					t.Fatalf("%s still has a mark", k)
				}
			}
		}
	})
}

func TestElementKeys(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		s := setID(rapid.IntRange(0, int(setPods)-1).Draw(t, "set"))
		b := rapid.SliceOfN(rapid.Byte(), 16, 16).Draw(t, "address")
		v4 := rapid.Bool().Draw(t, "v4")
		addr := func(b []byte) netip.Addr {
			if v4 {
				return netip.AddrFrom4([4]byte(b))
			}
			return netip.AddrFrom16([16]byte(b))
		}
		e := addrElement(s, addr(b))
		switch s.kind() {
		case kindListener, kindSource, kindPorts:
			e.key.Port = rapid.Uint16Range(0, 65534).Draw(t, "port")
			e.key.Protocol = vip.Protocol(rapid.ByteRange(1, 255).Draw(t, "protocol"))
		case kindMark, kindMarkSource:
			e.key.Addr = unspecifiedOf(vip.FamilyOf(e.key.Addr)) // which the maps tell
		}
		if s.kind() == kindPorts {
			e.key.LastPort = rapid.Uint16Range(e.key.Port+1, 65535).Draw(t, "last port")
		}
		if s == setInternal || s == setInternalRanges {
			e.key.Audience = vip.InternalClients
		}
		if s.kind() == kindSource || s.kind() == kindMarkSource {
			from := addr(rapid.SliceOfN(rapid.Byte(), 16, 16).Draw(t, "source"))
			e.source = netip.PrefixFrom(from, rapid.IntRange(0, from.BitLen()).Draw(t, "bits")).Masked()
		}
		if s.hasMark() {
			e.mark = markAt(rapid.Uint32Range(0, markCount-1).Draw(t, "mark"))
		}
		var x nftwire.Element
		encodeElement(&x, &e)
		got, ok := decodeElement(s, vip.FamilyOf(e.key.Addr), &x)
		if !ok || got != e {
			t.Fatalf("%v is read as %v, %v", e, got, ok)
		}
	})
}

func FuzzDecodeElement(f *testing.F) {
	f.Add(uint8(setFrontends), true, []byte{10, 0, 0, 1, 6, 0, 0, 0, 0, 80, 0, 0}, []byte{})
	f.Add(uint8(setHairpin), false, make([]byte, 32), []byte{})
	f.Add(uint8(setSources), true, []byte{10, 0, 0, 1, 6, 0, 0, 0, 0, 80, 0, 0, 10, 0, 0, 0}, []byte{10, 0, 0, 1, 6, 0, 0, 0, 0, 80, 0, 0, 10, 255, 255, 255})
	f.Fuzz(func(t *testing.T, set uint8, v4 bool, key, end []byte) {
		s, fam := setID(set%uint8(setPods)), vip.IPv6
		if v4 {
			fam = vip.IPv4
		}
		e, ok := decodeElement(s, fam, &nftwire.Element{Key: key, End: end})
		if !ok {
			return
		}
		var again nftwire.Element
		if encodeElement(&again, &e); len(again.Key) != len(key) {
			t.Errorf("%x is read as %v", key, e)
		}
	})
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
