package fleet

import (
	"fmt"
	"maps"
	"math"
	"net/netip"
	"slices"
	"time"
)

// Check returns the broken guarantees of a history, each once:
//
//   - No address is held by two services, on one agent or on several, unless
//     the first was deleted, and the cooldown ended, before the second had it.
//   - No service has two addresses, or one and later another, for the same request.
//   - An agent shows what it acknowledged, until another request changes it:
//     registrations and overrides of backends.
//   - No agent shows what was refused, or shows again what had been replaced.
//   - The condition of an acknowledged conditional request was true.
//   - No request is answered with "no such service" for a service that another
//     agent has acknowledged.
func Check(h *History) []string {
	c := newChecker(h)
	c.addresses()
	c.conditions()
	c.missing()
	shown := showings{}
	for _, v := range h.Views {
		c.acknowledged(v)
		c.refused(v)
		c.back(shown, v)
	}
	return c.wrong
}

type checker struct {
	*History
	// The ops of each service, without refused ones: ops create and delete it, states are overrides
	// of its backend.
	ops, states map[string][]Op
	of          map[int]Op // by Value, all Puts and Registers
	wrong       []string
	said        map[string]bool
}

func newChecker(h *History, more ...View) *checker {
	c := &checker{History: h, ops: map[string][]Op{}, states: map[string][]Op{}, of: map[int]Op{}}
	seen := firstSeen(h, more)
	for _, o := range h.Ops {
		if o.Kind == Put || o.Kind == Register {
			c.of[o.Value] = o
			if at, is := seen[o.Value]; is && o.Outcome == Unknown {
				o.Outcome, o.To = happened, at
			}
		}
		of := c.ops
		if o.Kind == SetState {
			of = c.states
		}
		if o.Outcome != Refused {
			of[o.Service] = append(of[o.Service], o)
		}
		if o.Kind == Delete && o.Outcome != Refused { // may end the override at any later time
			o.Kind, o.Value, o.Outcome = SetState, 0, Unknown
			c.states[o.Service] = append(c.states[o.Service], o)
		}
	}
	return c
}

// happened is the Outcome of an Unknown Op with a visible effect, at the latest by its To. No agent
// has guaranteed to show it.
const happened Outcome = "happened"

// firstSeen returns the time at which each Value, or another one of the same atomic apply, was
// first shown.
func firstSeen(h *History, more []View) map[int]time.Duration {
	seen := map[int]time.Duration{}
	see := func(value int, at time.Duration) {
		if was, is := seen[value]; !is || at < was {
			seen[value] = at
		}
	}
	for _, views := range [][]View{h.Views, more} {
		for _, v := range views {
			for _, s := range v.Services {
				see(s.Value, v.To)
			}
		}
	}
	applies := map[int][]int{} // their Values
	for _, o := range h.Ops {
		if o.Atomic != 0 {
			applies[o.Atomic] = append(applies[o.Atomic], o.Value)
		}
	}
	for _, values := range applies {
		for _, one := range values {
			if at, is := seen[one]; is {
				for _, other := range values {
					see(other, at)
				}
			}
		}
	}
	return seen
}

func (c *checker) bad(format string, args ...any) {
	text := fmt.Sprintf(format, args...)
	if c.said == nil {
		c.said = map[string]bool{}
	}
	if !c.said[text] {
		c.said[text] = true
		c.wrong = append(c.wrong, text)
	}
}

// pair is a service with an address.
type pair struct {
	service string
	address netip.Addr
}

// sighting is the first time at which an agent reported that a service has an address.
type sighting struct {
	pair
	at  time.Duration // upper bound
	who Run
}

// addresses checks the reported holders of addresses.
func (c *checker) addresses() {
	first := map[pair]sighting{}
	see := func(service string, vips []netip.Addr, at time.Duration, who Run) {
		for _, a := range vips {
			p := pair{service, a}
			if was, ok := first[p]; !ok || at < was.at {
				first[p] = sighting{p, at, who}
			}
		}
	}
	for _, o := range c.Ops {
		see(o.Service, o.VIPs, o.To, o.Agent)
	}
	for _, v := range c.Views {
		holder := map[netip.Addr]string{}
		for service, seen := range v.Services {
			see(service, seen.VIPs, v.To, v.Agent)
			if len(seen.VIPs) > 1 {
				c.bad("%s shows service %s with %v", v.Agent, service, seen.VIPs)
			}
			for _, a := range seen.VIPs {
				if other, taken := holder[a]; taken {
					one, two := min(service, other), max(service, other)
					c.bad("%s shows %s twice, of services %s and %s", v.Agent, a, one, two)
				}
				holder[a] = service
			}
		}
	}
	inOrder := slices.SortedFunc(maps.Values(first), func(a, b sighting) int { return int(a.at - b.at) })
	holders, holds := map[netip.Addr]sighting{}, map[string]sighting{}
	for _, s := range inOrder {
		if was, ok := holders[s.address]; ok && !c.released(was.service, s.at) {
			c.bad("%s changed hands: %s (%s, %s), then %s (%s, %s), without a deletion and %s of rest between them",
				s.address, was.service, was.who, at(was.at), s.service, s.who, at(s.at), c.Reuse)
		}
		if was, ok := holds[s.service]; ok && !c.released(s.service, s.at) {
			c.bad("service %s moved: %s (%s, %s), then %s (%s, %s), without a deletion and %s of rest between them",
				s.service, was.address, was.who, at(was.at), s.address, s.who, at(s.at), c.Reuse)
		}
		holders[s.address], holds[s.service] = s, s
	}
}

