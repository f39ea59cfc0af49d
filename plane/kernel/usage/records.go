package usage

import (
	"fmt"
	"net/netip"
	"slices"

	"go4.org/netipx"

	"github.com/ironvip/ironvip/vip"
)

// Records are the frontends that Apply has programmed or adopted. They count how many
// frontends share a virtual address, a hairpin element and a tunnel device.
// Use NewRecords.
type Records struct {
	Frontends map[vip.FrontendKey]*vip.Frontend
	Ranges    map[PortSpace][]vip.FrontendKey
	VIPs      map[netip.Addr]int
	Hairpins  map[netip.Addr]int
	Tunnels   map[netip.Addr]int // see LocalTunnels
	Pods      *netipx.IPSet
}

// NewRecords returns empty records. Pods are the ranges of clients that keep their address.
func NewRecords(pods *netipx.IPSet) *Records {
	return &Records{
		Frontends: map[vip.FrontendKey]*vip.Frontend{},
		Ranges:    map[PortSpace][]vip.FrontendKey{},
		VIPs:      map[netip.Addr]int{},
		Hairpins:  map[netip.Addr]int{},
		Tunnels:   map[netip.Addr]int{},
		Pods:      pods,
	}
}

// With returns the same records with other ranges of clients that keep their address.
func (h *Records) With(pods *netipx.IPSet) *Records {
	now := NewRecords(pods)
	for k, f := range h.Frontends {
		now.Set(k, f)
	}
	return now
}

// Set records f at key. Nil means absent. It costs O(backends).
func (h *Records) Set(key vip.FrontendKey, f *vip.Frontend) {
	if old := h.Frontends[key]; old != nil {
		h.count(old, -1)
		delete(h.Frontends, key)
	}
	if f != nil {
		h.count(f, 1)
		h.Frontends[key] = f
	}
}

// At returns the recorded frontend that has the port of k, by itself or in a range of ports, or nil.
func (h *Records) At(k vip.FrontendKey) *vip.Frontend {
	if f := h.Frontends[k]; f != nil {
		return f
	}
	ranges := h.Ranges[PortSpaceOf(&vip.Frontend{Key: k})]
	i := slices.IndexFunc(ranges, func(r vip.FrontendKey) bool { return r.Port <= k.Port && k.Port <= r.LastPort })
	if i < 0 {
		return nil
	}
	return h.Frontends[ranges[i]]
}

func (h *Records) count(f *vip.Frontend, n int) {
	if OnDevice(f) {
		add(h.VIPs, f.Key.Addr, n)
	}
	for _, a := range LocalTunnels(f) {
		add(h.Tunnels, a, n)
	}
	if f.Key.Ranged() {
		space := PortSpaceOf(f)
		h.Ranges[space] = slices.DeleteFunc(h.Ranges[space], func(k vip.FrontendKey) bool { return k == f.Key })
		if n > 0 {
			h.Ranges[space] = append(h.Ranges[space], f.Key)
		} else if len(h.Ranges[space]) == 0 {
			delete(h.Ranges, space)
		}
	}
	for _, a := range h.HairpinsOf(f) {
		add(h.Hairpins, a, n)
	}
}

// PortSpace is where ranges of ports must not overlap, because an interval set rejects
// overlapping elements.
type PortSpace struct {
	kind     vip.FrontendKind // OnRealServer or 0: they have different sets
	audience vip.Audience
	addr     netip.Addr
	protocol vip.Protocol
}

// PortSpaceOf returns f's.
func PortSpaceOf(f *vip.Frontend) PortSpace {
	s := PortSpace{audience: f.Key.Audience, addr: f.Key.Addr, protocol: f.Key.Protocol}
	if f.Kind == vip.OnRealServer {
		s.kind, s.audience = f.Kind, vip.Everyone
	}
	return s
}

// PortsOf returns the ports of a key.
func PortsOf(k vip.FrontendKey) vip.PortKey {
	return vip.PortKey{Port: k.Port, LastPort: k.LastPort, Protocol: k.Protocol}
}

func add(m map[netip.Addr]int, a netip.Addr, n int) {
	if n += m[a]; n != 0 {
		m[a] = n
	} else {
		delete(m, a)
	}
}

// HairpinsOf returns the backends of f that need masquerading when they are their own
// client: under auto the pods, which keep their address otherwise, and under own all.
func (h *Records) HairpinsOf(f *vip.Frontend) []netip.Addr {
	every := false
	switch m := Masquerade(f); {
	case m == vip.MasqueradeOwn:
		every = true
	case m != vip.MasqueradeAuto || len(h.Pods.Ranges()) == 0:
		return nil
	}
	var out []netip.Addr
	for _, b := range f.Backends {
		// Backends are sorted by address.
		if a := b.Addr.Addr(); (every || h.Pods.Contains(a)) && (len(out) == 0 || out[len(out)-1] != a) {
			out = append(out, a)
		}
	}
	return out
}

// HasBackend reports whether a frontend, which may be nil, has a backend.
func HasBackend(f *vip.Frontend, a netip.AddrPort) bool {
	return f != nil && slices.ContainsFunc(f.Backends, func(b vip.Endpoint) bool { return b.Addr == a })
}

// Clash reports whether the ranges of ports of two frontends overlap.
func Clash(a, b *vip.Frontend) bool {
	return a.Key.Ranged() && b.Key.Ranged() && a.Key != b.Key && PortSpaceOf(a) == PortSpaceOf(b) && PortsOf(a.Key).Overlaps(PortsOf(b.Key))
}

// Overlaps returns an error if the ports of f overlap a recorded range that isn't about to be removed. A single port
// precedes ranges and overlaps none. It costs O(ranges of the address).
func (h *Records) Overlaps(f *vip.Frontend, goes func(vip.FrontendKey) bool) error {
	if !f.Key.Ranged() {
		return nil
	}
	for _, k := range h.Ranges[PortSpaceOf(f)] {
		if k != f.Key && PortsOf(k).Overlaps(PortsOf(f.Key)) && !goes(k) {
			return PortsStillUsed(f.Key, k)
		}
	}
	return nil
}

// PortsStillUsed is the error of a range of ports that overlaps another one.
func PortsStillUsed(k, other vip.FrontendKey) error {
	return vip.Problem{
		Code:    vip.CodePortTaken,
		Message: fmt.Sprintf("the ports of %s overlap those of %s, which still exists", k, other),
		Hint:    "wait: the agent tries again until the other one is removed",
	}
}
