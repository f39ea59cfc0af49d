package ipvs

import (
	"fmt"
	"net/netip"
	"slices"

	"go4.org/netipx"

	"github.com/ironvip/ironvip/vip"
)

// setID names one of the table's sets, up to the address family.
type setID uint8

// The sets. What is in them is all the state that the table has.
const (
	setFrontends        setID = iota // address . protocol . port of frontends on virtual addresses
	setNodePorts                     // the same of node ports: how a restarted agent knows its own
	setRefused                       // frontends without a usable backend
	setMasqAlways                    // frontends whose clients' addresses are always replaced
	setMasqAuto                      // frontends where that depends on the client
	setMasqOwn                       // frontends where only this host's own connections are masqueraded
	setRestricted                    // frontends that not every client may reach
	setSources                       // who may: address . protocol . port . range of clients; an interval set
	setServed                        // what goes to this host's own listeners, on a real server
	setServedRanges                  // the same for ranges of ports; an interval set
	setInternal                      // map: frontends for internal clients to their marks
	setInternalRanges                // the same for ranges of ports
	setRanges                        // map: frontends for ranges of ports to their marks
	setMarks                         // all of these marks; the sets of marks that follow say more of each
	setMarkedRefused                 // as refused
	setMarkedMasqAlways              // as masq_always
	setMarkedMasqAuto                // as masq_auto
	setMarkedMasqOwn                 // as masq_own
	setMarkedRestricted              // as restricted
	setMarkedSources                 // as sources: mark . range of clients
	setPaused                        // frontends whose new connections wait, see pause.go; elements expire
	setMarkedPaused                  // as paused
	setVIPs                          // virtual addresses
	setHairpin                       // backends that may be their own client: address . the same address
	setPods                          // pod ranges; an interval set
	setCount
)

var setNames = [setCount]string{
	"frontends", "nodeports", "refused", "masq_always", "masq_auto", "masq_own", "restricted", "sources",
	"served", "served_ranges", "internal", "internal_ranges", "ranges",
	"marks", "marked_refused", "marked_masq_always", "marked_masq_auto", "marked_masq_own", "marked_restricted", "marked_sources",
	"paused", "marked_paused",
	"vips", "hairpin", "pods",
}

// elemKind is the shape of a set's elements.
type elemKind uint8

const (
	kindListener   elemKind = iota // address . protocol . port
	kindSource                     // address . protocol . port . interval of addresses
	kindPorts                      // address . protocol . interval of ports
	kindMark                       // mark
	kindMarkSource                 // mark . interval of addresses
	kindAddr
	kindPair  // address . address
	kindRange // interval of addresses
)

func (s setID) kind() elemKind {
	switch s {
	case setSources:
		return kindSource
	case setServedRanges, setInternalRanges, setRanges:
		return kindPorts
	case setMarks, setMarkedRefused, setMarkedMasqAlways, setMarkedMasqAuto, setMarkedMasqOwn, setMarkedRestricted, setMarkedPaused:
		return kindMark
	case setMarkedSources:
		return kindMarkSource
	case setVIPs:
		return kindAddr
	case setHairpin:
		return kindPair
	case setPods:
		return kindRange
	}
	return kindListener
}

// isMap reports whether the elements have a mark for data.
func (s setID) isMap() bool { return s == setInternal || s == setInternalRanges || s == setRanges }

// hasMark reports whether a mark is part of the elements.
func (s setID) hasMark() bool { return s.isMap() || s.kind() == kindMark || s.kind() == kindMarkSource }

// ofFrontends reports whether the elements are single frontends'.
func (s setID) ofFrontends() bool { return s != setVIPs && s != setHairpin && s != setPods }

// interval reports whether elements are intervals.
func (s setID) interval() bool {
	k := s.kind()
	return k == kindRange || k == kindSource || k == kindPorts || k == kindMarkSource
}

// passing reports whether elements expire by themselves, so that they are
// nobody's to read.
func (s setID) passing() bool { return s == setPaused || s == setMarkedPaused }

// refuses reports whether elements say that a frontend has no usable backend.
func (s setID) refuses() bool { return s == setRefused || s == setMarkedRefused }

