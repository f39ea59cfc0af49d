package ipvs

import (
	"net/netip"
	"slices"

	"github.com/ironvip/ironvip/ipvs/internal/filter"
	"github.com/ironvip/ironvip/vip"
)

// recordOf returns the set that records that a frontend is ours.
func recordOf(f *vip.Frontend) filter.Set {
	switch k := f.Key; {
	case f.Kind == vip.OnRealServer && k.Ranged():
		return filter.SetServedRanges
	case f.Kind == vip.OnRealServer:
		return filter.SetServed
	case f.Kind == vip.OnHost:
		return filter.SetNodePorts
	case k.Audience != vip.Everyone && k.Ranged():
		return filter.SetInternalRanges
	case k.Audience != vip.Everyone:
		return filter.SetInternal
	case k.Ranged():
		return filter.SetRanges
	}
	return filter.SetFrontends
}

// frontendSets are the sets of single frontends except sources. They stand for the
// sets of marks, too.
var frontendSets = []filter.Set{filter.SetRefused, filter.SetMasqAlways, filter.SetMasqAuto, filter.SetMasqOwn, filter.SetRestricted}

// possible appends every element that a frontend at k can have, except sources.
func possible(out []filter.Element, k vip.FrontendKey, mark uint32) []filter.Element {
	for _, kind := range [...]vip.FrontendKind{vip.OnVIP, vip.OnHost, vip.OnRealServer} {
		f := vip.Frontend{Key: k, Kind: kind}
		if hasMark(&f) && (mark == 0 || kind == vip.OnHost) || kind == vip.OnRealServer && k.Audience != vip.Everyone {
			continue
		}
		out = append(out, filter.ElementOf(recordOf(&f), k, mark))
	}
	if filter.ByMark(k) && mark == 0 {
		return out
	}
	for _, s := range frontendSets {
		out = append(out, filter.ElementOf(s, k, mark))
	}
	if filter.ByMark(k) {
		out = append(out, filter.ElementOf(filter.SetMarks, k, mark))
	}
	return out
}

// onDevice reports whether f's address is on our device.
func onDevice(f *vip.Frontend) bool { return f.Kind != vip.OnHost }

// masquerade returns f's mode in normal form. For a node port auto means always, as in
// kube-proxy for cluster policy, because its clients come from anywhere.
func masquerade(f *vip.Frontend) vip.Masquerade {
	switch {
	case forward(f) != vip.ForwardNAT, f.Kind == vip.OnRealServer:
		return vip.MasqueradeNever
	case f.Masquerade == vip.MasqueradeNever, f.Masquerade == vip.MasqueradeAlways, f.Masquerade == vip.MasqueradeOwn:
		return f.Masquerade
	case f.Kind == vip.OnHost:
		return vip.MasqueradeAlways
	}
	return vip.MasqueradeAuto
}

// noClient stands for source ranges without a range of the frontend's family: no client
// may reach it.
var noClient = []netip.Prefix{{}}

// sources returns f's source ranges of its family in normal form: disjoint, sorted, and
// as few as possible. Restricted is false if every client may reach f.
func sources(f *vip.Frontend) (ranges []netip.Prefix, restricted bool) {
	if len(f.SourceRanges) == 0 || f.Kind != vip.OnVIP {
		return nil, false
	}
	var own []netip.Prefix
	for _, p := range f.SourceRanges {
		if p.IsValid() && p.Addr().Is4() == f.Key.Addr.Is4() {
			own = append(own, p)
		}
	}
	ranges = podSet(own).Prefixes()
	if len(ranges) == 1 && ranges[0].Bits() == 0 {
		return nil, false
	}
	return ranges, true
}

// sameSources reports whether a and b, of one key, allow the same clients.
func sameSources(a, b *vip.Frontend) bool {
	if a.Kind == b.Kind && slices.Equal(a.SourceRanges, b.SourceRanges) {
		return true
	}
	x, some := sources(a)
	y, others := sources(b)
	return some == others && slices.Equal(x, y)
}

// elements appends the elements that f needs except sources. The elements of addresses
// and backends are shared between frontends, see records.
func elements(out []filter.Element, f *vip.Frontend, mark uint32) []filter.Element {
	out = append(out, filter.ElementOf(recordOf(f), f.Key, mark))
	if f.Kind == vip.OnRealServer {
		return out
	}
	if hasMark(f) {
		out = append(out, filter.ElementOf(filter.SetMarks, f.Key, mark))
	}
	if !f.Usable() {
		out = append(out, filter.ElementOf(filter.SetRefused, f.Key, mark))
	}
	switch masquerade(f) {
	case vip.MasqueradeAlways:
		out = append(out, filter.ElementOf(filter.SetMasqAlways, f.Key, mark))
	case vip.MasqueradeAuto:
		out = append(out, filter.ElementOf(filter.SetMasqAuto, f.Key, mark))
	case vip.MasqueradeOwn:
		out = append(out, filter.ElementOf(filter.SetMasqOwn, f.Key, mark))
	}
	if _, restricted := sources(f); restricted {
		out = append(out, filter.ElementOf(filter.SetRestricted, f.Key, mark))
	}
	return out
}

// sourceElements appends an element for each of f's source ranges.
func sourceElements(out []filter.Element, f *vip.Frontend, mark uint32) []filter.Element {
	ranges, _ := sources(f)
	for _, r := range ranges {
		e := filter.ElementOf(filter.SetSources, f.Key, mark)
		e.Source = r
		out = append(out, e)
	}
	return out
}

// elementChanges adds to up what must be in the table before new is programmed, and
// to down what must be removed after. Either may be nil if it isn't wanted. With
// repair, it doesn't rely on records and sets every element of the key.
func (r *buffers) elementChanges(up, down filter.Change, it *item, new *vip.Frontend, repair bool) {
	had, needs, before, mark := r.had[:0], r.needed[:0], it.before(r.before[:0]), it.mark
	if up == nil && len(before) == 0 && !repair {
		return
	}
	if new != nil {
		needs = elements(needs, new, mark)
	}
	if repair {
		had = possible(had, it.key, mark)
	} else {
		for _, f := range before {
			had = elements(had, f, mark)
		}
	}
	r.had, r.needed = had, needs
	for _, e := range needs {
		if up != nil && (repair || !slices.Contains(had, e)) {
			up[e] = true
		}
	}
	for _, e := range had {
		switch {
		case slices.Contains(needs, e):
		case (e.Set == filter.SetRestricted || e.Set == filter.SetMarkedRestricted) && new != nil:
			if up != nil {
				up[e] = false // in one transaction with the sources, otherwise no client is allowed in between
			}
		case down != nil:
			down[e] = false
		}
	}
	if new == nil || repair || len(before) != 1 || !sameSources(before[0], new) {
		sourceChanges(up, down, mark, before, new, repair)
	}
}

// sourceChanges does the same for source ranges. As long as there is a frontend, all
// ranges change in one transaction: old ones may overlap new ones, which an interval
// set rejects.
func sourceChanges(up, down filter.Change, mark uint32, before []*vip.Frontend, new *vip.Frontend, repair bool) {
	had := map[filter.Element]bool{}
	for _, f := range before {
		for _, e := range sourceElements(nil, f, mark) {
			had[e] = true
		}
	}
	gone := down
	if new != nil {
		gone = up
		for _, e := range sourceElements(nil, new, mark) {
			if up != nil && (repair || !had[e]) {
				up[e] = true
			}
			delete(had, e)
		}
	}
	if gone == nil {
		return
	}
	for e := range had {
		gone[e] = false
	}
}
