package pipeline

import (
	"fmt"
	"slices"
	"sort"

	"github.com/ironvip/ironvip/vip"
)

// portOwnership records which service owns which ports of an address, and which services wait for
// them. The allocator prevents two services from requesting the same ports, with one exception: a
// service that shares its address and requests a port that is taken keeps its address, and thus
// still requests the port. This holds for overlapping ranges as for equal ports. The audiences of the
// same ports belong together: the service that has one has all.
type portOwnership struct {
	byAddress map[addressProtocol]*addressOwnership // with owned ports
	losing    map[addressProtocol][]loser           // in the order of their last try
	lost      map[vip.ServiceKey][]vip.FrontendKey  // the frontends that each service waits for
	taken     map[vip.ServiceKey]struct{}           // services that lost ports to others since their last withdrawal
}

// addressProtocol selects the ports of one protocol at one address. Services contest ports only
// within it.
type addressProtocol struct {
	addr     [16]byte // of either family; a frontend's address is never IPv4 in IPv6
	protocol vip.Protocol
}

func addressProtocolOf(key vip.FrontendKey) addressProtocol {
	return addressProtocol{key.Addr.As16(), key.Protocol}
}

// addressOwnership are the owned ports of one protocol at one address. They never overlap.
type addressOwnership struct {
	owned []ownedPorts // by port
}

type ownedPorts struct {
	first, last uint16
	audiences   uint8 // a bit for each audience that the service serves separately
	service     vip.ServiceKey
}

type loser struct {
	key     vip.FrontendKey
	service vip.ServiceKey
}

func newPortOwnership() portOwnership {
	return portOwnership{
		byAddress: make(map[addressProtocol]*addressOwnership),
		losing:    make(map[addressProtocol][]loser),
		lost:      make(map[vip.ServiceKey][]vip.FrontendKey),
		taken:     make(map[vip.ServiceKey]struct{}),
	}
}

// lostPorts reports whether another service has taken ports of k since k's last withdrawal.
// Otherwise k still owns its ports.
func (c *portOwnership) lostPorts(k vip.ServiceKey) bool {
	_, yes := c.taken[k]
	return yes
}

// ports returns the first and the last port of a key.
func ports(key vip.FrontendKey) (first, last uint16) { return key.Port, max(key.Port, key.LastPort) }

func bit(a vip.Audience) uint8 { return 1 << a }

// meets returns the index range of the owned ports that overlap key's ports. It costs O(log
// owners at the address).
func (l *addressOwnership) meets(key vip.FrontendKey) (from, to int) {
	first, last := ports(key)
	from = sort.Search(len(l.owned), func(i int) bool { return l.owned[i].last >= first })
	for to = from; to < len(l.owned) && l.owned[to].first <= last; to++ {
	}
	return from, to
}

// exactly returns the owner of exactly key's ports, or nil.
func (l *addressOwnership) exactly(key vip.FrontendKey) *ownedPorts {
	first, last := ports(key)
	if i, to := l.meets(key); i < to && l.owned[i].first == first && l.owned[i].last == last {
		return &l.owned[i]
	}
	return nil
}

// held reports whether a service has the key.
func (c *portOwnership) held(key vip.FrontendKey) bool {
	l := c.byAddress[addressProtocolOf(key)]
	if l == nil {
		return false
	}
	held := l.exactly(key)
	return held != nil && held.audiences&bit(key.Audience) != 0
}

// met reports whether a service has some of the key's ports.
func (c *portOwnership) met(key vip.FrontendKey) bool {
	return len(c.rivals(key, vip.ServiceKey{})) > 0
}

// rivals returns the services other than k that own some of the key's ports.
func (c *portOwnership) rivals(key vip.FrontendKey, k vip.ServiceKey) (rivals []ownedPorts) {
	l := c.byAddress[addressProtocolOf(key)]
	if l == nil {
		return nil
	}
	from, to := l.meets(key)
	for _, held := range l.owned[from:to] {
		if held.service != k {
			rivals = append(rivals, held)
		}
	}
	return rivals
}

