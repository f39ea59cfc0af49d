package announce

import (
	"iter"
	"maps"
	"net/netip"
	"slices"
	"time"
	"unique"

	"github.com/ironvip/ironvip/internal/delayqueue"
	"github.com/ironvip/ironvip/internal/workqueue"
)

// Timing has the times of the decision.
type Timing struct {
	// Settle is how long this host must have been the best one for a VIP before it takes the VIP
	// from a host that can still serve it.
	Settle time.Duration
	// Handover is how long a draining host keeps a VIP, at most, until its successor has announced it.
	Handover time.Duration
	// Leave is how long a draining host keeps its routes, which routers avoid meanwhile.
	Leave time.Duration
}

// Decider decides which VIPs this host announces. It is not safe for concurrent use.
//
// Decide must be called after each change of the inputs, and at the time that Next returns.
type Decider struct {
	self   Host
	timing Timing
	// listening is set while the host does not know the state of the others yet. It takes nothing.
	listening bool
	drained   time.Time // when Draining of self was set

	hosts  map[string]*peer
	vips   map[netip.Addr]*entry
	todo   workqueue.Queue[netip.Addr]
	timers delayqueue.Queue[netip.Addr]
	// offline returns why this host can't announce a VIP at layer 2 although it is eligible; "": it can.
	offline func(netip.Addr) string
	// withdrawn is why this host announces nothing at all; "": it does.
	withdrawn string

	// HostChanged is called when another host appears, and when its state changes. Nil: nobody wants to know.
	HostChanged func(now, former Host)

	// Begun is when this process has begun, in Unix seconds, minus the difference of clocks in a fleet: moves from before are over.
	Begun uint32

	// Evaluated counts decisions of single VIPs, for tests and metrics.
	Evaluated uint64
}

// peer is another host and the VIPs that it has claims for.
type peer struct {
	Host
	vips map[netip.Addr]struct{}
	deaf time.Time // since when it is OneWay and has a claim; zero: it isn't
}

// entry is what is known of one VIP. There is one for each VIP, so nothing is in it twice.
type entry struct {
	score    float64 // of this host
	claims   []claim // of others, in no order; as many as hosts have the VIP
	reason   string  // of Eligible, as are services, route, mode and policy
	services int
	route    Route
	mode     Mode
	here     bool // a VIP of this host
	offline  bool // Decider.offline has a reason
	known    bool // some host has announced it
	keep     bool // of Eligible
	mine     bool // this host was the last owner at layer 2, as far as it knows, and has not drained since
	prompt   bool // this host could own the VIP all the time since policy.Moved, and takes it within Timing.Handover
	policy   Policy
	over     uint32 // the policy.Moved that is over

	best time.Time // since when this host would be the owner; zero: it isn't the best

	last Announcement // as decided last; its zero value before
}

// owned reports whether this host has owned the VIP at layer 2 since the last decision.
func (e *entry) owned() bool { return e.last.Here && e.last.Mode == L2 }

func (e *entry) eligible(addr netip.Addr) Eligible {
	return Eligible{Addr: addr, Mode: e.mode, Policy: e.policy, Services: e.services, Keep: e.keep, Reason: e.reason, Route: e.route}
}

type claim struct {
	peer     *peer
	score    float64
	policy   Policy
	services uint8
	owned    bool
}

// NewDecider returns the decider of the host with the given name and weight. It is listening.
func NewDecider(name string, weight int, timing Timing) *Decider {
	return &Decider{
		self: Host{Name: name, Alive: true, Weight: weight}, timing: timing, listening: true,
		hosts: map[string]*peer{}, vips: map[netip.Addr]*entry{}, offline: func(netip.Addr) string { return "" },
	}
}

// Listen makes the host give up every VIP at layer 2 and take none until Ready. It is for a host
// that was not running for so long that the others consider it dead.
func (d *Decider) Listen() {
	if !d.listening {
		d.listening = true
		d.again(maps.Keys(d.vips))
	}
}