// marked returns the set that has the same part for frontends with a mark.
func (s setID) marked() setID {
	switch s {
	case setRefused:
		return setMarkedRefused
	case setMasqAlways:
		return setMarkedMasqAlways
	case setMasqAuto:
		return setMarkedMasqAuto
	case setMasqOwn:
		return setMarkedMasqOwn
	case setRestricted:
		return setMarkedRestricted
	case setSources:
		return setMarkedSources
	case setPaused:
		return setMarkedPaused
	}
	return s
}

func (s setID) name(f vip.Family) string { return fullNames[s][f] }

// fullNames are the sets' names with their families.
var fullNames = func() (all [setCount][vip.IPv6 + 1]string) {
	for s, name := range setNames {
		all[s][vip.IPv4], all[s][vip.IPv6] = name+"4", name+"6"
	}
	return all
}()

// element is one element of one set. For addresses and pairs, the key has an
// address only. Elements of sets of marks have the key of the mark's frontend.
type element struct {
	set    setID
	key    vip.FrontendKey
	source netip.Prefix // of clients, in a set of sources
	mark   uint32       // in maps and sets of marks
}

func (e element) String() string {
	what := e.key.String()
	if !e.set.ofFrontends() {
		what = e.key.Addr.String()
	}
	if e.source.IsValid() {
		what += " from " + e.source.String()
	}
	if e.mark != 0 {
		what = fmt.Sprintf("%s with mark %#x", what, e.mark)
	}
	return fmt.Sprintf("%s in set %s", what, e.set.name(vip.FamilyOf(e.key.Addr)))
}

// elementOf returns what s, or the set that has its part, has for a frontend.
func elementOf(s setID, k vip.FrontendKey, mark uint32) element {
	if byMark(k) {
		s = s.marked()
	}
	e := element{set: s, key: k}
	if s.hasMark() {
		e.mark = mark
	}
	return e
}

// recordOf is the set that says of a frontend that it is ours.
func recordOf(f *vip.Frontend) setID {
	switch k := f.Key; {
	case f.Kind == vip.OnRealServer && k.Ranged():
		return setServedRanges
	case f.Kind == vip.OnRealServer:
		return setServed
	case f.Kind == vip.OnHost:
		return setNodePorts
	case k.Audience != vip.Everyone && k.Ranged():
		return setInternalRanges
	case k.Audience != vip.Everyone:
		return setInternal
	case k.Ranged():
		return setRanges
	}
	return setFrontends
}

// frontendSets are the sets that have single frontends, but for their sources.
// They stand for those of marks, too.
var frontendSets = []setID{setRefused, setMasqAlways, setMasqAuto, setMasqOwn, setRestricted}

// possible appends every element that a frontend at k could have, but for
// sources.
func possible(out []element, k vip.FrontendKey, mark uint32) []element {
	for _, kind := range [...]vip.FrontendKind{vip.OnVIP, vip.OnHost, vip.OnRealServer} {
		f := vip.Frontend{Key: k, Kind: kind}
		if hasMark(&f) && (mark == 0 || kind == vip.OnHost) || kind == vip.OnRealServer && k.Audience != vip.Everyone {
			continue // there is none
		}
		out = append(out, elementOf(recordOf(&f), k, mark))
	}
	if byMark(k) && mark == 0 {
		return out
	}
	for _, s := range frontendSets {
		out = append(out, elementOf(s, k, mark))
	}
	if byMark(k) {
		out = append(out, elementOf(setMarks, k, mark))
	}
	return out
}

// onDevice reports whether f's address is one that our device has.
func onDevice(f *vip.Frontend) bool { return f.Kind != vip.OnHost }

// masquerade is f's mode in normal form: a node port's clients come from
// anywhere, so there auto is always (as kube-proxy does for cluster policy).
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

// nobody is what stands for source ranges without a range of the frontend's own
// family: no client may reach it then.
var nobody = []netip.Prefix{{}}

// sources returns f's source ranges in normal form, those of its own family
// only: disjoint, as few as there can be, in order. Restricted is false where
// everyone may reach f.
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

