package announce

import (
	"cmp"
	"fmt"
	"math"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/ironvip/ironvip/test/expect"
	"github.com/ironvip/ironvip/test/must"
)

var timing = Timing{Settle: 10 * time.Second, Handover: 300 * time.Millisecond, Leave: 2 * time.Second}

func vipAt(i int) netip.Addr {
	if i%2 == 1 {
		return netip.AddrFrom16([16]byte{0x20, 1, 0xd, 0xb8, 14: byte(i >> 8), 15: byte(i)})
	}
	return netip.AddrFrom4([4]byte{192, 0, byte(i >> 8), byte(i)})
}

// everywhere is the reason why no VIP can be announced at layer 2.
func everywhere(why string) func(netip.Addr) string { return func(netip.Addr) string { return why } }

// oracle decides as the documentation says, from everything, each time.
type oracle struct {
	draining, listening bool
	drained             time.Time
	weight              int
	here                map[netip.Addr]Eligible
	offline             map[netip.Addr]string
	hosts               map[string]Host
	claims              map[string]map[netip.Addr]Claim

	owned  map[netip.Addr]bool
	best   map[netip.Addr]time.Time
	over   map[netip.Addr]uint32 // the move to this host that is over
	prompt map[netip.Addr]bool   // this host could own the VIP since the move
	mine   map[netip.Addr]bool   // this host was the last owner
	deaf   map[string]time.Time  // since when a host is one-way
}

// set is a VIP of this host.
func (o *oracle) set(v Eligible) {
	if was, had := o.here[v.Addr]; had && was.Policy.Moved != v.Policy.Moved {
		o.prompt[v.Addr] = true
	} else if !had && !v.Policy.Pinned {
		o.over[v.Addr] = v.Policy.Moved
	}
	o.here[v.Addr] = v
}

// policy returns the policy of this host, without a move that is over.
func (o *oracle) policy(addr netip.Addr) Policy {
	p := o.here[addr].Policy
	if o.listening || o.draining || o.serves(addr) == 0 {
		if o.prompt[addr] = false; !p.Pinned {
			o.over[addr] = p.Moved
		}
	}
	for host, claims := range o.claims {
		if c := claims[addr]; o.hosts[host].Alive && !c.IsEmpty() && (c.Policy.Moved > p.Moved || c.Policy.Moved == p.Moved && host < "self") {
			o.over[addr] = p.Moved
		}
	}
	if p.Moved == o.over[addr] {
		p.Moved = 0
	}
	return p
}

func (o *oracle) serves(addr netip.Addr) int {
	if o.offline[addr] != "" && o.here[addr].Mode == L2 {
		return 0
	}
	return o.here[addr].Services
}

// first returns the best of some hosts for a VIP: "" without any.
func (o *oracle) first(addr netip.Addr, who func(host string, c Claim) bool, self bool) (name string) {
	var best []float64
	consider := func(host string, p Policy, n int, weight int) {
		rank := []float64{float64(p.Moved), active(p), float64(p.Priority()), float64(n), score(host, addr, weight)}
		if name == "" || slices.Compare(rank, best) > 0 {
			name, best = host, rank
		}
	}
	if self && !o.draining && o.serves(addr) > 0 {
		consider("self", o.policy(addr), o.serves(addr), o.weight)
	}
	for host, claims := range o.claims {
		c, h := claims[addr], o.hosts[host]
		if h.Alive && !h.Draining && c.Services > 0 && who(host, c) {
			consider(host, c.Policy, c.Services, h.Weight)
		}
	}
	return name
}

func active(p Policy) float64 {
	if p.Standby {
		return 0
	}
	return 1
}

