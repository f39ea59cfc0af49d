package pipeline

import (
	"fmt"
	"slices"
	"sort"

	"github.com/ironvip/ironvip/internal/table/keyed"
	"github.com/ironvip/ironvip/vip"
)

// claims records which service has which ports of an address, and which services wait for them. The
// allocator prevents two services from requesting the same ports, with one exception: a service
// that shares its address and requests a port that is taken keeps its address, and thus still
// requests the port. This holds for overlapping ranges as for equal ports. The audiences of the
// same ports belong together: the service that has one has all.
type claims struct {
	lanes  *keyed.Set[lane, laneClaims]         // lanes with claims
	losing map[lane][]loser                     // in the order of their last try
	lost   map[vip.ServiceKey][]vip.FrontendKey // the frontends that each service waits for
	taken  map[vip.ServiceKey]struct{}          // services that lost a claim to others since their last withdrawal
}

// lane is the ports of one protocol at one address. Claims conflict only within a lane.
type lane struct {
	addr     [16]byte // of either family; a frontend's address is never IPv4 in IPv6
	protocol vip.Protocol
}

func laneOf(key vip.FrontendKey) lane { return lane{key.Addr.As16(), key.Protocol} }

// laneClaims are the claims of one lane. They never overlap.
type laneClaims struct {
	lane   lane
	claims []claim // by port
}

type claim struct {
	first, last uint16
	audiences   uint8 // a bit for each audience that the service serves separately
	service     vip.ServiceKey
}

type loser struct {
	key     vip.FrontendKey
	service vip.ServiceKey
}

func newClaims() claims {
	return claims{
		lanes:  keyed.New(func(l *laneClaims) lane { return l.lane }),
		losing: make(map[lane][]loser),
		lost:   make(map[vip.ServiceKey][]vip.FrontendKey),
		taken:  make(map[vip.ServiceKey]struct{}),
	}
}

// robbed reports whether another service has taken a claim of k since k's last withdrawal.
// Otherwise k still has its claims.
func (c *claims) robbed(k vip.ServiceKey) bool {
	_, yes := c.taken[k]
	return yes
}

// ports returns the first and the last port of a key.
func ports(key vip.FrontendKey) (first, last uint16) { return key.Port, max(key.Port, key.LastPort) }

func bit(a vip.Audience) uint8 { return 1 << a }

// meets returns the index range of the claims that overlap key's ports. It costs O(log claims at
// the address).
func (l *laneClaims) meets(key vip.FrontendKey) (from, to int) {
	first, last := ports(key)
	from = sort.Search(len(l.claims), func(i int) bool { return l.claims[i].last >= first })
	for to = from; to < len(l.claims) && l.claims[to].first <= last; to++ {
	}
	return from, to
}

// exactly returns the claim of exactly key's ports, or nil.
func (l *laneClaims) exactly(key vip.FrontendKey) *claim {
	first, last := ports(key)
	if i, to := l.meets(key); i < to && l.claims[i].first == first && l.claims[i].last == last {
		return &l.claims[i]
	}
	return nil
}

// held reports whether a service has the key.
func (c *claims) held(key vip.FrontendKey) bool {
	l := c.lanes.Get(laneOf(key))
	if l == nil {
		return false
	}
	held := l.exactly(key)
	return held != nil && held.audiences&bit(key.Audience) != 0
}

// met reports whether a service has some of the key's ports.
func (c *claims) met(key vip.FrontendKey) bool { return len(c.rivals(key, vip.ServiceKey{})) > 0 }

// rivals returns the claims of services other than k to some of the key's ports.
func (c *claims) rivals(key vip.FrontendKey, k vip.ServiceKey) (rivals []claim) {
	l := c.lanes.Get(laneOf(key))
	if l == nil {
		return nil
	}
	from, to := l.meets(key)
	for _, held := range l.claims[from:to] {
		if held.service != k {
			rivals = append(rivals, held)
		}
	}
	return rivals
}

// take gives the key to k, and removes the claims of others to its ports. It also removes k's own
// claims to other ports that overlap, because k has given them up.
func (c *claims) take(key vip.FrontendKey, k vip.ServiceKey) {
	l := c.lanes.Get(laneOf(key))
	if l == nil {
		l = &laneClaims{lane: laneOf(key)}
		c.lanes.Put(l)
	}
	first, last := ports(key)
	if held := l.exactly(key); held != nil && held.service == k {
		held.audiences |= bit(key.Audience)
		return
	}
	from, to := l.meets(key)
	l.claims = slices.Replace(l.claims, from, to, claim{first: first, last: last, audiences: bit(key.Audience), service: k})
}

// release removes k's claim to the key, if any.
func (c *claims) release(key vip.FrontendKey, k vip.ServiceKey) {
	l := c.lanes.Get(laneOf(key))
	if l == nil {
		return
	}
	held := l.exactly(key)
	if held == nil || held.service != k {
		return
	}
	if held.audiences &^= bit(key.Audience); held.audiences == 0 {
		from, to := l.meets(key)
		l.claims = slices.Delete(l.claims, from, to)
	}
	if len(l.claims) == 0 {
		c.lanes.Delete(l.lane)
	}
}

// lose records that k waits for the key.
func (c *claims) lose(key vip.FrontendKey, k vip.ServiceKey) {
	l := laneOf(key)
	c.losing[l] = append(c.losing[l], loser{key, k})
	c.lost[k] = append(c.lost[k], key)
}

// withdraw removes what k waits for and the record of what was taken from it, before k claims
// again.
func (c *claims) withdraw(k vip.ServiceKey) {
	for _, key := range c.lost[k] {
		l := laneOf(key)
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
func (c *claims) losers(key vip.FrontendKey, yield func(vip.ServiceKey)) {
	first, last := ports(key)
	for _, l := range c.losing[laneOf(key)] {
		if a, b := ports(l.key); a <= last && first <= b {
			yield(l.service)
		}
	}
}

// contest claims the key for k. The first service to claim its ports keeps them, unless the
// allocator reported only to k's rival that this port is taken. The allocator thus decides,
// whatever the order of compilation. If several claims overlap the ports, each of them must yield.
// Clashes states that the allocator reported a taken port to k.
func (c *Compile) contest(key vip.FrontendKey, k vip.ServiceKey, clashes bool) (winner vip.ServiceKey, lost bool) {
	first, last := ports(key)
	yields := clashes && c.yields(k, key.Protocol, first, last)
	rivals := c.claims.rivals(key, k)
	for _, r := range rivals {
		if yields || !c.yields(r.service, key.Protocol, r.first, r.last) {
			c.claims.lose(key, k)
			return r.service, true
		}
	}
	for _, r := range rivals {
		c.claims.taken[r.service] = struct{}{}
		c.todo.Add(r.service)
	}
	c.claims.take(key, k)
	if yields {
		c.claims.losers(key, c.todo.Add)
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
