package ipvs

import (
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"testing"

	"pgregory.net/rapid"

	"github.com/ironvip/ironvip/internal/kernelplane/filter"
	"github.com/ironvip/ironvip/internal/kernelplane/holdings"
	"github.com/ironvip/ironvip/vip"
)

var testPods = holdings.PodSet([]netip.Prefix{netip.MustParsePrefix("10.1.0.0/30"), netip.MustParsePrefix("fd01::/120")})

func TestPodSetIsDisjoint(t *testing.T) {
	for _, c := range []struct{ prefixes, want []string }{
		{nil, nil},
		{[]string{"10.0.0.0/8"}, []string{"10.0.0.0/8"}},
		{[]string{"10.0.0.0/9", "10.128.0.0/9", "10.5.0.0/16"}, []string{"10.0.0.0/8"}},
		{[]string{"10.5.0.0/16", "10.0.0.0/9", "10.5.0.0/16"}, []string{"10.0.0.0/9"}},
		{[]string{"10.1.2.3/8"}, []string{"10.0.0.0/8"}},
		{[]string{"10.1.2.3/8", "10.200.0.1/16", "fd00::1/64", "fd00::2/64"}, []string{"10.0.0.0/8", "fd00::/64"}},
		{[]string{"fe00::/8", "10.0.2.0/24", "fd00::/8", "10.0.0.0/24"}, []string{"10.0.0.0/24", "10.0.2.0/24", "fd00::/8", "fe00::/8"}},
		{[]string{"255.255.255.0/24", "ffff::/16"}, []string{"255.255.255.0/24", "ffff::/16"}},
		{[]string{"192.0.2.0/24", "0.0.0.0/0", "::/0"}, []string{"0.0.0.0/0", "::/0"}},
	} {
		var prefixes []netip.Prefix
		for _, p := range c.prefixes {
			prefixes = append(prefixes, netip.MustParsePrefix(p))
		}
		var got []string
		for _, p := range holdings.PodSet(prefixes).Prefixes() {
			got = append(got, p.String())
		}
		if !slices.Equal(got, c.want) {
			t.Errorf("%v is %v, want %v", c.prefixes, got, c.want)
		}
	}
}

// sourceRanges are the ranges to draw from. Some contain others, and some contain all addresses.
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
				Addr: netip.AddrPortFrom(base, 80+port), Weight: rapid.Uint16Range(0, 1).Draw(t, "weight"),
			})
		}
		base = base.Next()
	}
	return f
}

// needed returns the elements that a set of frontends needs, computed in the plainest way.
func needed(all map[vip.FrontendKey]*vip.Frontend) map[filter.Element]bool {
	out := map[filter.Element]bool{}
	for k, f := range all {
		if f.Kind == vip.OnRealServer {
			record := filter.SetServed
			if k.LastPort != 0 {
				record = filter.SetServedRanges
			}
			out[filter.Element{Set: record, Key: k}] = true
			out[filter.AddrElement(filter.SetVIPs, k.Addr)] = true
			continue
		}
		refused, always, auto, own, restricted, sources := filter.SetRefused, filter.SetMasqAlways, filter.SetMasqAuto, filter.SetMasqOwn, filter.SetRestricted, filter.SetSources
		record := filter.SetFrontends
		switch {
		case k.LastPort != 0 && k.Audience == vip.InternalClients:
			record = filter.SetInternalRanges
		case k.LastPort != 0:
			record = filter.SetRanges
		case k.Audience == vip.InternalClients:
			record = filter.SetInternal
		}
		if record != filter.SetFrontends {
			refused, always, auto, own, restricted, sources = filter.SetMarkedRefused, filter.SetMarkedMasqAlways, filter.SetMarkedMasqAuto, filter.SetMarkedMasqOwn, filter.SetMarkedRestricted, filter.SetMarkedSources
			out[filter.Element{Set: filter.SetMarks, Key: k}] = true
		}
		usable := false
		for _, b := range f.Backends {
			usable = usable || b.Weight > 0
			if f.Masquerade == vip.MasqueradeOwn || f.Kind == vip.OnVIP && f.Masquerade == vip.MasqueradeAuto && testPods.Contains(b.Addr.Addr()) {
				out[filter.AddrElement(filter.SetHairpin, b.Addr.Addr())] = true
			}
		}
		if f.Kind == vip.OnVIP {
			out[filter.Element{Set: record, Key: k}] = true
			out[filter.AddrElement(filter.SetVIPs, k.Addr)] = true
		} else {
			out[filter.Element{Set: filter.SetNodePorts, Key: k}] = true
		}
		if !usable {
			out[filter.Element{Set: refused, Key: k}] = true
		}
		switch {
		case f.Forward == vip.ForwardDirect, f.Forward == vip.ForwardTunnel: // packets pass unchanged
		case f.Masquerade == vip.MasqueradeAlways, f.Masquerade == vip.MasqueradeAuto && f.Kind == vip.OnHost:
			out[filter.Element{Set: always, Key: k}] = true
		case f.Masquerade == vip.MasqueradeAuto:
			out[filter.Element{Set: auto, Key: k}] = true
		case f.Masquerade == vip.MasqueradeOwn:
			out[filter.Element{Set: own, Key: k}] = true
		}
		if len(f.SourceRanges) == 0 || f.Kind == vip.OnHost || slices.ContainsFunc(f.SourceRanges, func(p netip.Prefix) bool { return p.Bits() == 0 && p.Addr().Is4() == k.Addr.Is4() }) {
			continue
		}
		out[filter.Element{Set: restricted, Key: k}] = true
		for _, p := range f.SourceRanges {
			within := slices.ContainsFunc(f.SourceRanges, func(q netip.Prefix) bool { return q != p && q.Overlaps(p) && q.Bits() < p.Bits() })
			if p.Addr().Is4() == k.Addr.Is4() && !within {
				out[filter.Element{Set: sources, Key: k, Source: p}] = true
			}
		}
	}
	return out
}