// here reports whether this host announces the VIP from now on.
func (o *oracle) decide(addr netip.Addr, now time.Time) bool {
	v := o.here[addr]
	owners := false
	for host, claims := range o.claims {
		c, h := claims[addr], o.hosts[host]
		owners = owners || c.Owned && h.Alive
		if _, is := o.deaf[host]; !is && !c.IsEmpty() && h.Alive && h.OneWay {
			o.deaf[host] = now
		}
	}
	defer func() {
		o.mine[addr] = v.Mode == L2 && (o.owned[addr] || o.mine[addr] && !o.draining && !owners)
	}()
	moved := o.policy(addr).Moved > 0 && o.prompt[addr]
	if v.Mode == BGP {
		o.owned[addr] = false
		return o.serves(addr) > 0 && (!o.draining || now.Before(o.drained.Add(timing.Leave)))
	}
	any := func(string, Claim) bool { return true }
	owner := func(_ string, c Claim) bool { return c.Owned }
	best := o.first(addr, any, true)
	rival := o.first(addr, owner, false)
	oneWay := o.first(addr, func(h string, c Claim) bool { return c.Owned && o.hosts[h].OneWay }, false) != ""
	ahead := o.first(addr, func(h string, c Claim) bool { return h == rival }, true)
	if o.mine[addr] && !o.listening && best == "" && !owners {
		o.owned[addr] = true
	}
	switch {
	case v.Mode == L2 && o.serves(addr) == 0 && v.Keep && !o.draining && o.offline[addr] == "":
		self := []float64{float64(o.policy(addr).Moved), active(v.Policy), float64(v.Policy.Priority()), score("self", addr, o.weight)}
		for host, claims := range o.claims {
			c, h := claims[addr], o.hosts[host]
			rank := []float64{float64(c.Policy.Moved), active(c.Policy), float64(c.Policy.Priority()), score(host, addr, h.Weight)}
			if c.Owned && h.Alive && !h.Draining && (c.Services > 0 || h.OneWay && !now.Before(o.deaf[host].Add(timing.Handover)) || slices.Compare(rank, self) > 0) {
				o.owned[addr] = false
			}
		}
	case v.Mode != L2 || o.serves(addr) == 0:
		o.owned[addr] = false
	case o.owned[addr] && o.draining:
		o.owned[addr] = best != "" && rival == "" && now.Before(o.drained.Add(timing.Handover))
	case o.owned[addr]:
		o.owned[addr] = rival == "" || !oneWay && ahead == "self"
	case o.listening || best != "self" || oneWay:
	case rival == "":
		o.owned[addr] = true
	default:
		since, ok := o.best[addr]
		if !ok {
			o.best[addr], since = now, now
		}
		if o.owned[addr] = !now.Before(since.Add(timing.Settle)); moved {
			o.owned[addr] = !now.Before(since.Add(timing.Handover))
		}
	}
	if o.owned[addr] || o.listening || best != "self" || oneWay || rival == "" || v.Mode != L2 {
		delete(o.best, addr)
	}
	return o.owned[addr]
}

