package kubernetes

import (
	"cmp"
	"fmt"
	"net/netip"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"

	"github.com/ironvip/ironvip/vip"
	"github.com/ironvip/ironvip/vip/spec"
	"github.com/ironvip/ironvip/vip/spec/strict"
)

// group is a usable slice with the numbers of the Service's ports on its endpoints.
type group struct {
	slice   *discoveryv1.EndpointSlice
	family  vip.Family
	numbers []uint16 // by port of the Service; 0: not served
}

// groups returns the usable slices, the newest first. If two slices differ about an endpoint and
// both states are equally good, the newer slice is used.
//
// Slices with names are left out, because names are not looked up. Slices of a family that the
// Service does not have are left out too. They exist while its families change.
func (b *builder) groups(slicesOf []*discoveryv1.EndpointSlice) []group {
	slicesOf = slices.Clone(slicesOf)
	slices.SortFunc(slicesOf, func(x, y *discoveryv1.EndpointSlice) int {
		return cmp.Or(y.CreationTimestamp.Compare(x.CreationTimestamp.Time), cmp.Compare(x.Name, y.Name))
	})
	var out []group
	var portless string // a slice without a port of the Service
	names := 0
	for _, s := range slicesOf {
		g := group{slice: s}
		switch s.AddressType {
		case discoveryv1.AddressTypeIPv4:
			g.family = vip.IPv4
		case discoveryv1.AddressTypeIPv6:
			g.family = vip.IPv6
		default:
			names += len(s.Endpoints)
			continue
		}
		if len(s.Endpoints) == 0 || !b.has(g.family) {
			continue
		}
		var serves bool
		if g.numbers, serves = b.numbers(s.Ports); serves {
			out = append(out, g)
		} else if portless == "" || s.Name < portless {
			portless = s.Name
		}
	}
	if portless != "" {
		b.warn(vip.CodeInvalid, bracket("endpointslices", portless)+".ports",
			"give them the names and protocols of spec.ports; a targetPort that is a name needs a containerPort of this name",
			"none is a port of the Service; its endpoints are left out")
	}
	if names > 0 {
		b.warn(vip.CodeUnsupported, "endpoints", "use endpoints with addresses", "%d are left out: they have names, which are not looked up", names)
	}
	return out
}

// numbers returns the port numbers on a slice's endpoints for the Service's ports, by name and
// protocol, and whether any exist. A port without a number means all ports. It is ignored, as by
// kube-proxy.
func (b *builder) numbers(ports []discoveryv1.EndpointPort) (out []uint16, any bool) {
	out = make([]uint16, len(b.s.Spec.Ports))
	for i := range out {
		want := &b.s.Spec.Ports[i]
		for j := range ports {
			p := &ports[j]
			if p.Port == nil || *p.Port < 1 || *p.Port > 65535 || value(p.Name) != want.Name ||
				cmp.Or(value(p.Protocol), corev1.ProtocolTCP) != cmp.Or(want.Protocol, corev1.ProtocolTCP) {
				continue
			}
			out[i], any = uint16(*p.Port), true
			break
		}
	}
	return out, any
}

func value[T any](p *T) (v T) {
	if p != nil {
		v = *p
	}
	return v
}

// targets sets the target ports and reports whether all backends use the same ones. The backends
// then need no own ports. Direct routing keeps the port number, so common is false if a target port
// differs from the service's port. Each endpoint then has its own port and causes its own problem.
func (b *builder) targets(groups []group) (common bool) {
	if len(groups) == 0 {
		return true
	}
	first := groups[0].numbers
	for i := range groups {
		if !slices.Equal(groups[i].numbers, first) {
			return false
		}
	}
	forward := cmp.Or(b.draft.Forward, vip.ForwardNAT.String())
	for i, n := range first {
		if n == 0 || forward != vip.ForwardNAT.String() && int(n) != b.draft.Ports[i].Port.First {
			return false
		}
	}
	for i, n := range first {
		b.draft.Ports[i].TargetPort = spec.PortNumber(n)
	}
	return true
}