// released reports whether a service may have lost its address by the given time. It must have been
// deleted so long ago that the address is no longer reserved for it, and not certainly registered
// again in the first half of that time. A registration in the second half may be too late to keep
// its address.
func (c *checker) released(service string, by time.Duration) bool {
	for _, d := range c.ops[service] {
		if d.Kind != Delete || d.From+c.Reuse > by {
			continue
		}
		back := slices.ContainsFunc(c.ops[service], func(p Op) bool {
			return p.Kind == Put && p.Outcome == Acknowledged && p.From > d.To && p.To < d.From+c.Reuse/2
		})
		if !back {
			return true
		}
	}
	return false
}

// acknowledged checks that a view shows what its agent has acknowledged before, where no other
// request may have changed it.
func (c *checker) acknowledged(v View) {
	for service, ops := range c.ops {
		o := surely(ops, v)
		if got := v.Services[service].Value; o != nil && got != want(*o) {
			c.bad("%s shows service %s %s at %s, in spite of: %s", v.Agent, service, value(got), at(v.From), o)
		}
	}
	for service, ops := range c.states {
		got, there := v.Services[service]
		if o := surely(ops, v); o != nil && there && got.Value != NoBackend && got.State != want(*o) {
			c.bad("%s shows the backend of service %s as %s at %s, in spite of: %s", v.Agent, service, States[got.State], at(v.From), o)
		}
	}
}

// surely returns the op that the view's agent acknowledged last before it, if none of the others
// may have happened since.
func surely(ops []Op, v View) *Op {
	last := -1
	for i, o := range ops {
		if o.Agent == v.Agent && o.Outcome == Acknowledged && o.To < v.From && (last < 0 || o.To > ops[last].To) {
			last = i
		}
	}
	if last < 0 || othersMeanwhile(ops, last, v.To) {
		return nil
	}
	return &ops[last]
}

// othersMeanwhile reports whether any op other than ops[one] may have happened after the start of
// ops[one] and before the given time.
func othersMeanwhile(ops []Op, one int, before time.Duration) bool {
	for i, o := range ops {
		if i != one && end(o) > ops[one].From && o.From < before {
			return true
		}
	}
	return false
}

// end returns the latest time at which an op can have happened.
func end(o Op) time.Duration {
	if o.Outcome == Unknown {
		return math.MaxInt64
	}
	return o.To
}

// want returns the value that an op leaves, 0 for none. 0 is also the state without an override.
func want(o Op) int {
	if o.Kind == Delete {
		return 0
	}
	return o.Value
}

func value(v int) string {
	switch v {
	case 0:
		return "not at all"
	case NoBackend:
		return "without a backend"
	}
	return fmt.Sprintf("as registration %d", v)
}

// CheckEnd returns the errors in the final state of a fleet. In a correct one:
//
//   - Every service is as the last acknowledged request left it, or as a request
//     with an unknown outcome left it. It is the same on every agent and has an
//     address. An atomic apply is done completely or not at all.
//   - The same holds for the overrides of its backend.
//   - Every agent's dataplane has the service.
//   - Consul's leases are the services' addresses and the cooling addresses. Every
//     agent reports the same leases.
func CheckEnd(h *History, e *End) []string {
	var last []View
	for _, a := range e.Agents {
		last = append(last, a.View)
	}
	c := newChecker(h, last...)
	for _, a := range e.Agents {
		c.values(a)
		c.dataplane(a)
		c.leases(a.Agent.String(), a.Leases, e)
		c.agree(e.Agents[0], a)
	}
	c.leases("consul", e.Leases, e)
	c.holdings(e)
	return c.wrong
}

// values compares what an agent shows with the allowed values.
func (c *checker) values(a AgentEnd) {
	for service := range a.Services {
		if _, asked := c.ops[service]; !asked {
			c.bad("%s shows service %s, which nobody asked for", a.Agent, service)
		}
	}
	for service, ops := range c.ops {
		got := a.Services[service]
		allowed, because := final(ops)
		if !slices.Contains(allowed, got.Value) {
			c.bad("%s shows service %s %s at the end, in spite of: %s", a.Agent, service, value(got.Value), because)
		}
		if got.Value != 0 && len(got.VIPs) != 1 {
			c.bad("%s shows service %s with addresses %v at the end, want one", a.Agent, service, got.VIPs)
		}
	}
	for service, got := range a.Services {
		if got.Value == NoBackend {
			continue
		}
		if allowed, because := final(c.states[service]); !slices.Contains(allowed, got.State) {
			c.bad("%s shows the backend of service %s as %s at the end, in spite of: %s", a.Agent, service, States[got.State], because)
		}
	}
}

