package ipvs

import (
	"slices"

	"github.com/ironvip/ironvip/plane/kernel/filter"
	"github.com/ironvip/ironvip/plane/kernel/usage"
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
	switch usage.Masquerade(f) {
	case vip.MasqueradeAlways:
		out = append(out, filter.ElementOf(filter.SetMasqAlways, f.Key, mark))
	case vip.MasqueradeAuto:
		out = append(out, filter.ElementOf(filter.SetMasqAuto, f.Key, mark))
	case vip.MasqueradeOwn:
		out = append(out, filter.ElementOf(filter.SetMasqOwn, f.Key, mark))
	}
	if _, restricted := usage.Sources(f); restricted {
		out = append(out, filter.ElementOf(filter.SetRestricted, f.Key, mark))
	}
	return out
}

// sourceElements appends an element for each of f's source ranges.
func sourceElements(out []filter.Element, f *vip.Frontend, mark uint32) []filter.Element {
	ranges, _ := usage.Sources(f)
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
	if new == nil || repair || len(before) != 1 || !usage.SameSources(before[0], new) {
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

// elementsOfAll returns every element that the recorded frontends need. It leaves out what the
// table can't contain and only another program causes: a frontend without its mark,
// and the higher of two overlapping ranges of ports.
func elementsOfAll(h *usage.Records, m *marks) filter.Change {
	c := make(filter.Change, 3*len(h.Frontends)+len(h.Hairpins))
	var buf []filter.Element
	for _, f := range h.Frontends {
		mark := m.get(f.Key)
		overlaps := func(k vip.FrontendKey) bool {
			return vip.CompareFrontendKeys(k, f.Key) < 0 && usage.PortsOf(k).Overlaps(usage.PortsOf(f.Key))
		}
		if hasMark(f) && mark == 0 || f.Key.Ranged() && slices.ContainsFunc(h.Ranges[usage.PortSpaceOf(f)], overlaps) {
			continue
		}
		buf = sourceElements(elements(buf[:0], f, mark), f, mark)
		for _, e := range buf {
			c[e] = true
		}
	}
	c.Put(filter.SetVIPs, h.VIPs, true)
	c.Put(filter.SetHairpin, h.Hairpins, true)
	return c
}
