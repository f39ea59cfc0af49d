package compile

import (
	"cmp"
	"net/netip"
	"slices"

	"github.com/ironvip/ironvip/vip"
)

// choice is which backends of one family serve clients of one port under one
// traffic policy: how far they may be, and which of those take new connections.
//
// Local reaches this node only. Cluster reaches all or, where backends are meant
// for some clients or the service prefers near ones, and one such is ready,
// those. Of what is within reach the ready ones with a weight take new
// connections; if there are none, those that serve while they terminate. If
// there are none of these either, nobody does: what is out of reach never stands
// in.
type choice struct {
	family vip.Family
	port   string // the port's name; "" is any, where all backends serve all ports
	reach  reach
	takes  vip.State // takes new connections where it has a weight; zero is none
}

// reach is how far from this node a backend may be.
type reach uint8

const (
	anywhere   reach = iota
	sameZone         // backends in this node's zone
	sameNode         // backends on this node
	hintedZone       // backends meant for this node's zone
	hintedNode       // backends meant for this node
)

// choose decides in O(backends).
func choose(in *Input, family vip.Family, port string, policy vip.TrafficPolicy) choice {
	c := choice{family: family, port: port, reach: sameNode}
	if policy != vip.Local {
		c.reach = c.preferred(in)
	}
	c.takes = c.takers(in)
	return c
}

// takers returns the state of those within reach that take new connections.
func (c *choice) takers(in *Input) (state vip.State) {
	for i := range in.Service.Backends {
		b := &in.Service.Backends[i]
		if b.Weight == 0 || !c.reaches(in, b) {
			continue
		}
		switch EffectiveState(in.Service.Key, b, in.State) {
		case vip.Ready:
			return vip.Ready
		case vip.Terminating:
			state = vip.Terminating
		}
	}
	return state
}

// preferred returns how far clients reach under the cluster policy: as near as
// hints say or, where no ready backend has any, as the service prefers and a
// backend is ready. Hints and zones count only where each ready backend has
// one: one that nobody placed may be the nearest of all.
func (c *choice) preferred(in *Input) reach {
	var node, zone, unplaced bool
	var hinted hints
	n, s := &in.Node, in.Service
	if s.Distribution != vip.PreferSameNode && s.Distribution != vip.PreferSameZone && !slices.ContainsFunc(s.Backends, hasHints) {
		return anywhere // without asking for the state of each
	}
	for i := range s.Backends {
		b := &s.Backends[i]
		if b.Weight == 0 || !c.serves(b) || EffectiveState(s.Key, b, in.State) != vip.Ready {
			continue
		}
		hinted.note(n, b)
		node = node || n.has(b)
		zone = zone || b.Zone == n.Zone
		unplaced = unplaced || b.Zone == ""
	}
	switch {
	case hinted.any:
		return hinted.reach()
	case s.Distribution == vip.PreferSameNode && node:
		return sameNode
	case s.Distribution != vip.PreferSameNode && s.Distribution != vip.PreferSameZone:
		return anywhere
	case zone && !unplaced:
		return sameZone
	}
	return anywhere
}

// hints are what the ready backends of a choice say of whom they are meant for.
type hints struct {
	any                      bool // one of them says something
	noNode, noZone           bool // one of them names no node, no zone
	forThisNode, forThisZone bool // one of them is meant for clients here
}

func (h *hints) note(n *Node, b *vip.Backend) {
	h.any = h.any || hasHints(*b)
	h.noNode = h.noNode || b.ForNodes == ""
	h.noZone = h.noZone || b.ForZones == ""
	h.forThisNode = h.forThisNode || b.ForNodes.Has(n.Name)
	h.forThisZone = h.forThisZone || b.ForZones.Has(n.Zone)
}

// reach follows nodes before zones, as kube-proxy does.
func (h *hints) reach() reach {
	switch {
	case h.forThisNode && !h.noNode:
		return hintedNode
	case h.forThisZone && !h.noZone:
		return hintedZone
	}
	return anywhere
}

func hasHints(b vip.Backend) bool { return b.ForNodes != "" || b.ForZones != "" }

// serves reports whether b is of the family and serves the port.
func (c *choice) serves(b *vip.Backend) bool {
	return vip.FamilyOf(b.Address) == c.family && (c.port == "" || b.Serves(c.port))
}

