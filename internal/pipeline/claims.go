package pipeline

import (
	"fmt"
	"slices"
	"sort"

	"github.com/ironvip/ironvip/internal/table/keyed"
	"github.com/ironvip/ironvip/vip"
)

// claims are which service has which ports of an address, and who would like
// to. The allocator sees to it that no two services want the same, but for one
// case: a service that shares its address and asks for a port that is taken
// keeps its address, and thereby asks for the port. Ranges that overlap are such
// a case as much as equal ports. Audiences of the same ports go together: who
// has one has all.
type claims struct {
	lanes  *keyed.Set[lane, laneClaims]         // those with claims
	losing map[lane][]loser                     // in the order of their last try
	lost   map[vip.ServiceKey][]vip.FrontendKey // what each service would like to have
	taken  map[vip.ServiceKey]struct{}          // services that others took something from, and that don't know yet
}

// lane is the ports of one protocol at one address, all that a claim can meet.
type lane struct {
	addr     [16]byte // of either family; a frontend's is never IPv4 in IPv6
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
	audiences   uint8 // a bit for each that the service serves apart
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

// robbed reports whether another service took something of k's since its last
// withdrawal. A service that wasn't robbed has what it had.
func (c *claims) robbed(k vip.ServiceKey) bool {
	_, yes := c.taken[k]
	return yes
}

// ports returns the first and the last port of a key.
func ports(key vip.FrontendKey) (first, last uint16) { return key.Port, max(key.Port, key.LastPort) }

func bit(a vip.Audience) uint8 { return 1 << a }

// meets returns where the claims that overlap key's ports begin and end. It
// costs O(log claims at the address).
func (l *laneClaims) meets(key vip.FrontendKey) (from, to int) {
	first, last := ports(key)
	from = sort.Search(len(l.claims), func(i int) bool { return l.claims[i].last >= first })
	for to = from; to < len(l.claims) && l.claims[to].first <= last; to++ {
	}
	return from, to
}

// exactly returns the claim of just key's ports, or nil.
func (l *laneClaims) exactly(key vip.FrontendKey) *claim {
	first, last := ports(key)
	if i, to := l.meets(key); i < to && l.claims[i].first == first && l.claims[i].last == last {
		return &l.claims[i]
	}
	return nil
}

// held reports whether any service has the key.
func (c *claims) held(key vip.FrontendKey) bool {
	l := c.lanes.Get(laneOf(key))
	if l == nil {
		return false
	}
	held := l.exactly(key)
	return held != nil && held.audiences&bit(key.Audience) != 0
}

// met reports whether any service has some of the key's ports.
func (c *claims) met(key vip.FrontendKey) bool { return len(c.rivals(key, vip.ServiceKey{})) > 0 }

// rivals returns the claims to some of the key's ports, those of k left out.
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

// take gives the key to k, and takes away whatever of its ports others have. A
// claim of k's own to other ports that overlap is one that it has given up.
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

// release gives up what k has of the key, if anything.
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

// lose notes that k would like to have the key.
func (c *claims) lose(key vip.FrontendKey, k vip.ServiceKey) {
	l := laneOf(key)
	c.losing[l] = append(c.losing[l], loser{key, k})
	c.lost[k] = append(c.lost[k], key)
}

// withdraw forgets what k would like to have, and what was taken from it: it is
// about to claim anew.
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

// losers calls yield with the services that would like to have some of the
// key's ports, in the order of their last try.
func (c *claims) losers(key vip.FrontendKey, yield func(vip.ServiceKey)) {
	first, last := ports(key)
	for _, l := range c.losing[laneOf(key)] {
		if a, b := ports(l.key); a <= last && first <= b {
			yield(l.service)
		}
	}
}

// contest claims the key for k. The first to claim its ports keeps them, unless
// the allocator told the first and not k that this very port is taken: the
// allocator's word decides, whatever the order of compiling was. Of several
// claims to some of the ports, each must yield. Clashes says that the allocator
// told k so of some port.
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
		c.todo.add(r.service)
	}
	c.claims.take(key, k)
	if yields {
		c.claims.losers(key, c.todo.add)
	}
	return k, false
}

// yields reports whether the allocator refused k the port, or range of ports.
// Others that it refused, node ports among them, don't count.
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

// taken is the problem of a service that wants another one's ports.
func taken(key vip.FrontendKey, k, winner vip.ServiceKey) vip.Problem {
	return vip.Problem{
		Code:    vip.CodePortTaken,
		Service: k.String(),
		Message: fmt.Sprintf("%s is served by service %q", key, winner),
		Hint:    "choose another port or address, or remove it from that service",
	}
}