// modelTable is the table as the kernel stores it.
type modelTable map[filter.Element]bool

// put makes a change, deletions first. It returns an error for what the kernel would reject, and
// for what would refuse clients.
func (m modelTable) put(c filter.Change) error {
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
			case e.Set == o.Set && e.Key == o.Key && e.Source == o.Source,
				e.Set.Kind() == filter.KindPorts && e.Set == o.Set && e.Key.Addr == o.Key.Addr && holdings.PortsOf(e.Key).Overlaps(holdings.PortsOf(o.Key)),
				e.Source.IsValid() && e.Set == o.Set && e.Key == o.Key && e.Source.Overlaps(o.Source):
				return fmt.Errorf("%v, but there is %v", e, o)
			case e.Set.HasMark() && o.Set.HasMark() && (e.Mark == o.Mark) != (e.Key == o.Key):
				return fmt.Errorf("%v and %v have a mark wrong", e, o)
			}
		}
		if e.Set.HasMark() != filter.IsMark(e.Mark) {
			return fmt.Errorf("%v", e)
		}
		m[e] = true
	}
	return nil
}

// unmarked returns the elements without their marks.
func unmarked[M ~map[filter.Element]bool](m M) map[filter.Element]bool {
	out := map[filter.Element]bool{}
	for e := range m {
		e.Mark = 0
		out[e] = true
	}
	return out
}

// After each batch of changes, the table has exactly the needed elements. It has them all before
// an address is added, and no element is removed early except those that would be in the way.
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
		target := &Target{records: holdings.NewRecords(testPods), suspect: map[vip.FrontendKey]struct{}{}, looseHairpins: map[netip.Addr]struct{}{}, optional: optionalSettings{forward6: true, realServer: true}, opt: Options{Owns: func(netip.Addr) bool { return true }}}
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
					if u.Old != nil && holdings.OnDevice(u.Old) != holdings.OnDevice(u.New) { // an address has one of the two kinds
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
				case u.Err != nil: // for example two overlapping ranges of ports
				case u.New == nil:
					delete(want, u.Key)
				default:
					want[u.Key] = u.New
				}
			}
			up := filter.Change{}
			for _, it := range items {
				target.addBefore(up, it)
			}
			for _, it := range items {
				target.records.Set(it.key, it.update.New)
			}
			for e, present := range up {
				restricts := e.Source.IsValid() || e.Set == filter.SetRestricted || e.Set == filter.SetMarkedRestricted
				replaced := slices.ContainsFunc(items, func(it *item) bool { return slices.Contains(it.replaces, e.Key) }) // vacate has deleted its service
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
					it.service.rejected, it.service.have = true, nil // the kernel rejects the service
					delete(want, it.key)
				}
			}
			if err := table.put(target.removalsAfter(items, up)); err != nil {
				t.Fatal(err)
			}
			target.releaseMarks(items)
			if n := needed(want); !maps.Equal(n, unmarked(table)) {
				t.Fatalf("the table has %v\nneeded is %v", table, n)
			}
			if all := elementsOfAll(target.records, &target.marks); !maps.Equal(map[filter.Element]bool(all), map[filter.Element]bool(table)) {
				t.Fatalf("a rebuilt table would have %v, not %v", all, table)
			}
			for k := range target.marks.of {
				if want[k] == nil || !hasMark(want[k]) {
					t.Fatalf("%s still has a mark", k)
				}
			}
		}
	})
}