// reaches reports whether clients may be sent to b at all.
func (c *choice) reaches(in *Input, b *vip.Backend) bool {
	if !c.serves(b) {
		return false
	}
	switch c.reach {
	case sameNode:
		return in.Node.has(b)
	case sameZone:
		return b.Zone == in.Node.Zone
	case hintedNode:
		return b.ForNodes.Has(in.Node.Name)
	case hintedZone:
		return b.ForZones.Has(in.Node.Zone)
	}
	return true
}

// weight returns the share of new connections that a backend within reach takes.
func (c *choice) weight(in *Input, b *vip.Backend) uint32 {
	if EffectiveState(in.Service.Key, b, in.State) != c.takes {
		return 0
	}
	return b.Weight
}

// byPort reports whether the ports of a service have backends of their own, so
// that each has its own choice.
func byPort(s *vip.Service) bool {
	return slices.ContainsFunc(s.Backends, func(b vip.Backend) bool { return b.Ports != "" })
}

// choices are the backends of one service, by family and policy, each worked
// out when it is first asked for: once for all ports, or once a port.
type choices struct {
	byPort bool
	made   [4]bool
	choice [4]choice
	ports  [4][]vip.Endpoint // of the port at hand
}

// next begins with another port of the service.
func (c *choices) next() {
	c.ports = [4][]vip.Endpoint{}
	if c.byPort {
		c.made = [4]bool{}
	}
}

// endpoints returns the endpoints of p, the port at hand, for clients of an
// address. Those of UDP that take no new clients are not among them: UDP has no
// connections that could be kept, and a client that goes on sending from one port
// would stay with a backend that is down for as long as it does.
func (c *choices) endpoints(in *Input, p *vip.Port, a netip.Addr, policy vip.TrafficPolicy) []vip.Endpoint {
	i, family := 0, vip.FamilyOf(a)
	if family == vip.IPv6 {
		i++
	}
	if policy == vip.Local {
		i += 2
	}
	if !c.made[i] {
		port := ""
		if c.byPort {
			port = p.Name
		}
		c.made[i], c.choice[i] = true, choose(in, family, port, policy)
	}
	if c.ports[i] == nil {
		c.ports[i] = endpoints(in, &c.choice[i], p)
		if p.Protocol == vip.UDP {
			c.ports[i] = slices.DeleteFunc(c.ports[i], func(e vip.Endpoint) bool { return e.Weight == 0 })
		}
	}
	return c.ports[i]
}

// LocalReady returns how many ready backends of the service are on this node,
// of the families that it is served on. Terminating ones don't count: it tells
// those who balance over nodes where to send new connections. Backends of one
// address that each serve some of the ports are one server, and count once.
func LocalReady(in *Input) (n int) {
	var last netip.Addr // the last address counted that serves some of the ports
	for i := range in.Service.Backends {
		b := &in.Service.Backends[i]
		if b.Weight == 0 || !servesFamily(in, b.Address) || !in.Node.has(b) || EffectiveState(in.Service.Key, b, in.State) != vip.Ready {
			continue
		}
		if b.Ports != "" {
			if b.Address == last {
				continue
			}
			last = b.Address
		}
		n++
	}
	return n
}

// Hinted reports whether topology hints decide which backends the service's
// clients are sent to under the cluster policy, at a port and in a family: some
// ready backend has one. The service's traffic distribution then does not count.
func Hinted(s *vip.Service, family vip.Family, port string, override func(vip.BackendKey) (vip.State, bool)) bool {
	c := choice{family: family, port: port}
	return slices.ContainsFunc(s.Backends, func(b vip.Backend) bool {
		return hasHints(b) && b.Weight > 0 && c.serves(&b) && EffectiveState(s.Key, &b, override) == vip.Ready
	})
}

// EffectiveState returns the state that is in force for a backend: the
// operator's word, else the source's. A backend without a state is ready.
// Override may be nil.
func EffectiveState(service vip.ServiceKey, b *vip.Backend, override func(vip.BackendKey) (vip.State, bool)) vip.State {
	if override != nil {
		if state, ok := override(b.Key(service)); ok {
			return state
		}
	}
	return cmp.Or(b.State, vip.Ready)
}