// Whatever happens in whatever order, the incremental decisions are those of a complete one.
func TestDecisionsEqualThoseOfTheOracle(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		now := time.Unix(1000, 0)
		d := NewDecider("self", 1, timing)
		o := &oracle{listening: true, weight: 1, here: map[netip.Addr]Eligible{}, hosts: map[string]Host{},
			claims: map[string]map[netip.Addr]Claim{}, owned: map[netip.Addr]bool{}, best: map[netip.Addr]time.Time{},
			over: map[netip.Addr]uint32{}, prompt: map[netip.Addr]bool{}, mine: map[netip.Addr]bool{}, deaf: map[string]time.Time{}}
		got := map[netip.Addr]bool{}
		flag := rapid.Bool()
		policy := rapid.SampledFrom([]Policy{{}, {}, {Above: 100}, {Above: 100, Standby: true}, {Moved: 1}, {Moved: 2, Pinned: true}, {Moved: 3, Standby: true}})
		for range rapid.IntRange(1, 80).Draw(t, "steps") {
			addr := vipAt(rapid.IntRange(0, 5).Draw(t, "vip"))
			host := rapid.SampledFrom([]string{"a", "b", "c"}).Draw(t, "host")
			switch rapid.IntRange(0, 11).Draw(t, "op") {
			case 0, 1:
				v := Eligible{Addr: addr, Mode: rapid.SampledFrom([]Mode{L2, L2, L2, BGP, Off}).Draw(t, "mode"), Services: rapid.IntRange(0, 2).Draw(t, "services"), Keep: flag.Draw(t, "keep"), Policy: policy.Draw(t, "policy")}
				d.SetEligible(v)
				o.set(v)
			case 2:
				d.DropEligible(addr)
				delete(o.here, addr)
			case 3, 4:
				h := Host{Name: host, Alive: rapid.SampledFrom([]bool{true, true, false}).Draw(t, "alive"), Draining: flag.Draw(t, "draining"), Weight: rapid.IntRange(1, 3).Draw(t, "weight"), OneWay: rapid.SampledFrom([]bool{true, false, false}).Draw(t, "one-way")}
				d.SetHost(h)
				if o.hosts[host] = h; !h.OneWay {
					delete(o.deaf, host)
				}
				if o.claims[host] == nil {
					o.claims[host] = map[netip.Addr]Claim{}
				}
			case 5, 6, 7:
				c := Claim{Addr: addr, Services: rapid.IntRange(0, 2).Draw(t, "services"), Owned: flag.Draw(t, "owned"), Policy: policy.Draw(t, "policy")}
				d.SetClaim(host, c)
				if o.claims[host] != nil {
					o.claims[host][addr] = c
				}
			case 8:
				on := flag.Draw(t, "drain")
				if d.SetDraining(on, now); on != o.draining {
					o.draining, o.drained = on, now
				}
			case 9:
				if flag.Draw(t, "listen") {
					d.Listen()
					o.listening = true
					clear(o.owned)
					clear(o.best)
				} else {
					d.Ready()
					o.listening = false
				}
			case 10:
				o.offline = map[netip.Addr]string{}
				for i := range 6 {
					o.offline[vipAt(i)] = rapid.SampledFrom([]string{"", "no carrier"}).Draw(t, "block")
				}
				d.SetOffline(func(vip netip.Addr) string { return o.offline[vip] })
				o.weight = rapid.IntRange(1, 3).Draw(t, "own weight")
				d.SetWeight(o.weight)
			case 11:
				d.RemoveHost(host)
				delete(o.hosts, host)
				delete(o.claims, host)
				delete(o.deaf, host)
			}
			passed := time.Duration(rapid.SampledFrom([]int{0, 50, 400, 3000, 11000}).Draw(t, "ms")) * time.Millisecond
			for end := now.Add(passed); ; {
				d.Decide(now, func(a Announcement, gone bool) { got[a.Addr] = a.Here && !gone })
				for i := range 6 {
					addr := vipAt(i)
					must.Equal(t, got[addr], o.decide(addr, now), "%s announced", addr)
				}
				if !now.Before(end) {
					break
				}
				if now = end; true {
					if at, ok := d.Next(); ok && at.Before(end) {
						now = at
					}
				}
			}
		}
	})
}

// The one rule of who owns a VIP. Each row comes before the next one, in every order of the rows.
func TestOrderOfCandidates(t *testing.T) {
	of := func(name string, priority int16, standby bool, services int, score float64) *candidate {
		return &candidate{host: &Host{Name: name}, policy: Policy{Above: priority - DefaultPriority, Standby: standby}, services: services, score: score}
	}
	moved := func(c *candidate, stamp uint32) *candidate {
		c.policy.Moved, c.policy.Pinned = stamp, stamp == 1
		return c
	}
	rows := []struct {
		c   *candidate
		why string // it comes after the row before
	}{
		{moved(of("lb9", 0, true, 1, 0.1), 2), ""},
		{moved(of("lb0", 255, false, 9, 1), 1), byMove},
		{of("lb1", 200, false, 2, 0.1), byMove},
		{of("lb2", 200, false, 1, 0.9), byServices},
		{of("lb4", 100, false, 3, 0.9), byPriority},
		{of("lb3", 100, false, 3, 0.4), byHash},
		{of("lb5", 100, false, 3, 0.4), byName},
		{of("lb6", 0, false, 9, 1), byPriority},
		{of("lb7", 255, true, 9, 1), byStandby},
		{of("lb8", 100, true, 9, 1), byPriority},
	}
	for i := range rows {
		for j := range rows {
			order, why := rows[i].c.compare(rows[j].c)
			if want := cmp.Compare(j, i); i != j && order != want || rows[i].c.before(rows[j].c) != (i < j) {
				t.Errorf("%s and %s: %d, want %d", rows[i].c.host.Name, rows[j].c.host.Name, order, want)
			}
			if i == j-1 && why != rows[j].why {
				t.Errorf("%s comes after %s: %q, want %q", rows[j].c.host.Name, rows[i].c.host.Name, why, rows[j].why)
			}
		}
	}
	expect.Equal(t, ranking([]*candidate{rows[8].c, rows[1].c, rows[0].c, rows[4].c, rows[2].c}),
		"lb9 (moved, standby, priority 0, 1 service); lb0 (pinned, priority 255, 9 services): not chosen by an operator; lb1 (priority 200, 2 services): not chosen by an operator; lb4 (priority 100, 3 services): lower priority; lb7 (standby, priority 255, 9 services): standby")
	expect.Equal(t, ranking([]*candidate{rows[8].c}), "")
	many := slices.Repeat([]*candidate{rows[0].c}, maxRanked+2)
	expect.Contains(t, ranking(many), "; and 2 more")
}

