package ipvs

import (
	"fmt"
	"net/netip"
	"slices"

	"github.com/ironvip/ironvip/vip"
	"go4.org/netipx"
)

// setID names one of the table's sets, up to the address family.
type setID uint8

// The sets. What is in them is all the state that the table has.
const (
	setFrontends  setID = iota // address . protocol . port of frontends on virtual addresses
	setNodePorts               // the same of node ports: how a restarted agent knows its own
	setRefused                 // frontends without a usable backend
	setMasqAlways              // frontends whose clients' addresses are always replaced
	setMasqAuto                // frontends where that depends on the client
	setVIPs                    // virtual addresses
	setHairpin                 // backends that may be their own client: address . the same address
	setPods                    // pod ranges; an interval set
	setCount
)

var setNames = [setCount]string{"frontends", "nodeports", "refused", "masq_always", "masq_auto", "vips", "hairpin", "pods"}

// elemKind is the shape of a set's elements.
type elemKind uint8

const (
	kindListener elemKind = iota // address . protocol . port
	kindAddr
	kindPair  // address . address
	kindRange // interval of addresses
)

func (s setID) kind() elemKind {
	switch s {
	case setVIPs:
		return kindAddr
	case setHairpin:
		return kindPair
	case setPods:
		return kindRange
	}
	return kindListener
}

func (s setID) name(f vip.Family) string {
	if f == vip.IPv4 {
		return setNames[s] + "4"
	}
	return setNames[s] + "6"
}

// element is one element of one set. For addresses and pairs, the key has an
// address only.
type element struct {
	set setID
	key vip.FrontendKey
}

func (e element) String() string {
	k := any(e.key.Addr)
	if e.set.kind() == kindListener {
		k = e.key
	}
	return fmt.Sprintf("%v in set %s", k, e.set.name(vip.FamilyOf(e.key.Addr)))
}

// listenerSets are the sets that hold frontends.
var listenerSets = []setID{setFrontends, setNodePorts, setRefused, setMasqAlways, setMasqAuto}

// masquerade is f's mode in normal form: a node port's clients come from
// anywhere, so there auto is always (as kube-proxy does for cluster policy).
func masquerade(f *vip.Frontend) vip.Masquerade {
	switch {
	case f.Masquerade == vip.MasqueradeNever, f.Masquerade == vip.MasqueradeAlways:
		return f.Masquerade
	case f.Kind == vip.OnHost:
		return vip.MasqueradeAlways
	}
	return vip.MasqueradeAuto
}

// elements appends the elements that f itself needs. Those of its address and
// its backends are shared between frontends, see holdings.
func elements(out []element, f *vip.Frontend) []element {
	set := setFrontends
	if f.Kind == vip.OnHost {
		set = setNodePorts
	}
	out = append(out, element{set, f.Key})
	if !f.Usable() {
		out = append(out, element{setRefused, f.Key})
	}
	switch masquerade(f) {
	case vip.MasqueradeAlways:
		out = append(out, element{setMasqAlways, f.Key})
	case vip.MasqueradeAuto:
		out = append(out, element{setMasqAuto, f.Key})
	}
	return out
}

// change is what one nftables transaction does.
type change map[element]bool // true: add, false: delete

// elementChanges adds to up what must be there before new is programmed, and to
// down what must go after. With repair nothing is taken for granted: every
// element of the key is stated.
func elementChanges(up, down change, key vip.FrontendKey, old, new *vip.Frontend, repair bool) {
	var before, after []element
	if new != nil {
		after = elements(after, new)
	}
	if repair {
		for _, s := range listenerSets {
			before = append(before, element{s, key})
		}
	} else if old != nil {
		before = elements(before, old)
	}
	for _, e := range after {
		if repair || !slices.Contains(before, e) {
			up[e] = true
		}
	}
	for _, e := range before {
		if !slices.Contains(after, e) {
			down[e] = false
		}
	}
}

// holdings count which frontends share an address of the device, and which a
// hairpin element. The zero value is not ready: use newHoldings.
type holdings struct {
	frontends map[vip.FrontendKey]*vip.Frontend
	vips      map[netip.Addr]int
	hairpins  map[netip.Addr]int
	pods      *netipx.IPSet
}

func newHoldings(pods *netipx.IPSet) *holdings {
	return &holdings{
		frontends: map[vip.FrontendKey]*vip.Frontend{},
		vips:      map[netip.Addr]int{},
		hairpins:  map[netip.Addr]int{},
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
	if f.Kind == vip.OnVIP {
		add(h.vips, f.Key.Addr, n)
	}
	for _, a := range h.hairpinsOf(f) {
		add(h.hairpins, a, n)
	}
}

func add(m map[netip.Addr]int, a netip.Addr, n int) {
	if m[a] += n; m[a] == 0 {
		delete(m, a)
	}
}

// hairpinsOf returns the backends of f that need masquerading when they are
// their own client: those that auto spares otherwise, for being pods.
func (h *holdings) hairpinsOf(f *vip.Frontend) []netip.Addr {
	if len(h.pods.Ranges()) == 0 || masquerade(f) != vip.MasqueradeAuto {
		return nil
	}
	var out []netip.Addr
	for _, b := range f.Backends {
		// Backends are sorted by address: two ports of one stand side by side.
		if a := b.Addr.Addr(); h.pods.Contains(a) && (len(out) == 0 || out[len(out)-1] != a) {
			out = append(out, a)
		}
	}
	return out
}

// all returns every element that the held frontends need.
func (h *holdings) all() change {
	c := change{}
	var buf []element
	for _, f := range h.frontends {
		buf = elements(buf[:0], f)
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

func addrElement(s setID, a netip.Addr) element { return element{s, vip.FrontendKey{Addr: a}} }

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