// sameSources reports whether a and b, of one key, are open to the same clients.
func sameSources(a, b *vip.Frontend) bool {
	if a.Kind == b.Kind && slices.Equal(a.SourceRanges, b.SourceRanges) {
		return true
	}
	x, some := sources(a)
	y, others := sources(b)
	return some == others && slices.Equal(x, y)
}

// elements appends the elements that f itself needs, but for its sources. Those
// of its address and its backends are shared between frontends, see holdings.
func elements(out []element, f *vip.Frontend, mark uint32) []element {
	out = append(out, elementOf(recordOf(f), f.Key, mark))
	if f.Kind == vip.OnRealServer {
		return out
	}
	if hasMark(f) {
		out = append(out, elementOf(setMarks, f.Key, mark))
	}
	if !f.Usable() {
		out = append(out, elementOf(setRefused, f.Key, mark))
	}
	switch masquerade(f) {
	case vip.MasqueradeAlways:
		out = append(out, elementOf(setMasqAlways, f.Key, mark))
	case vip.MasqueradeAuto:
		out = append(out, elementOf(setMasqAuto, f.Key, mark))
	case vip.MasqueradeOwn:
		out = append(out, elementOf(setMasqOwn, f.Key, mark))
	}
	if _, restricted := sources(f); restricted {
		out = append(out, elementOf(setRestricted, f.Key, mark))
	}
	return out
}

// sourceElements appends an element for each of f's source ranges.
func sourceElements(out []element, f *vip.Frontend, mark uint32) []element {
	ranges, _ := sources(f)
	for _, r := range ranges {
		e := elementOf(setSources, f.Key, mark)
		e.source = r
		out = append(out, e)
	}
	return out
}

// change is what one nftables transaction does.
type change map[element]bool // true: add, false: delete

// elementChanges adds to up what must be there before new is programmed, and to
// down what must go after; of these one may be nil, which isn't asked for. With
// repair nothing is taken for granted: every element of the key is stated.
// Before are the frontends that may have left elements.
func (r *room) elementChanges(up, down change, key vip.FrontendKey, mark uint32, before []*vip.Frontend, new *vip.Frontend, repair bool) {
	had, needs := r.had[:0], r.needed[:0]
	if up == nil && len(before) == 0 && !repair {
		return
	}
	if new != nil {
		needs = elements(needs, new, mark)
	}
	if repair {
		had = possible(had, key, mark)
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
		case (e.set == setRestricted || e.set == setMarkedRestricted) && new != nil:
			if up != nil {
				up[e] = false // together with the sources, else nobody could come in between
			}
		case down != nil:
			down[e] = false
		}
	}
	if new == nil || repair || len(before) != 1 || !sameSources(before[0], new) {
		sourceChanges(up, down, mark, before, new, repair)
	}
}