// two returns a decider and a VIP for which it ranks before or after host "b".
func two(t *testing.T, before bool) (*Decider, netip.Addr) {
	t.Helper()
	d := NewDecider("a", 1, timing)
	d.SetHost(Host{Name: "b", Alive: true, Weight: 1})
	for i := range 100 {
		if addr := vipAt(2 * i); (score("a", addr, 1) > score("b", addr, 1)) == before {
			return d, addr
		}
	}
	t.Fatal("no such VIP")
	return nil, netip.Addr{}
}

// TestReasons has the reasons as `announce explain` prints them.
func TestReasons(t *testing.T) {
	now := time.Unix(1000, 0)
	for name, test := range map[string]struct {
		before bool
		do     func(*Decider, netip.Addr)
		want   string
		owner  string
	}{
		"alone": {true, func(d *Decider, v netip.Addr) { d.Ready() }, "a: the only eligible host", "a"},
		"best":  {true, func(d *Decider, v netip.Addr) { d.Ready(); d.SetClaim("b", Claim{Addr: v, Services: 1}) }, "a: highest of 2 eligible", "a"},
		"other": {false, func(d *Decider, v netip.Addr) { d.Ready(); d.SetClaim("b", Claim{Addr: v, Services: 1, Owned: true}) }, "b: highest of 2 eligible", "b"},
		"draining": {false, func(d *Decider, v netip.Addr) {
			d.Ready()
			d.SetClaim("b", Claim{Addr: v, Services: 1})
			d.SetHost(Host{Name: "b", Alive: true, Draining: true, Weight: 1})
		}, "a: the only eligible host; b is draining", "a"},
		"settling": {true, func(d *Decider, v netip.Addr) { d.SetClaim("b", Claim{Addr: v, Services: 1, Owned: true}); d.Ready() }, "b: keeps it until a has settled", "b"},
		"dead": {false, func(d *Decider, v netip.Addr) {
			d.Ready()
			d.SetClaim("b", Claim{Addr: v, Services: 1, Owned: true})
			d.SetHost(Host{Name: "b", Weight: 1})
		}, "a: the only eligible host; b is dead", "a"},
		"offline":   {true, func(d *Decider, v netip.Addr) { d.Ready(); d.SetOffline(everywhere("eth0: no carrier")) }, "no eligible host; a can't announce it: eth0: no carrier", ""},
		"listening": {true, func(*Decider, netip.Addr) {}, "a is finding out what other hosts announce", ""},
		"one-way": {true, func(d *Decider, v netip.Addr) {
			d.Ready()
			d.SetClaim("b", Claim{Addr: v, Services: 1, Owned: true})
			d.SetHost(Host{Name: "b", Alive: true, OneWay: true, Weight: 1})
		}, "b: does not receive heartbeats of a", "b"},
	} {
		t.Run(name, func(t *testing.T) {
			d, addr := two(t, test.before)
			d.SetEligible(Eligible{Addr: addr, Mode: L2, Services: 1})
			test.do(d, addr)
			var last Announcement
			d.Decide(now, func(a Announcement, _ bool) { last = a })
			if last.Why != test.want || last.Owner != test.owner {
				t.Errorf("%q, owner %q; want %q, %q", last.Why, last.Owner, test.want, test.owner)
			}
		})
	}
}

