package compile

import (
	"net/netip"
	"slices"

	"github.com/ironvip/ironvip/vip"
)

// choice states which backends of one family serve clients of one port under one traffic policy:
// how far away they may be, and which of those take new connections.
//
// The local policy reaches this node only. The cluster policy reaches all backends. Where backends
// have topology hints, or the service prefers near backends, it reaches only those, if one of them
// is ready. Within reach, the ready and healthy backends with a weight take new connections. Without
// any, those that serve while they terminate take them, and without these, the backups. Otherwise
// nothing takes new connections: a backend out of reach is never a substitute.
type choice struct {
	family vip.Family
	port   string // the port's name; "" is any port, where all backends serve all ports
	reach  reach
	panics bool   // health has no effect
	scale  uint32 // of the weights, see weightScale
	takes  rank   // the rank that takes new connections; unusable: no backend does
}

// reach is how far from this node a backend may be.
type reach uint8

const (
	anywhere   reach = iota
	sameZone         // backends in this node's zone
	sameNode         // backends on this node
	hintedZone       // backends hinted for this node's zone
	hintedNode       // backends hinted for this node
)

// choose computes the choice. It costs O(backends).
func choose(in *Input, family vip.Family, port string, policy vip.TrafficPolicy) choice {
	c := choice{family: family, port: port, reach: sameNode}
	if policy != vip.Local {
		c.reach = c.preferred(in)
	}
	c.takers(in)
	return c
}

// takers sets which of the backends within reach take new connections.
func (c *choice) takers(in *Input) {
	c.scale = in.weightScale()
	c.panics = in.panics(c.port, func(b *vip.Backend) bool { return c.reaches(in, b) })
	c.takes = unusable
	for i := range in.Service.Backends {
		if b := &in.Service.Backends[i]; c.reaches(in, b) {
			if c.takes = max(c.takes, in.rank(b, c.port, c.panics)); c.takes == ready {
				return
			}
		}
	}
}

// preferred returns the reach of clients under the cluster policy. Hints decide it. If no ready
// backend has hints, it is as near as the service prefers and a backend is ready. Hints and zones
// count only if every ready backend has one, because a backend without one may be the nearest.
func (c *choice) preferred(in *Input) reach {
	var node, zone, unplaced bool
	var hinted hints
	n, s := &in.Node, in.Service
	if s.Distribution != vip.PreferSameNode && s.Distribution != vip.PreferSameZone && !slices.ContainsFunc(s.Backends, hasHints) {
		return anywhere // without looking up any backend's state
	}
	for i := range s.Backends {
		b := &s.Backends[i]
		if !c.serves(b) || n.isRealServerOf(s, b) || in.rank(b, c.port, false) != ready {
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

// hints summarizes the topology hints of the ready backends of a choice.
type hints struct {
	any                      bool // at least one backend has a hint
	noNode, noZone           bool // at least one backend names no node, no zone
	forThisNode, forThisZone bool // at least one backend is meant for clients here
}

func (h *hints) note(n *Node, b *vip.Backend) {
	h.any = h.any || hasHints(*b)
	h.noNode = h.noNode || b.ForNodes == ""
	h.noZone = h.noZone || b.ForZones == ""
	h.forThisNode = h.forThisNode || b.ForNodes.Has(n.Name)
	h.forThisZone = h.forThisZone || b.ForZones.Has(n.Zone)
}

// reach prefers nodes to zones, as kube-proxy does.
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

// reaches reports whether clients may be sent to b.
func (c *choice) reaches(in *Input, b *vip.Backend) bool {
	if !c.serves(b) || in.Node.isRealServerOf(in.Service, b) {
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

// weight returns the share of new connections that a backend within reach takes, within its group if it has one.
func (c *choice) weight(in *Input, b *vip.Backend) uint16 {
	if c.takes == unusable || in.rank(b, c.port, c.panics) != c.takes {
		return 0
	}
	return uint16(b.Weight * c.scale) // at most MaxWeight
}

// resets reports whether the open connections of a backend are reset because it is unhealthy.
func (c *choice) resets(in *Input, b *vip.Backend) bool {
	return in.Service.ResetUnhealthy && !c.panics && in.Unhealthy(b, c.port)
}

// choices caches the backends of one service by family and policy. Each is computed at its first
// use: once for all ports, or once per port.
type choices struct {
	byPort bool
	made   [4]bool
	choice [4]choice
	ports  [4][]vip.Endpoint // of the current port
}

// next moves to another port of the service.
func (c *choices) next() {
	c.ports = [4][]vip.Endpoint{}
	if c.byPort {
		c.made = [4]bool{}
	}
}

// endpoints returns the endpoints of p, the current port, for clients of an address. It omits UDP
// endpoints that take no new clients. UDP has no connections to keep, and a client that continues
// to send from one port would stay with a backend that is down.
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

// LocalReady returns how many ready and healthy backends of the service are on this node, in the
// families that the service is served on. Terminating backends don't count, because load balancers
// over nodes use the number to place new connections. Backends of one address that each serve some
// of the ports are one server and count once.
func LocalReady(in *Input) (n int) {
	var last netip.Addr // the last address counted that serves some of the ports
	for i := range in.Service.Backends {
		b := &in.Service.Backends[i]
		if !servesFamily(in, b.Address) || !in.Node.has(b) || in.Node.isRealServerOf(in.Service, b) || !in.Usable(b) {
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

// Hinted reports whether topology hints decide which backends serve the service's clients under the
// cluster policy, at a port and in a family. This is so if a ready backend has a hint. The
// service's traffic distribution then has no effect.
func (v *View) Hinted(family vip.Family, port string) bool {
	c := choice{family: family, port: port}
	return slices.ContainsFunc(v.Service.Backends, func(b vip.Backend) bool {
		return hasHints(b) && c.serves(&b) && v.rank(&b, port, false) == ready
	})
}