// sourceChanges does the same for source ranges. While there is a frontend they
// change at once, whole: old ones may overlap new ones, and a set that has one
// can't take the other.
func sourceChanges(up, down change, mark uint32, before []*vip.Frontend, new *vip.Frontend, repair bool) {
	had := map[element]bool{}
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

// holdings count which frontends share an address of the device, and which a
// hairpin element. The zero value is not ready: use newHoldings.
type holdings struct {
	frontends map[vip.FrontendKey]*vip.Frontend
	ranges    map[portSpace][]vip.FrontendKey
	vips      map[netip.Addr]int
	hairpins  map[netip.Addr]int
	tunnels   map[netip.Addr]int // see tunnelsHere
	pods      *netipx.IPSet
}

func newHoldings(pods *netipx.IPSet) *holdings {
	return &holdings{
		frontends: map[vip.FrontendKey]*vip.Frontend{},
		ranges:    map[portSpace][]vip.FrontendKey{},
		vips:      map[netip.Addr]int{},
		hairpins:  map[netip.Addr]int{},
		tunnels:   map[netip.Addr]int{},
		pods:      pods,
	}
}

// set records that key is f from now on; nil is absent. It costs O(backends).
func (h *holdings) set(key vip.FrontendKey, f *vip.Frontend) {
	if old := h.frontends[key]; old != nil {
		h.count(old, -1)
		delete(h.frontends, key)
	}
	if f != nil {
		h.count(f, 1)
		h.frontends[key] = f
	}
}

func (h *holdings) count(f *vip.Frontend, n int) {
	if onDevice(f) {
		add(h.vips, f.Key.Addr, n)
	}
	for _, a := range tunnelsHere(f) {
		add(h.tunnels, a, n)
	}
	if f.Key.Ranged() {
		space := portSpaceOf(f)
		h.ranges[space] = slices.DeleteFunc(h.ranges[space], func(k vip.FrontendKey) bool { return k == f.Key })
		if n > 0 {
			h.ranges[space] = append(h.ranges[space], f.Key)
		} else if len(h.ranges[space]) == 0 {
			delete(h.ranges, space)
		}
	}
	for _, a := range h.hairpinsOf(f) {
		add(h.hairpins, a, n)
	}
}

// portSpace is within what ranges of ports must not overlap: an interval set
// takes no element that overlaps another.
type portSpace struct {
	set      setID
	addr     netip.Addr
	protocol vip.Protocol
}

func portSpaceOf(f *vip.Frontend) portSpace {
	return portSpace{recordOf(f), f.Key.Addr, f.Key.Protocol}
}

func portsOf(k vip.FrontendKey) vip.PortKey {
	return vip.PortKey{Port: k.Port, LastPort: k.LastPort, Protocol: k.Protocol}
}

func add(m map[netip.Addr]int, a netip.Addr, n int) {
	if n += m[a]; n != 0 {
		m[a] = n
	} else {
		delete(m, a)
	}
}

// hairpinsOf returns the backends of f that need masquerading when they are
// their own client: those that auto spares otherwise, for being pods, and under
// own all.
func (h *holdings) hairpinsOf(f *vip.Frontend) []netip.Addr {
	every := false
	switch m := masquerade(f); {
	case m == vip.MasqueradeOwn:
		every = true
	case m != vip.MasqueradeAuto || len(h.pods.Ranges()) == 0:
		return nil
	}
	var out []netip.Addr
	for _, b := range f.Backends {
		// Backends are sorted by address: two ports of one stand side by side.
		if a := b.Addr.Addr(); (every || h.pods.Contains(a)) && (len(out) == 0 || out[len(out)-1] != a) {
			out = append(out, a)
		}
	}
	return out
}

// all returns every element that the held frontends need, with their marks. It
// leaves out what no table can hold and only a foreign hand leads to: a frontend
// that has lost its mark, and the higher of two ranges of ports that overlap.
func (h *holdings) all(m *marks) change {
	c := make(change, 3*len(h.frontends)+len(h.hairpins))
	var buf []element
	for _, f := range h.frontends {
		mark := m.get(f.Key)
		overlaps := func(k vip.FrontendKey) bool {
			return vip.CompareFrontendKeys(k, f.Key) < 0 && portsOf(k).Overlaps(portsOf(f.Key))
		}
		if hasMark(f) && mark == 0 || f.Key.Ranged() && slices.ContainsFunc(h.ranges[portSpaceOf(f)], overlaps) {
			continue
		}
		buf = sourceElements(elements(buf[:0], f, mark), f, mark)
		for _, e := range buf {
			c[e] = true
		}
	}
	for a := range h.vips {
		c[addrElement(setVIPs, a)] = true
	}
	for a := range h.hairpins {
		c[addrElement(setHairpin, a)] = true
	}
	return c
}

func addrElement(s setID, a netip.Addr) element {
	return element{set: s, key: vip.FrontendKey{Addr: a}}
}

// podSet merges prefixes into disjoint ranges.
func podSet(prefixes []netip.Prefix) *netipx.IPSet {
	var b netipx.IPSetBuilder
	for _, p := range prefixes {
		b.AddPrefix(p.Masked())
	}
	s, err := b.IPSet()
	if err != nil { // only from an invalid prefix; those before it count
		s = &netipx.IPSet{}
	}
	return s
}