// keeper returns a decider of host "a" that keeps a VIP which no host serves, and a function that decides and says whether it
// has the VIP.
func keeper(t *testing.T) (*Decider, netip.Addr, func(after time.Duration) Announcement) {
	d, v := two(t, true)
	d.Begun = 1
	now := time.Unix(1000, 0)
	last := Announcement{}
	decide := func(after time.Duration) Announcement {
		now = now.Add(after)
		d.Decide(now, func(a Announcement, _ bool) { last = a })
		return last
	}
	d.Ready()
	d.SetEligible(Eligible{Addr: v, Mode: L2, Services: 1})
	decide(0)
	d.SetEligible(Eligible{Addr: v, Mode: L2, Keep: true})
	must.True(t, decide(0).Here, "it doesn't keep the VIP")
	return d, v, decide
}

// The last owner keeps a VIP over a pause, a carrier loss and an agent that was away, unless another host has had it meanwhile
// or is to have it, and not over a drain.
func TestLastOwnerKeepsOverInterruptions(t *testing.T) {
	for name, interrupt := range map[string]func(d *Decider, on bool){
		"pause": func(d *Decider, on bool) {
			if d.Listen(); !on {
				d.Ready()
			}
		},
		"carrier loss": func(d *Decider, on bool) { d.SetOffline(everywhere(map[bool]string{true: "no carrier"}[on])) },
		"agent away":   func(d *Decider, on bool) { d.Withdraw(map[bool]string{true: "the agent is gone"}[on]) },
		"drain":        func(d *Decider, on bool) { d.SetDraining(on, time.Unix(1000, 0)) },
	} {
		for other, c := range map[string][]Claim{"nobody": nil, "another owner": {{Owned: true}, {}}, "one that serves": {{Services: 1}}, "one that can't": {{}}} {
			d, v, decide := keeper(t)
			interrupt(d, true)
			expect.False(t, decide(0).Here, "%s: still announced", name)
			for _, c := range c {
				c.Addr = v
				d.SetClaim("b", c)
				decide(time.Second)
			}
			interrupt(d, false)
			expect.Equal(t, decide(time.Second).Here, name != "drain" && (other == "nobody" || other == "one that can't"), "%s, %s: announced", name, other)
		}
	}
}

// Of two keepers that meet after a partition, one gives up: at first none receives the other. A keeper that remains deaf has
// the VIP.
func TestOneOfTwoKeepersGivesUp(t *testing.T) {
	d, v, decide := keeper(t)
	d.SetHost(Host{Name: "b", Alive: true, Weight: 1, OneWay: true})
	d.SetClaim("b", Claim{Addr: v, Owned: true})
	expect.True(t, decide(0).Here, "the first one gives up at once")
	expect.True(t, decide(timing.Handover-1).Here, "the first one gives up soon")
	at, ok := d.Next()
	must.True(t, ok && at.Equal(time.Unix(1000, 0).Add(timing.Handover)), "the next decision is at %s", at)
	expect.False(t, decide(1).Here, "two owners")
}

// A move from before the process is over, also if it comes after the VIP, and a pin is not.
func TestMovesFromBeforeTheProcess(t *testing.T) {
	for _, m := range []Policy{{Moved: 99}, {Moved: 100}, {Moved: 99, Pinned: true}} {
		d, v, decide := keeper(t)
		d.Begun = 100
		d.SetEligible(Eligible{Addr: v, Mode: L2, Services: 1})
		decide(0)
		d.SetEligible(Eligible{Addr: v, Mode: L2, Services: 1, Policy: m})
		expect.Equal(t, decide(0).Over == 0, m.Moved == 100 || m.Pinned, "%+v goes on", m)
	}
}

// The newest stamp of a VIP covers a move that is over, and those of hosts that are dead or drain.
func TestNewestMove(t *testing.T) {
	d, v, decide := keeper(t)
	d.SetEligible(Eligible{Addr: v, Mode: L2, Policy: Policy{Moved: 5}})
	expect.Equal(t, decide(0).Over, 5, "over")
	d.SetEligible(Eligible{Addr: v, Mode: L2})
	expect.Equal(t, decide(0).Moved, 5, "the agent has forgotten it")
	d.SetClaim("b", Claim{Addr: v, Services: 1, Policy: Policy{Moved: 7}})
	d.SetHost(Host{Name: "b", Alive: true, Draining: true, Weight: 1})
	expect.Equal(t, decide(0).Moved, 7, "a draining host")
	d.SetHost(Host{Name: "b", Weight: 1})
	expect.Equal(t, decide(0).Moved, 7, "a dead host")
}

