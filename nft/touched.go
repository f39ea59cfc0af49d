package nft

import (
	"context"
	"maps"

	"github.com/ironvip/ironvip/internal/netlink/watch"
	"github.com/ironvip/ironvip/internal/nftwire"
	"github.com/ironvip/ironvip/plane/kernel/drift"
	"github.com/ironvip/ironvip/plane/kernel/filter"
	"github.com/ironvip/ironvip/vip"
)

// refresh brings astray up to date for a repair. The next Look sees the same, and reports it.
func (t *Target) refresh(ctx context.Context) error {
	touched, watched := t.drift.Touched()
	switch {
	case !watched || touched != nil && touched.Unknown:
		t.adopted = false
		return nil
	case touched == nil:
		return nil
	}
	found, err := t.examine(ctx, touched)
	t.adopted = err == nil && found.State != drift.Altered
	return err
}

// examine compares what was touched of the table with the records. It costs one question for each element, one read of the
// chains and rules if they were touched, and one of the whole table if anything may have changed.
func (t *Target) examine(ctx context.Context, touched *watch.Touched) (found drift.Found, err error) {
	if touched.Unknown {
		return t.compare(ctx)
	}
	elements := make(map[element]struct{}, len(touched.Elements))
	addresses := map[filter.Element]struct{}{}
	structure := touched.Structure
	for x := range touched.Elements {
		if e, ok := filter.ElementNamed(x.Set, x.Key); ok {
			addresses[e] = struct{}{}
			continue
		}
		set, known := setsByName[x.Set]
		switch {
		case !known || set.kind == kindClasses:
			// Few elements: of the map of shards, of a map of classes, or pod ranges, which can't be asked for one by one,
			// because the kernel answers with the range that has an address. Others are in sets that aren't ours.
			structure = true
		case set.kind != kindClients && set.kind != kindShares: // which packets write
			elements[element{set, x.Key, x.End}] = struct{}{}
		}
	}
	if structure {
		if found.State, err = t.lookAtStructure(ctx); err != nil || found.State == drift.Broken {
			return found, err
		}
	}
	found.Damaged = map[vip.FrontendKey]string{}
	err = t.fw.Get(ctx, func(get func(set, key, end string, each func(*nftwire.Element)) (bool, error)) error {
		for e := range elements {
			if err := t.examineElement(e, get, &found); err != nil {
				return err
			}
		}
		for e := range addresses {
			set := e.Set.Name(vip.FamilyOf(e.Key.Addr))
			there, err := get(set, string(e.Key.Addr.AsSlice()), "", func(*nftwire.Element) {})
			if err != nil {
				return err
			}
			t.examineAddress(e, there, &found)
		}
		return nil
	})
	return found, err
}

// examineElement compares an element with the records.
func (t *Target) examineElement(e element, get func(set, key, end string, each func(*nftwire.Element)) (bool, error), found *drift.Found) error {
	owner := t.content.owner(e)
	want, wanted := owner.value(e)
	value, other := "", false
	there, err := get(e.set.String(), e.key, e.end, func(x *nftwire.Element) {
		value, other = string(x.Value), string(x.Key) != e.key || string(x.End) != e.end
	})
	switch {
	case err != nil:
		return err
	case other: // one that covers it
		found.State = drift.Altered
		return nil
	case there == wanted && value == want:
		delete(t.astray, e)
		return nil
	}
	t.astray[e] = there
	k := vip.FrontendKey{}
	if owner != nil {
		k = owner.key
	}
	switch {
	case !there:
		found.Damaged[k] = "an element is missing from nftables set " + e.set.String()
	case !wanted:
		found.Damaged[k] = "an element in nftables set " + e.set.String() + " should not be"
	default:
		found.Damaged[k] = "an element in nftables set " + e.set.String() + " was changed"
	}
	return nil
}

// examineAddress does the same for an element of a set of every dataplane.
func (t *Target) examineAddress(e filter.Element, there bool, found *drift.Found) {
	wanted := t.wantsAddress(e)
	if there == wanted || e.Set == filter.SetVIPs && t.guarded[e.Key.Addr] {
		delete(t.astrayAddresses, e)
		return
	}
	t.astrayAddresses[e] = true
	k := vip.FrontendKey{}
	if f := t.records.At(e.Key.Addr); f != nil {
		k = f.Key
	}
	if wanted {
		found.Damaged[k] = "missing: " + e.String()
	} else {
		found.Damaged[k] = "should not be: " + e.String()
	}
}

func (t *Target) wantsAddress(e filter.Element) bool {
	if e.Set == filter.SetVIPs {
		return t.records.VIPs[e.Key.Addr] > 0
	}
	return t.records.Hairpins[e.Key.Addr] > 0
}

// restore returns what makes the table as content says, and adds the same for the sets of every dataplane to shared.
func (t *Target) restore(shared filter.Change) *diff {
	d := newDiff()
	for e, there := range t.astray {
		if there {
			d.dels[e.set] = append(d.dels[e.set], e)
		}
		if value, wanted := t.content.owner(e).value(e); wanted {
			d.adds[e.set] = append(d.adds[e.set], valued{e, value})
		}
	}
	for e := range t.astrayAddresses {
		if _, decided := shared[e]; !decided {
			shared[e] = t.wantsAddress(e)
		}
	}
	return d
}

// compare reads the whole table.
func (t *Target) compare(ctx context.Context) (out drift.Found, err error) {
	t.looks.Add(1)
	table, found, err := t.readTable(ctx)
	switch {
	case err != nil:
		return out, err
	case !table.Intact:
		// Without frontends, the next one rebuilds it.
		t.broken = true
		out.State = drift.Broken
	case !table.Pods.Equal(t.records.Pods) || !t.sameAddresses(table) || !found.equal(t.content):
		out.State = drift.Altered
	}
	return out, nil
}

// lookAtStructure reads what the table has besides the elements of services and addresses.
func (t *Target) lookAtStructure(ctx context.Context) (drift.TableState, error) {
	r := newReading(t.layout)
	rules, err := t.fw.ReadStructure(ctx, func(set string) bool { return set == setShards || setsByName[set].kind == kindClasses }, r.element)
	if err != nil {
		return drift.Whole, err
	}
	if !rules.Intact || r.odd != "" || r.shards != int(shards) || !r.chainsIntact(rules.Chains) || !r.sameClasses(t.content) {
		t.broken = true
		return drift.Broken, nil
	}
	if !rules.Pods.Equal(t.records.Pods) {
		return drift.Altered, nil
	}
	return drift.Whole, nil
}

// owner returns the service that an element belongs to, or nil.
func (c *content) owner(e element) *service {
	key := fields{b: []byte(e.key)}
	switch e.set.kind {
	case kindServices, kindTotals:
		k := key.listener(e.set)
		if e.end != "" {
			end := fields{b: []byte(e.end)}
			k.LastPort = end.listener(e.set).Port
		}
		return c.services[k]
	case kindMembers:
		key.word() // the member
	}
	return c.byNumber[key.word()]
}

// value returns the value of an element of a service, and whether the service has that element.
func (s *service) value(e element) (value string, has bool) {
	if s == nil {
		return "", false
	}
	s.elements(func(x element, v string) {
		if x == e {
			value, has = v, true
		}
	})
	return value, has
}

// sameClasses reports whether two contents have the same classes at the same places.
func (c *content) sameClasses(d *content) bool {
	for o := range c.chains {
		if !maps.Equal(c.chains[o], d.chains[o]) {
			return false
		}
	}
	for k, n := range c.classes {
		if d.classes[k] != n {
			return false
		}
	}
	return true
}