// endpointServers returns the backends from the slices. Each address has one backend, or one for
// each port number if endpoints have different ports. An endpoint that moves can be in two slices.
// It is one backend, in the better of its two states.
//
// Common states that all endpoints have the service's target ports.
func (b *builder) endpointServers(nodes nodeSet, groups []group, common bool) []server {
	n := 0
	for i := range groups {
		n += len(groups[i].slice.Endpoints)
	}
	all := newServers(n)
	for i := range groups {
		g := &groups[i]
		places := []place{{0, b.all()}}
		if !common {
			places = placesOf(g.numbers)
		}
		for j := range g.slice.Endpoints {
			e := &g.slice.Endpoints[j]
			a, use := g.address(e)
			if !use {
				continue
			}
			made := server{rank: rankOf(&e.Conditions), why: whyIdle(&e.Conditions), address: a, slice: g.slice.Name, at: j}
			made.Address, made.Node, made.Zone = e.Addresses[0], value(e.NodeName), value(e.Zone)
			made.Weight = nodes[made.Node].weighs()
			if h := e.Hints; h != nil {
				made.ForZones = namesOf(h.ForZones, func(z discoveryv1.ForZone) string { return z.Name })
				made.ForNodes = namesOf(h.ForNodes, func(n discoveryv1.ForNode) string { return n.Name })
			}
			for _, p := range places {
				made.Port, made.ports = spec.PortNumber(p.number), p.ports
				all.add(made)
			}
		}
	}
	return b.finished(all.list)
}

// address returns the first address of an endpoint. Other addresses are ignored. Use is false if
// its family differs from the slice's. An invalid address counts as usable here, because spec
// reports it as a problem.
func (g *group) address(e *discoveryv1.Endpoint) (a netip.Addr, use bool) {
	if len(e.Addresses) == 0 {
		return a, false
	}
	a, err := netip.ParseAddr(e.Addresses[0])
	return a, err != nil || vip.FamilyOf(a) == g.family
}

// namesOf returns the names of hints without duplicates.
func namesOf[T any](in []T, name func(T) string) []string {
	if len(in) == 0 {
		return nil
	}
	out := make([]string, len(in))
	for i := range in {
		out[i] = name(in[i])
	}
	slices.Sort(out)
	return slices.Compact(out)
}

// place is a port number of an endpoint and the Service's ports that it serves.
type place struct {
	number uint16
	ports  portSet
}

// placesOf groups the Service's ports by their port number on the endpoint.
func placesOf(numbers []uint16) (out []place) {
	for i, n := range numbers {
		if n == 0 {
			continue
		}
		at := slices.IndexFunc(out, func(p place) bool { return p.number == n })
		if at < 0 {
			at = len(out)
			out = append(out, place{number: n})
		}
		out[at].ports.add(i)
	}
	return out
}

// portSet is a set of a Service's ports, by index. It is large enough for the maximum number of
// ports.
type portSet [spec.MaxPorts / 64]uint64

func (s *portSet) add(i int) {
	if i < spec.MaxPorts {
		s[i/64] |= 1 << (i % 64)
	}
}

func (s *portSet) has(i int) bool { return i < spec.MaxPorts && s[i/64]&(1<<(i%64)) != 0 }

func (s *portSet) join(o portSet) {
	for i := range s {
		s[i] |= o[i]
	}
}

// all returns the set of all ports of the Service.
func (b *builder) all() (out portSet) {
	for i := range b.s.Spec.Ports {
		out.add(i)
	}
	return out
}

// finished sets the states of servers. It also sets the ports of servers that do not serve all
// ports.
func (b *builder) finished(servers []server) []server {
	names := map[portSet][]string{b.all(): nil}
	for i := range servers {
		s := &servers[i]
		list, known := names[s.ports]
		if !known {
			for j := range b.draft.Ports {
				if s.ports.has(j) {
					list = append(list, b.portName(j))
				}
			}
			names[s.ports] = list
		}
		s.Ports, s.State, s.Health = list, s.rank.state().String(), s.rank.health()
		if s.rank >= rankUnhealthy {
			s.Reason = vip.ReasonText(s.why)
		}
	}
	return servers
}

// portName returns the name that spec uses for a port.
func (b *builder) portName(i int) string {
	p := &b.s.Spec.Ports[i]
	if p.Name != "" {
		return p.Name
	}
	return fmt.Sprintf("%d/%s", p.Port, strings.ToLower(string(cmp.Or(p.Protocol, corev1.ProtocolTCP))))
}