// take gives the key to k, and takes its ports from others. It also removes k's ownership of other
// ports that overlap, because k has given them up.
func (c *portOwnership) take(key vip.FrontendKey, k vip.ServiceKey) {
	l := c.byAddress[addressProtocolOf(key)]
	if l == nil {
		l = &addressOwnership{}
		c.byAddress[addressProtocolOf(key)] = l
	}
	first, last := ports(key)
	if held := l.exactly(key); held != nil && held.service == k {
		held.audiences |= bit(key.Audience)
		return
	}
	from, to := l.meets(key)
	l.owned = slices.Replace(l.owned, from, to, ownedPorts{first: first, last: last, audiences: bit(key.Audience), service: k})
}

// release removes k's ownership of the key, if any.
func (c *portOwnership) release(key vip.FrontendKey, k vip.ServiceKey) {
	l := c.byAddress[addressProtocolOf(key)]
	if l == nil {
		return
	}
	held := l.exactly(key)
	if held == nil || held.service != k {
		return
	}
	if held.audiences &^= bit(key.Audience); held.audiences == 0 {
		from, to := l.meets(key)
		l.owned = slices.Delete(l.owned, from, to)
	}
	if len(l.owned) == 0 {
		delete(c.byAddress, addressProtocolOf(key))
	}
}

// lose records that k waits for the key.
func (c *portOwnership) lose(key vip.FrontendKey, k vip.ServiceKey) {
	l := addressProtocolOf(key)
	c.losing[l] = append(c.losing[l], loser{key, k})
	c.lost[k] = append(c.lost[k], key)
}

// withdraw removes what k waits for and the record of what was taken from it, before k contests
// again.
func (c *portOwnership) withdraw(k vip.ServiceKey) {
	for _, key := range c.lost[k] {
		l := addressProtocolOf(key)
		rest := slices.DeleteFunc(c.losing[l], func(l loser) bool { return l.service == k && l.key == key })
		if len(rest) == 0 {
			delete(c.losing, l)
		} else {
			c.losing[l] = rest
		}
	}
	delete(c.lost, k)
	delete(c.taken, k)
}

// losers calls yield with the services that wait for some of the key's ports, in the order of their
// last try.
func (c *portOwnership) losers(key vip.FrontendKey, yield func(vip.ServiceKey)) {
	first, last := ports(key)
	for _, l := range c.losing[addressProtocolOf(key)] {
		if a, b := ports(l.key); a <= last && first <= b {
			yield(l.service)
		}
	}
}

// contest requests the key for k. The first service to request its ports keeps them, unless the
// allocator reported only to k's rival that this port is taken. The allocator thus decides,
// whatever the order of compilation. If several services own some of the ports, each of them must
// yield.
// Clashes states that the allocator reported a taken port to k.
func (c *Compile) contest(key vip.FrontendKey, k vip.ServiceKey, clashes bool) (winner vip.ServiceKey, lost bool) {
	first, last := ports(key)
	yields := clashes && c.yields(k, key.Protocol, first, last)
	rivals := c.owners.rivals(key, k)
	for _, r := range rivals {
		if yields || !c.yields(r.service, key.Protocol, r.first, r.last) {
			c.owners.lose(key, k)
			return r.service, true
		}
	}
	for _, r := range rivals {
		c.owners.taken[r.service] = struct{}{}
		c.todo.Add(r.service)
	}
	c.owners.take(key, k)
	if yields {
		c.owners.losers(key, c.todo.Add)
	}
	return k, false
}

// yields reports whether the allocator refused the port, or range of ports, to k. Other refused
// ports, for example node ports, don't count.
func (c *Compile) yields(k vip.ServiceKey, protocol vip.Protocol, first, last uint16) bool {
	granted, _, _ := c.Allocations.Get(k)
	if !vip.HasCode(granted.Problems, vip.CodePortTaken) {
		return false
	}
	service, _, _ := c.Services.Get(k)
	for i := range service.Ports {
		p := &service.Ports[i]
		if p.Port != first || max(p.Port, p.LastPort) != last || p.Protocol != protocol {
			continue
		}
		field := fmt.Sprintf("ports[%d].port", i)
		return slices.ContainsFunc(granted.Problems, func(p vip.Problem) bool { return p.Code == vip.CodePortTaken && p.Field == field })
	}
	return false
}

// taken returns the problem of a service that requests ports of another service.
func taken(key vip.FrontendKey, k, winner vip.ServiceKey) vip.Problem {
	return vip.Problem{
		Code:    vip.CodePortTaken,
		Service: k.String(),
		Message: fmt.Sprintf("%s is served by service %q", key, winner),
		Hint:    "choose another port or address, or remove it from that service",
	}
}