// agree compares what two agents show.
func (c *checker) agree(a, b AgentEnd) {
	for service := range merged(a.Services, b.Services) {
		x, y := a.Services[service], b.Services[service]
		if x.Value != y.Value || !sameAddresses(x.VIPs, y.VIPs) {
			c.bad("%s shows service %s %s with %v, %s %s with %v", a.Agent, service, value(x.Value), x.VIPs, b.Agent, value(y.Value), y.VIPs)
		}
		if x.State != y.State {
			c.bad("%s shows the backend of service %s as %s, %s as %s", a.Agent, service, States[x.State], b.Agent, States[y.State])
		}
	}
}

// final returns the values that a service may have in the end: those of requests that no other
// request certainly followed. Because is the last certain one.
func final(ops []Op) (allowed []int, because string) {
	ended := time.Duration(-1)
	for _, o := range ops {
		if (o.Outcome == Acknowledged || o.Outcome == happened) && o.From > ended {
			ended, because = o.From, o.String()
		}
	}
	if because == "" {
		allowed, because = []int{0}, "nothing that was done"
	}
	for _, o := range ops {
		if end(o) >= ended {
			allowed = append(allowed, want(o))
		}
	}
	return allowed, because
}

// dataplane compares an agent's listeners with the services that it shows.
func (c *checker) dataplane(a AgentEnd) {
	of := map[string][]Frontend{}
	for _, f := range a.Frontends {
		of[f.Service] = append(of[f.Service], f)
		if _, known := a.Services[f.Service]; !known {
			c.bad("%s: the dataplane has %s of service %s, which is not there", a.Agent, f.Address, f.Service)
		}
	}
	for service, seen := range a.Services {
		if fs := of[service]; len(fs) != 1 || !fs[0].Applied || !serves(fs[0], seen) || !slices.Contains(seen.VIPs, fs[0].Address) {
			c.bad("%s: service %s is %+v, and in the dataplane %+v", a.Agent, service, seen, fs)
		}
	}
}

// serves reports whether a listener's backends are those of the service. Without backends, or with
// an override that takes them out, no backend may take connections.
func serves(f Frontend, s Seen) bool {
	if s.State != 0 || s.Value == NoBackend {
		return f.Value <= 0
	}
	return f.Value == s.Value
}

// leases compares reported leases with the addresses of services and with Consul's leases.
func (c *checker) leases(who string, leases []Lease, e *End) {
	services := map[string]Seen{}
	if len(e.Agents) > 0 {
		services = e.Agents[0].Services
	}
	held := map[string][]netip.Addr{}
	seen := map[netip.Addr]bool{}
	for _, l := range leases {
		if seen[l.Address] {
			c.bad("%s has two leases on %s", who, l.Address)
		}
		seen[l.Address] = true
		switch has := services[l.Service].VIPs; {
		case l.Cooling && slices.Contains(has, l.Address):
			c.bad("%s: %s cools down, and service %s has it", who, l.Address, l.Service)
		case l.Cooling && e.Wall.Sub(l.Until) > slack:
			c.bad("%s: leaked: %s should have been free since %s", who, l.Address, e.Wall.Sub(l.Until))
		case l.Cooling:
		case !slices.Contains(has, l.Address):
			c.bad("%s: leaked: %s is held for service %s, which has %v", who, l.Address, l.Service, has)
		default:
			held[l.Service] = append(held[l.Service], l.Address)
		}
	}
	for service, s := range services {
		if !sameAddresses(held[service], s.VIPs) {
			c.bad("%s: service %s has %v, and leases on %v", who, service, s.VIPs, held[service])
		}
	}
}

// slack is the permitted delay of timed changes.
const slack = 15 * time.Second

// holdings compares the holdings of services in Consul with the leases there.
func (c *checker) holdings(e *End) {
	held := map[string][]netip.Addr{}
	for _, l := range e.Leases {
		if !l.Cooling {
			held[l.Service] = append(held[l.Service], l.Address)
		}
	}
	for _, service := range slices.Sorted(maps.Keys(merged(held, e.Holdings))) {
		if !sameAddresses(held[service], e.Holdings[service]) {
			c.bad("consul: service %s holds %v by its holdings, %v by the leases", service, e.Holdings[service], held[service])
		}
	}
}

func merged[V any](a, b map[string]V) map[string]V {
	all := maps.Clone(a)
	maps.Copy(all, b)
	return all
}

func sameAddresses(a, b []netip.Addr) bool {
	a, b = slices.Clone(a), slices.Clone(b)
	slices.SortFunc(a, netip.Addr.Compare)
	slices.SortFunc(b, netip.Addr.Compare)
	return slices.Equal(a, b)
}
