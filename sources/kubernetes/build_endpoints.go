package kubernetes

import (
	"cmp"
	"fmt"
	"net/netip"
	"slices"
	"strconv"
	"strings"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"

	"github.com/ironvip/ironvip/vip"
	"github.com/ironvip/ironvip/vip/spec"
)

// group is a slice whose endpoints are of use, with where they have the
// Service's ports.
type group struct {
	slice   *discoveryv1.EndpointSlice
	family  vip.Family
	numbers []uint16 // by the Service's ports; 0: they don't serve it
}

// groups sorts out the slices that are of use, the newest first: where two say
// different things of an endpoint that are equally good, the newer is right.
//
// Slices of names are not: names are not looked up. Nor are those of a family
// that the Service hasn't got, which are there while its families change.
func (b *builder) groups(slicesOf []*discoveryv1.EndpointSlice) []group {
	slicesOf = slices.Clone(slicesOf)
	slices.SortFunc(slicesOf, func(x, y *discoveryv1.EndpointSlice) int {
		return cmp.Or(y.CreationTimestamp.Compare(x.CreationTimestamp.Time), cmp.Compare(x.Name, y.Name))
	})
	var out []group
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
		}
	}
	if names > 0 {
		b.warn(vip.CodeUnsupported, "endpoints", "use endpoints with addresses", "%d are left out: they have names, which are not looked up", names)
	}
	return out
}

// numbers returns where endpoints of a slice have the Service's ports, by name
// and protocol, and whether they have any. A port without a number, which stands
// for all, is passed over, as kube-proxy does.
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

// targets settles the ports' targets, and reports whether these are what all
// backends serve: then they need no ports of their own. With direct routing,
// which leaves the port as it is, an endpoint elsewhere is to be found out by
// itself.
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

// endpointServers returns the backends that the slices make: of each address one
// or, where endpoints have ports in different places, one for each of them. An
// endpoint that is in two slices, as while it moves, is one, in the better of
// its two states.
func (b *builder) endpointServers(groups []group) []server {
	common := b.targets(groups)
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
			made := server{rank: rankOf(&e.Conditions), address: a, slice: g.slice.Name, at: j}
			made.Address, made.Node, made.Zone = e.Addresses[0], value(e.NodeName), value(e.Zone)
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

// address returns the address of an endpoint, of which only the first counts.
// One of another family than the slice's is not of use. One that is no address
// is left to spec to say so.
func (g *group) address(e *discoveryv1.Endpoint) (a netip.Addr, use bool) {
	if len(e.Addresses) == 0 {
		return a, false
	}
	a, err := netip.ParseAddr(e.Addresses[0])
	return a, err != nil || vip.FamilyOf(a) == g.family
}

// namesOf returns the names of hints, each once.
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

// place is a port of an endpoint, and the ports of the Service that it serves.
type place struct {
	number uint16
	ports  portSet
}

// placesOf turns where each port is served into what is served in each place.
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

// portSet is a set of a Service's ports, by their places in the list. It has
// room for as many as a service can have.
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

// finished writes down the states of servers and, unless it is all, which ports
// each of them serves.
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
		s.Ports, s.State = list, s.rank.state().String()
	}
	return servers
}

// portName is what spec calls a port.
func (b *builder) portName(i int) string {
	p := &b.s.Spec.Ports[i]
	if p.Name != "" {
		return p.Name
	}
	return fmt.Sprintf("%d/%s", p.Port, strings.ToLower(string(cmp.Or(p.Protocol, corev1.ProtocolTCP))))
}

// server is one backend to be.
type server struct {
	spec.Backend
	rank    rank
	address netip.Addr // the zero Addr where it has none worth using
	ports   portSet
	slice   string // where it was found; "" for a node
	at      int
}

// field says where the server was found.
func (s *server) field() string {
	if s.slice == "" {
		return bracket("nodes", s.Node)
	}
	return fmt.Sprintf("endpointslices[%s].endpoints[%d]", s.slice, s.at)
}

// rank is how good a server is, the best first.
type rank uint8

const (
	rankReady       rank = iota
	rankTerminating      // on its way out, and serves
	rankIdle             // takes nothing new
)

func (r rank) state() vip.State {
	return [...]vip.State{rankReady: vip.Ready, rankTerminating: vip.Terminating, rankIdle: vip.Drain}[r]
}

// rankOf tells how good an endpoint is by its conditions, and what they are
// without being said as kube-proxy takes it. One that is ready is, even where it
// terminates: that is what publishNotReadyAddresses makes of it. One that is not
// stays a backend without new connections, so that those it has go on for as
// long as the pod is there.
func rankOf(c *discoveryv1.EndpointConditions) rank {
	switch {
	case c.Ready == nil || *c.Ready:
		return rankReady
	case (c.Serving == nil || *c.Serving) && value(c.Terminating):
		return rankTerminating
	}
	return rankIdle
}

// servers are backends to be, each address and port once.
type servers struct {
	list  []server
	index map[netip.AddrPort]int
}

func newServers(room int) *servers {
	return &servers{list: make([]server, 0, room), index: make(map[netip.AddrPort]int, room)}
}

// add adds a server, or makes it one with the same that was there. Of two the
// better counts, or the first.
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

// limit drops what is more than a service can have: the worst, and of those
// that are equally good the last of each family, in turns.
func (b *builder) limit(in []server) []server {
	if len(in) <= spec.MaxBackends {
		return in
	}
	b.warn(vip.CodeInvalid, "endpoints", "split the Service", "%d are more than %d: some are left out", len(in), spec.MaxBackends)
	slices.SortStableFunc(in, func(x, y server) int {
		return cmp.Or(cmp.Compare(x.rank, y.rank), x.address.Compare(y.address), cmp.Compare(x.Port, y.Port))
	})
	type kind struct {
		rank   rank
		family vip.Family
	}
	count, turn := map[kind]int{}, make([]int, len(in))
	order := make([]int, len(in))
	for i := range in {
		k := kind{in[i].rank, vip.FamilyOf(in[i].address)}
		order[i], turn[i] = i, count[k]
		count[k]++
	}
	slices.SortStableFunc(order, func(i, j int) int {
		return cmp.Or(cmp.Compare(in[i].rank, in[j].rank), cmp.Compare(turn[i], turn[j]))
	})
	kept := make([]server, spec.MaxBackends)
	for i := range kept {
		kept[i] = in[order[i]]
	}
	return kept
}

// backendOf returns which backend a problem's field is of: "backends[3].address".
func backendOf(field string) (at int, is bool) {
	rest, is := strings.CutPrefix(field, "backends[")
	number, _, closed := strings.Cut(rest, "]")
	at, err := strconv.Atoi(number)
	return at, is && closed && err == nil
}