// A change of one VIP decides that VIP, a change of one host its VIPs, and a repeated input nothing.
func TestChangeCostsWhatChanges(t *testing.T) {
	const vips = 10_000
	now := time.Unix(1000, 0)
	d := NewDecider("self", 1, timing)
	d.Ready()
	for i := range 8 {
		d.SetHost(Host{Name: fmt.Sprint("h", i), Alive: true, Weight: 1})
	}
	for i := range vips {
		d.SetEligible(Eligible{Addr: vipAt(i), Mode: L2, Services: 1})
		d.SetClaim(fmt.Sprint("h", i%8), Claim{Addr: vipAt(i), Services: 1})
	}
	decide := func() (evaluated uint64) {
		before := d.Evaluated
		d.Decide(now, func(Announcement, bool) {})
		return d.Evaluated - before
	}
	expect.Equal(t, decide(), vips, "decisions at the start")
	for what, test := range map[string]struct {
		do   func()
		want uint64
	}{
		"a VIP":            {func() { d.SetEligible(Eligible{Addr: vipAt(7), Mode: L2}) }, 1},
		"the same VIP":     {func() { d.SetEligible(Eligible{Addr: vipAt(9), Mode: L2, Services: 1}) }, 0},
		"a claim":          {func() { d.SetClaim("h3", Claim{Addr: vipAt(3), Services: 1, Owned: true}) }, 1},
		"the same claim":   {func() { d.SetClaim("h4", Claim{Addr: vipAt(4), Services: 1}) }, 0},
		"a host dies":      {func() { d.SetHost(Host{Name: "h5", Weight: 1}) }, vips / 8},
		"a host unchanged": {func() { d.SetHost(Host{Name: "h6", Alive: true, Weight: 1}) }, 0},
	} {
		if test.do(); decide() != test.want {
			t.Errorf("%s: not %d decisions", what, test.want)
		}
	}
}

// The VIPs of a host are in proportion to its weight, and a host that goes moves only its own.
func TestRendezvousShares(t *testing.T) {
	weights := map[string]int{"lb1": 1, "lb2": 1, "lb3": 2, "lb4": 1, "lb5": 1, "lb6": 1, "lb7": 1, "lb8": 1}
	const vips = 10_000
	owner := func(addr netip.Addr, without string) (best string) {
		high := math.Inf(-1)
		for name, w := range weights {
			if s := score(name, addr, w); name != without && s > high {
				best, high = name, s
			}
		}
		return best
	}
	count := map[string]int{}
	for i := range vips {
		addr := vipAt(i)
		o := owner(addr, "")
		count[o]++
		if after := owner(addr, "lb4"); o != "lb4" && after != o {
			t.Fatalf("%s moves from %s to %s when lb4 goes", addr, o, after)
		}
	}
	for name, w := range weights {
		expect.Between(t, float64(count[name])/(vips*float64(w)/9), 0.85, 1.15, "share of %s with weight %d", name, w)
	}
}

func TestModeText(t *testing.T) {
	for i, name := range modes {
		var m Mode
		if err := m.UnmarshalText([]byte(name)); err != nil || m != Mode(i) || m.String() != name {
			t.Errorf("%s: %v, %v", name, m, err)
		}
	}
	var m Mode
	if err := m.UnmarshalText([]byte("vrrp")); err == nil || !strings.Contains(err.Error(), "vrrp") {
		t.Errorf("vrrp: %v", err)
	}
	expect.False(t, slices.Contains(modes[:], ""), "a mode has no name")
}

// All hosts compare the numbers that heartbeats tell, so that two of them can't both own a VIP with more services.
func TestManyServicesOfAVIP(t *testing.T) {
	d := NewDecider("self", 1, timing)
	d.SetEligible(Eligible{Addr: netip.MustParseAddr("192.0.2.1"), Mode: L2, Services: MaxServices + 45})
	for e := range d.Eligible() {
		expect.Equal(t, e.Services, MaxServices, "services")
	}
}