// Ready ends the listening.
func (d *Decider) Ready() {
	if d.listening {
		d.listening = false
		d.again(maps.Keys(d.vips))
	}
}

// Listening reports whether the host takes no VIPs yet.
func (d *Decider) Listening() bool { return d.listening }

// SetTiming changes the times. It costs O(VIPs) if they differ.
func (d *Decider) SetTiming(t Timing) {
	if d.timing != t {
		d.timing = t
		d.again(maps.Keys(d.vips))
	}
}

// SetWeight changes the weight of this host. It costs O(VIPs) if it differs.
func (d *Decider) SetWeight(weight int) {
	if d.self.Weight == weight {
		return
	}
	d.self.Weight = weight
	for addr, e := range d.vips {
		e.score = score(d.self.Name, addr, weight)
		d.todo.Add(addr)
	}
}

// SetDraining starts or ends the drain of this host.
func (d *Decider) SetDraining(draining bool, now time.Time) {
	if d.self.Draining == draining {
		return
	}
	d.self.Draining, d.drained = draining, now
	d.again(maps.Keys(d.vips))
}

// SetEligible adds or changes a VIP of this host.
func (d *Decider) SetEligible(v Eligible) {
	v.Services = min(v.Services, MaxServices) // as in the claims, so that all hosts compare the same numbers
	e := d.entry(v.Addr)
	if e.here && e.eligible(v.Addr) == v {
		return
	}
	if m := v.Policy.Moved; e.here && m != e.policy.Moved {
		e.prompt = true
	}
	if m := v.Policy.Moved; !v.Policy.Pinned && (!e.here || m > 0 && m < d.Begun) {
		e.over = m // from before this process, or the VIP is new here
	}
	e.here, e.mode, e.policy, e.services, e.keep, e.reason, e.route = true, v.Mode, v.Policy, v.Services, v.Keep, intern(v.Reason), v.Route
	d.todo.Add(v.Addr)
}

// HasEligible reports whether a VIP is one of this host.
func (d *Decider) HasEligible(addr netip.Addr) bool {
	e := d.vips[addr]
	return e != nil && e.here
}

// Eligible yields the VIPs of this host. They must not be added or removed meanwhile.
func (d *Decider) Eligible() iter.Seq[Eligible] {
	return func(yield func(Eligible) bool) {
		for addr, e := range d.vips {
			if e.here && !yield(e.eligible(addr)) {
				return
			}
		}
	}
}

// DropEligible removes a VIP of this host.
func (d *Decider) DropEligible(addr netip.Addr) {
	if e := d.vips[addr]; e != nil && e.here {
		e.here, e.services, e.keep, e.reason = false, 0, false, ""
		d.todo.Add(addr)
	}
}

// Withdraw makes this host announce nothing, as if it served no service of its VIPs. Why says the
// reason, such as an agent that is gone; "" ends that. It costs O(VIPs) if it differs.
func (d *Decider) Withdraw(why string) {
	if d.withdrawn != why {
		d.withdrawn = why
		d.again(maps.Keys(d.vips))
	}
}

// SetOffline says why this host can't announce a VIP at layer 2, such as links that are down; "": it can. It costs O(VIPs), and
// a decision for each that it can't or could not announce.
func (d *Decider) SetOffline(why func(vip netip.Addr) string) {
	d.offline = why
	for addr, e := range d.vips {
		was := e.offline
		if e.offline = why(addr) != ""; e.offline || was {
			d.todo.Add(addr)
		}
	}
}

// SetHost adds another host or changes its state. It costs O(VIPs of the host) if it differs.
func (d *Decider) SetHost(h Host) {
	p := d.hosts[h.Name]
	if p == nil {
		p = &peer{vips: map[netip.Addr]struct{}{}}
		d.hosts[h.Name] = p
	}
	if p.Host == h {
		return
	}
	if d.HostChanged != nil {
		d.HostChanged(h, p.Host)
	}
	reweighed := p.Weight != h.Weight
	if p.Host = h; !h.OneWay {
		p.deaf = time.Time{}
	}
	for addr := range p.vips {
		if reweighed {
			for i := range d.vips[addr].claims {
				if c := &d.vips[addr].claims[i]; c.peer == p {
					c.score = score(h.Name, addr, h.Weight)
				}
			}
		}
		d.todo.Add(addr)
	}
}

