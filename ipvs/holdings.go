package ipvs

import (
	"net/netip"
	"slices"

	"go4.org/netipx"

	"github.com/ironvip/ironvip/ipvs/internal/filter"
	"github.com/ironvip/ironvip/vip"
)

// records are the frontends that Apply has programmed or adopted. They count how many
// frontends share an address of the device, a hairpin element and a tunnel device.
// Use newRecords.
type records struct {
	frontends map[vip.FrontendKey]*vip.Frontend
	ranges    map[portSpace][]vip.FrontendKey
	vips      map[netip.Addr]int
	hairpins  map[netip.Addr]int
	tunnels   map[netip.Addr]int // see localTunnels
	pods      *netipx.IPSet
}

func newRecords(pods *netipx.IPSet) *records {
	return &records{
		frontends: map[vip.FrontendKey]*vip.Frontend{},
		ranges:    map[portSpace][]vip.FrontendKey{},
		vips:      map[netip.Addr]int{},
		hairpins:  map[netip.Addr]int{},
		tunnels:   map[netip.Addr]int{},
		pods:      pods,
	}
}

// set records f at key. Nil means absent. It costs O(backends).
func (h *records) set(key vip.FrontendKey, f *vip.Frontend) {
	if old := h.frontends[key]; old != nil {
		h.count(old, -1)
		delete(h.frontends, key)
	}
	if f != nil {
		h.count(f, 1)
		h.frontends[key] = f
	}
}

func (h *records) count(f *vip.Frontend, n int) {
	if onDevice(f) {
		add(h.vips, f.Key.Addr, n)
	}
	for _, a := range localTunnels(f) {
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

// portSpace is where ranges of ports must not overlap, because an interval set rejects
// overlapping elements.
type portSpace struct {
	set      filter.Set
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

// hairpinsOf returns the backends of f that need masquerading when they are their own
// client: under auto the pods, which keep their address otherwise, and under own all.
func (h *records) hairpinsOf(f *vip.Frontend) []netip.Addr {
	every := false
	switch m := masquerade(f); {
	case m == vip.MasqueradeOwn:
		every = true
	case m != vip.MasqueradeAuto || len(h.pods.Ranges()) == 0:
		return nil
	}
	var out []netip.Addr
	for _, b := range f.Backends {
		// Backends are sorted by address.
		if a := b.Addr.Addr(); (every || h.pods.Contains(a)) && (len(out) == 0 || out[len(out)-1] != a) {
			out = append(out, a)
		}
	}
	return out
}

// all returns every element that the recorded frontends need. It leaves out what the
// table can't contain and only another program causes: a frontend without its mark,
// and the higher of two overlapping ranges of ports.
func (h *records) all(m *marks) filter.Change {
	c := make(filter.Change, 3*len(h.frontends)+len(h.hairpins))
	var buf []filter.Element
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
		c[filter.AddrElement(filter.SetVIPs, a)] = true
	}
	for a := range h.hairpins {
		c[filter.AddrElement(filter.SetHairpin, a)] = true
	}
	return c
}

// podSet merges prefixes into disjoint ranges.
func podSet(prefixes []netip.Prefix) *netipx.IPSet {
	var b netipx.IPSetBuilder
	for _, p := range prefixes {
		b.AddPrefix(p.Masked())
	}
	s, err := b.IPSet()
	if err != nil { // an invalid prefix, which the configuration rejects
		s = &netipx.IPSet{}
	}
	return s
}