// server is a backend before the build.
type server struct {
	spec.Backend
	rank    rank
	why     string     // why it receives no new connections, if so
	address netip.Addr // zero if it has no valid address
	ports   portSet
	slice   string // the slice that contains it; "" for a node
	at      int
	order   int    // among those of its rank and family; only for limit
	group   string // of a listener
}

// field returns the field that the server comes from.
func (s *server) field() string {
	if s.slice == "" {
		return bracket("nodes", s.Node)
	}
	return strict.Index(bracket("endpointslices", s.slice)+".endpoints", s.at)
}

// rank orders servers, the best first.
type rank uint8

const (
	rankReady       rank = iota
	rankTerminating      // terminating, and still serving
	rankUnhealthy        // not ready
	rankLeaving          // terminating, and no longer serving
)

func (r rank) state() vip.State {
	return [...]vip.State{rankReady: vip.Ready, rankTerminating: vip.Terminating, rankUnhealthy: vip.Ready, rankLeaving: vip.Drain}[r]
}

// health returns what Kubernetes observed: its readiness probes decide whether an endpoint is ready.
func (r rank) health() vip.Health {
	if r == rankUnhealthy {
		return vip.Unhealthy
	}
	return vip.Healthy
}

// rankOf returns the rank of an endpoint by its conditions. Missing conditions have kube-proxy's
// defaults. A ready endpoint is rankReady even while it terminates, because
// publishNotReadyAddresses has that effect. An endpoint that is not ready stays a backend without
// new connections, so that its open connections continue while the pod exists.
func rankOf(c *discoveryv1.EndpointConditions) rank {
	switch {
	case c.Ready == nil || *c.Ready:
		return rankReady
	case (c.Serving == nil || *c.Serving) && value(c.Terminating):
		return rankTerminating
	}
	if value(c.Terminating) {
		return rankLeaving
	}
	return rankUnhealthy
}

// whyIdle returns why an endpoint receives no new connections, if so.
func whyIdle(c *discoveryv1.EndpointConditions) string {
	if value(c.Terminating) {
		return "Kubernetes endpoint terminating"
	}
	return "Kubernetes endpoint not ready"
}

// servers are backends before the build, unique by address and port.
type servers struct {
	list  []server
	index map[netip.AddrPort]int
}

func newServers(room int) *servers {
	return &servers{list: make([]server, 0, room), index: make(map[netip.AddrPort]int, room)}
}

// add adds a server. If it duplicates an earlier one, the better of the two is kept, or the earlier
// one if they are equal. The result serves the ports of both.
func (all *servers) add(s server) {
	key := netip.AddrPortFrom(s.address, uint16(s.Port))
	at, twice := all.index[key]
	if !twice || !s.address.IsValid() {
		all.index[key] = len(all.list)
		all.list = append(all.list, s)
		return
	}
	was := &all.list[at]
	both := was.ports
	both.join(s.ports)
	if s.rank < was.rank {
		*was = s
	}
	was.ports = both
}

// limit drops the servers above the maximum of a service. It drops the worst ones first. Among
// equally good servers it keeps equal numbers of both families, and drops the last ones of each.
func (b *builder) limit(in []server) []server {
	most := min(spec.MaxBackends, spec.MaxEndpoints/max(1, len(b.draft.Ports)))
	if len(in) <= most {
		return in
	}
	b.warn(vip.CodeInvalid, "endpoints", "split the Service", "%d are more than %d: some are left out", len(in), most)
	slices.SortStableFunc(in, func(x, y server) int {
		return cmp.Or(cmp.Compare(x.rank, y.rank), x.address.Compare(y.address), cmp.Compare(x.Port, y.Port))
	})
	type kind struct {
		rank   rank
		family vip.Family
	}
	count := map[kind]int{}
	for i := range in {
		k := kind{in[i].rank, vip.FamilyOf(in[i].address)}
		in[i].order = count[k]
		count[k]++
	}
	slices.SortStableFunc(in, func(x, y server) int { return cmp.Or(cmp.Compare(x.rank, y.rank), cmp.Compare(x.order, y.order)) })
	return in[:most]
}