// RemoveHost removes a host and its claims.
func (d *Decider) RemoveHost(name string) {
	p := d.hosts[name]
	if p == nil {
		return
	}
	for addr := range p.vips {
		d.SetClaim(name, Claim{Addr: addr})
	}
	delete(d.hosts, name)
}

// SetClaim changes what a known host says of a VIP, and returns what it said before: a claim without
// services that is not owned if it said nothing. Such a claim removes the former one.
func (d *Decider) SetClaim(host string, c Claim) (former Claim) {
	p := d.hosts[host]
	if p == nil {
		return Claim{Addr: c.Addr}
	}
	former = d.claim(p, c.Addr)
	if former == c {
		return former
	}
	c.Services = min(c.Services, MaxServices)
	e := d.entry(c.Addr)
	e.claims = slices.DeleteFunc(e.claims, func(o claim) bool { return o.peer == p })
	delete(p.vips, c.Addr)
	if !c.IsEmpty() {
		e.claims = append(e.claims, claim{p, score(host, c.Addr, p.Weight), c.Policy, uint8(c.Services), c.Owned})
		p.vips[c.Addr] = struct{}{}
	}
	d.todo.Add(c.Addr)
	return former
}

// Claims yields what a host says of VIPs. It must not change meanwhile.
func (d *Decider) Claims(host string) iter.Seq[Claim] {
	return func(yield func(Claim) bool) {
		p := d.hosts[host]
		if p == nil {
			return
		}
		for addr := range p.vips {
			if !yield(d.claim(p, addr)) {
				return
			}
		}
	}
}

// claim returns what a host says of a VIP.
func (d *Decider) claim(p *peer, addr netip.Addr) Claim {
	if _, is := p.vips[addr]; is {
		for _, c := range d.vips[addr].claims {
			if c.peer == p {
				return Claim{addr, int(c.services), c.owned, c.policy}
			}
		}
	}
	return Claim{Addr: addr}
}

func (d *Decider) entry(addr netip.Addr) *entry {
	e := d.vips[addr]
	if e == nil {
		e = &entry{score: score(d.self.Name, addr, d.self.Weight), offline: d.offline(addr) != ""}
		d.vips[addr] = e
	}
	return e
}

// intern returns an equal string that is in memory once: most VIPs have the same reasons.
func intern(s string) string { return unique.Make(s).Value() }

func (d *Decider) again(addrs func(func(netip.Addr) bool)) {
	for addr := range addrs {
		d.todo.Add(addr)
	}
}

// Next returns when Decide has something to do even without a change.
func (d *Decider) Next() (at time.Time, ok bool) {
	_, at, ok = d.timers.First()
	return at, ok
}

// Decide decides again what has changed or is due, and passes the announcements that differ from
// before to changed. Gone says that the VIP is no longer one of this host.
func (d *Decider) Decide(now time.Time, changed func(a Announcement, gone bool)) {
	for addr := range d.timers.Due(now) {
		d.timers.Drop(addr)
		d.todo.Add(addr)
	}
	for addr, ok := d.todo.Take(); ok; addr, ok = d.todo.Take() {
		e := d.vips[addr]
		if e == nil {
			continue
		}
		d.Evaluated++
		d.timers.Drop(addr)
		former := e.last
		d.decide(addr, e, now)
		switch {
		case !e.here:
			if e.last = (Announcement{}); former.Addr.IsValid() {
				changed(former, true)
			}
			if len(e.claims) == 0 {
				delete(d.vips, addr)
			}
		case e.last != former:
			changed(e.last, false)
		}
	}
}
