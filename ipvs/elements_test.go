package ipvs

import (
	"context"
	"maps"
	"net/netip"
	"slices"
	"testing"

	"pgregory.net/rapid"

	"github.com/ironvip/ironvip/plane/kernel/filter"
	"github.com/ironvip/ironvip/plane/kernel/usage"
	"github.com/ironvip/ironvip/test/must"
	"github.com/ironvip/ironvip/vip"
)

var testPods = usage.PodSet([]netip.Prefix{netip.MustParsePrefix("10.1.0.0/30"), netip.MustParsePrefix("fd01::/120")})

// sourceRanges are the ranges to draw from. Some contain others, and some contain all addresses.
var sourceRanges = []netip.Prefix{
	netip.MustParsePrefix("192.0.2.0/24"), netip.MustParsePrefix("192.0.2.128/25"), netip.MustParsePrefix("192.0.0.0/16"),
	netip.MustParsePrefix("2001:db8::/32"), netip.MustParsePrefix("0.0.0.0/0"), netip.MustParsePrefix("::/0"),
}

func drawFrontend(t *rapid.T, key vip.FrontendKey) *vip.Frontend {
	kinds := []vip.FrontendKind{vip.OnVIP}
	if key.Audience == vip.Everyone {
		kinds = append(kinds, vip.OnVIP, vip.OnRealServer)
	}
	if !key.Ranged() && key.Audience == vip.Everyone {
		kinds = append(kinds, vip.OnHost)
	}
	kind, draw := rapid.SampledFrom(kinds).Draw(t, "kind"), drawListener
	if kind == vip.OnRealServer {
		draw = drawReal
	}
	f := draw(t, key.AddrPort().String(), key.Protocol)
	f.Key, f.Kind = key, kind
	if Unsupported(f) != nil {
		f.Affinity, f.Forward, f.OnePacket = 0, vip.ForwardNAT, false
	}
	if kind == vip.OnRealServer {
		f.Forward = vip.ForwardDirect
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

// unmarked returns the elements without their marks.
func unmarked(m map[filter.Element]struct{}) map[filter.Element]bool {
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
		opened := must.Get(newFakeKernel().open(context.Background(), &counters{}))(t)
		target := &Target{access: opened, records: usage.NewRecords(testPods), suspect: map[vip.FrontendKey]struct{}{}, looseHairpins: map[netip.Addr]struct{}{}, optional: optionalSettings{forward6: true, realServer: true}, opt: Options{Owns: func(netip.Addr) bool { return true }}}
		want := map[vip.FrontendKey]*vip.Frontend{}
		table := map[filter.Element]struct{}{}
		change := func(c filter.Change) {
			c = maps.Clone(c)
			maps.DeleteFunc(c, func(e filter.Element, present bool) bool { _, has := table[e]; return !present && !has })
			var err error
			if table, err = (fakeFilters{}).change(table, c); err != nil {
				t.Fatal(err)
			}
		}
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
					if u.Old != nil && usage.OnDevice(u.Old) != usage.OnDevice(u.New) { // an address has one of the two kinds
						continue
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
				if !present && !restricts {
					t.Fatalf("%v goes before its frontend", e)
				}
			}
			change(up)
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
			change(target.removalsAfter(items, up))
			target.releaseMarks(items)
			n := needed(want)
			must.True(t, maps.Equal(n, unmarked(table)), "the table has %v\nneeded is %v", table, n)
			rebuilt, err := fakeFilters{}.change(nil, elementsOfAll(target.records, &target.marks))
			if err != nil || !maps.Equal(rebuilt, table) {
				t.Fatalf("a rebuilt table would have %v, not %v: %v", rebuilt, table, err)
			}
			for k := range target.marks.of {
				if want[k] == nil || !hasMark(want[k]) {
					t.Fatalf("%s still has a mark", k)
				}
			}
		}
	})
}
