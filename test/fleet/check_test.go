package fleet

import (
	"net/netip"
	"strings"
	"testing"
	"time"
)

var (
	lb1, lb2 = Run{"lb1", 1}, Run{"lb2", 1}
	x, y     = netip.MustParseAddr("127.96.0.1"), netip.MustParseAddr("127.96.0.2")
)

func sec(n float64) time.Duration { return time.Duration(n * float64(time.Second)) }

// put and del are acknowledged requests that took a tenth of a second.
func put(r Run, service string, value int, from float64) Op {
	return Op{Agent: r, Service: service, Kind: Put, Value: value, From: sec(from), To: sec(from + 0.1), Outcome: Acknowledged}
}

func del(r Run, service string, from float64) Op {
	return Op{Agent: r, Service: service, Kind: Delete, From: sec(from), To: sec(from + 0.1), Outcome: Acknowledged}
}

// reg is a registration of a backend by itself.
func reg(r Run, service string, value int, from float64) Op {
	o := put(r, service, value, from)
	o.Kind = Register
	return o
}

// said is an override of a backend.
func said(r Run, service string, state int, from float64) Op {
	o := put(r, service, state, from)
	o.Kind = SetState
	return o
}

// gone is the removal of a backend.
func gone(r Run, service string, from float64) Op {
	o := put(r, service, NoBackend, from)
	o.Kind = Remove
	return o
}

// as is the service with its backend in a state.
func (s Seen) as(state int) Seen { s.State = state; return s }

func (o Op) is(outcome Outcome) Op { o.Outcome = outcome; return o }

// missing returns the op refused because the service doesn't exist.
func (o Op) missing() Op { o.Outcome, o.Missing = Refused, true; return o }

// ifAbsent returns the op with the condition that the service doesn't exist. ifIs returns it with
// the condition that the service is as a registration left it, which was shown at once.
func (o Op) ifAbsent() Op { o.If.Absent = true; return o }

func (o Op) ifIs(value int) Op { o.If = Condition{Value: value, Seen: o.From}; return o }

func (o Op) in(apply int) Op { o.Atomic = apply; return o }

func (o Op) with(a netip.Addr) Op { o.VIPs = []netip.Addr{a}; return o }

// view is what an agent shows at a time, by the services' names.
func view(r Run, from float64, services map[string]Seen) View {
	return View{Agent: r, From: sec(from), To: sec(from + 0.1), Services: services}
}

func has(value int, vips ...netip.Addr) Seen { return Seen{Value: value, VIPs: vips} }

func TestCheckRefuses(t *testing.T) {
	type services = map[string]Seen
	for _, c := range []struct {
		what  string
		ops   []Op
		views []View
		says  string // "": nothing is wrong
	}{
		{"nothing", nil, nil, ""},
		{"two services", []Op{put(lb1, "a", 1, 0), put(lb2, "b", 2, 0)}, []View{view(lb1, 1, services{"a": has(1, x), "b": has(2, y)})}, ""},
		{"an address twice on one agent", nil, []View{view(lb1, 1, services{"a": has(1, x), "b": has(2, x)})}, "127.96.0.1 twice, of services a and b"},
		{"an address twice on two agents", nil, []View{view(lb1, 1, services{"a": has(1, x)}), view(lb2, 1, services{"b": has(2, x)})}, "127.96.0.1 changed hands"},
		{"an address twice in answers", []Op{put(lb1, "a", 1, 0).with(x), put(lb2, "b", 2, 0).with(x)}, nil, "127.96.0.1 changed hands"},
		{"two addresses", nil, []View{view(lb1, 1, services{"a": has(1, x, y)})}, "shows service a with [127.96.0.1 127.96.0.2]"},
		{"two addresses on two agents", nil, []View{view(lb1, 1, services{"a": has(1, x)}), view(lb2, 1, services{"a": has(1, y)})}, "service a moved"},
		{"a backend's registration", []Op{put(lb1, "a", 1, 0), reg(lb1, "a", 2, 1)}, []View{view(lb1, 2, services{"a": has(2, x)})}, ""},
		{"a backend's registration is lost", []Op{put(lb1, "a", 1, 0), reg(lb1, "a", 2, 1)}, []View{view(lb1, 2, services{"a": has(1, x)})}, "in spite of: register a=2"},
		{"a backend's registration that was refused", []Op{put(lb1, "a", 1, 0), reg(lb1, "a", 2, 1).is(Refused)}, []View{view(lb1, 2, services{"a": has(1, x)})}, ""},
		{"changed hands while held", []Op{put(lb1, "a", 1, 0).with(x), put(lb1, "b", 2, 20).with(x)}, nil, "127.96.0.1 changed hands: a (lb1.1, 100ms), then b (lb1.1, 20.1s)"},
		{"changed hands after a deletion and rest", []Op{put(lb1, "a", 1, 0).with(x), del(lb1, "a", 1), put(lb1, "b", 2, 12).with(x)}, nil, ""},
		{"changed hands without rest", []Op{put(lb1, "a", 1, 0).with(x), del(lb1, "a", 1), put(lb1, "b", 2, 5).with(x)}, nil, "changed hands"},
		{"changed hands though registered again", []Op{put(lb1, "a", 1, 0).with(x), del(lb1, "a", 1), put(lb1, "a", 2, 2), put(lb1, "b", 3, 12).with(x)}, nil, "changed hands"},
		{"changed hands after a deletion that was refused", []Op{put(lb1, "a", 1, 0).with(x), del(lb1, "a", 1).is(Refused), put(lb1, "b", 2, 12).with(x)}, nil, "changed hands"},
		{"changed hands after a deletion that may have been", []Op{put(lb1, "a", 1, 0).with(x), del(lb1, "a", 1).is(Unknown), put(lb1, "b", 2, 12).with(x)}, nil, ""},
		{"moved", []Op{put(lb1, "a", 1, 0).with(x), put(lb2, "a", 2, 20).with(y)}, nil, "service a moved: 127.96.0.1"},
		{"back with its address", []Op{put(lb1, "a", 1, 0).with(x), del(lb1, "a", 1), put(lb2, "a", 2, 2).with(x)}, nil, ""},
		{"back with another one too soon", []Op{put(lb1, "a", 1, 0).with(x), del(lb1, "a", 1), put(lb2, "a", 2, 2).with(y)}, nil, "service a moved"},

		{"an acknowledged one not shown", []Op{put(lb1, "a", 1, 0)}, []View{view(lb1, 1, services{})}, "shows service a not at all at 1s, in spite of: put a=1"},
		{"an acknowledged one shown as before", []Op{put(lb1, "a", 1, 0), put(lb1, "a", 2, 1)}, []View{view(lb1, 2, services{"a": has(1, x)})}, "as registration 1"},
		{"a deleted one shown", []Op{put(lb1, "a", 1, 0), del(lb1, "a", 1)}, []View{view(lb1, 2, services{"a": has(1, x)})}, "as registration 1 at 2s, in spite of: delete a"},
		{"one acknowledged during the view", []Op{put(lb1, "a", 1, 1.05)}, []View{view(lb1, 1.1, services{})}, ""},
		{"one not yet on another agent", []Op{put(lb1, "a", 1, 0)}, []View{view(lb2, 1, services{})}, ""},
		{"one not yet known after a start", []Op{put(lb1, "a", 1, 0)}, []View{view(Run{"lb1", 2}, 1, services{})}, ""},
		{"replaced by another agent meanwhile", []Op{put(lb1, "a", 1, 0), put(lb2, "a", 2, 0.05)}, []View{view(lb1, 1, services{"a": has(2, x)})}, ""},
		{"perhaps deleted by another agent before", []Op{del(lb2, "a", 0).is(Unknown), put(lb1, "a", 1, 1)}, []View{view(lb1, 2, services{})}, ""},
		{"a drained backend", []Op{put(lb1, "a", 1, 0), said(lb1, "a", 1, 1)}, []View{view(lb1, 2, services{"a": has(1, x).as(1)})}, ""},
		{"a drained backend that isn't", []Op{put(lb1, "a", 1, 0), said(lb1, "a", 1, 1)}, []View{view(lb1, 2, services{"a": has(1, x)})}, "the backend of service a as ready at 2s, in spite of: state a=drain"},
		{"a backend that is ready again", []Op{said(lb1, "a", 1, 0), said(lb1, "a", 0, 1)}, []View{view(lb1, 2, services{"a": has(1, x).as(1)})}, "as drain at 2s, in spite of: state a=ready"},
		{"a drain that was refused", []Op{put(lb1, "a", 1, 0), said(lb1, "a", 1, 1).is(Refused)}, []View{view(lb1, 2, services{"a": has(1, x)})}, ""},
		{"a drain through another agent meanwhile", []Op{said(lb1, "a", 1, 0), said(lb2, "a", 2, 0.05)}, []View{view(lb1, 2, services{"a": has(0, x).as(2)})}, ""},
		{"a drained backend of a deleted service", []Op{said(lb1, "a", 1, 0)}, []View{view(lb1, 2, services{})}, ""},
		{"an override that ended with its service", []Op{put(lb1, "a", 1, 0), said(lb1, "a", 1, 1), del(lb1, "a", 2), put(lb1, "a", 2, 3)}, []View{view(lb1, 4, services{"a": has(2, x)})}, ""},
		{"an override that outlived a deletion", []Op{put(lb1, "a", 1, 0), said(lb1, "a", 1, 1), del(lb1, "a", 2), put(lb1, "a", 2, 3)}, []View{view(lb1, 4, services{"a": has(2, x).as(1)})}, ""},
		{"a removed backend", []Op{put(lb1, "a", 1, 0), said(lb1, "a", 1, 1), gone(lb1, "a", 2)}, []View{view(lb1, 3, services{"a": has(NoBackend, x)})}, ""},
		{"a removed backend that is there", []Op{put(lb1, "a", 1, 0), gone(lb1, "a", 2)}, []View{view(lb1, 3, services{"a": has(1, x)})}, "as registration 1 at 3s, in spite of: remove a by"},
		{"a backend that is gone", []Op{put(lb1, "a", 1, 0)}, []View{view(lb1, 3, services{"a": has(NoBackend, x)})}, "without a backend at 3s"},
		{"a backend that is back", []Op{gone(lb1, "a", 0), reg(lb1, "a", 1, 1)}, []View{view(lb1, 2, services{"a": has(1, x)})}, ""},
		{"a registration that was refused and is there", []Op{put(lb1, "a", 1, 0).is(Refused)}, []View{view(lb2, 1, services{"a": has(1, x)})}, "shows service a as it was refused: put a=1"},
		{"a registration that may be and is there", []Op{put(lb1, "a", 1, 0).is(Unknown)}, []View{view(lb2, 1, services{"a": has(1, x)})}, ""},
		{"what was replaced is back", []Op{put(lb2, "a", 1, 0), put(lb2, "a", 2, 1)},
			[]View{view(lb1, 1, services{"a": has(1, x)}), view(lb1, 2, services{"a": has(2, x)}), view(lb1, 3, services{"a": has(1, x)})}, "shows service a again as registration 1 at 3s, after it was as registration 2"},
		{"what was deleted is back", []Op{put(lb2, "a", 1, 0), del(lb2, "a", 1)},
			[]View{view(lb1, 1, services{"a": has(1, x)}), view(lb1, 2, services{}), view(lb1, 3, services{"a": has(1, x)})}, "after it was not at all"},
		{"without a backend again", []Op{gone(lb2, "a", 0), reg(lb2, "a", 1, 1), gone(lb2, "a", 2)},
			[]View{view(lb1, 1, services{"a": has(NoBackend, x)}), view(lb1, 2, services{"a": has(1, x)}), view(lb1, 3, services{"a": has(NoBackend, x)})}, ""},
		{"what was replaced is back after a start", []Op{put(lb2, "a", 1, 0), put(lb2, "a", 2, 1)},
			[]View{view(lb1, 1, services{"a": has(1, x)}), view(lb1, 2, services{"a": has(2, x)}), view(Run{"lb1", 2}, 3, services{"a": has(1, x)})}, ""},

		{"created where it is", []Op{put(lb1, "a", 1, 0), put(lb2, "a", 2, 1).ifAbsent()}, nil, "service a was created though it was there: put a=2 if there is none"},
		{"created where it was deleted", []Op{put(lb1, "a", 1, 0), del(lb1, "a", 0.05), put(lb2, "a", 2, 1).ifAbsent()}, nil, ""},
		{"created where it may have been deleted", []Op{put(lb1, "a", 1, 1), del(lb1, "a", 0).is(Unknown), put(lb2, "a", 2, 2).ifAbsent()}, nil, ""},
		{"created where it may be", []Op{put(lb1, "a", 1, 0).is(Unknown), put(lb2, "a", 2, 1).ifAbsent()}, nil, ""},
		{"created where it may have come meanwhile", []Op{put(lb1, "a", 1, 0), put(lb2, "a", 2, 0.05).ifAbsent()}, nil, ""},
		{"created twice at once", []Op{put(lb1, "a", 1, 0).ifAbsent(), put(lb2, "a", 2, 0.05).ifAbsent()}, nil, "was created though it was there"},
		{"created twice, once refused", []Op{put(lb1, "a", 1, 0).ifAbsent(), put(lb2, "a", 2, 0.05).ifAbsent().is(Refused)}, nil, ""},
		{"missing though it is there", []Op{put(lb1, "a", 1, 0), del(lb2, "a", 1).missing()}, nil, "service a was there, and an agent was asked in vain: delete a by lb2"},
		{"missing before it is there", []Op{put(lb1, "a", 1, 0), del(lb2, "a", 0.05).missing()}, nil, ""},
		{"missing though it may be there", []Op{put(lb1, "a", 1, 0).is(Unknown), del(lb2, "a", 1).missing()}, nil, ""},
		{"missing after its deletion", []Op{put(lb1, "a", 1, 0), del(lb1, "a", 1), reg(lb2, "a", 2, 2).missing()}, nil, ""},
		{"missing while it may be deleted", []Op{put(lb1, "a", 1, 0), reg(lb2, "a", 2, 1).missing(), del(lb1, "a", 1.05)}, nil, ""},
		{"missing after it may have been deleted", []Op{put(lb1, "a", 1, 1), del(lb1, "a", 0).is(Unknown), said(lb2, "a", 1, 2).missing()}, nil, ""},
		{"changed as it was", []Op{put(lb1, "a", 1, 0), put(lb2, "a", 2, 1).ifIs(1), gone(lb1, "a", 2).ifIs(2), del(lb1, "a", 3)}, nil, ""},
		{"changed though it was replaced", []Op{put(lb1, "a", 1, 0), put(lb1, "a", 2, 1), put(lb2, "a", 3, 2).ifIs(1)}, nil, "service a was changed though it was something else: put a=3 if it is 1"},
		{"deleted though it was replaced", []Op{put(lb1, "a", 1, 0), put(lb1, "a", 2, 1), del(lb2, "a", 2).ifIs(1)}, nil, "delete a if it is 1"},
		{"changed though it was deleted", []Op{put(lb1, "a", 1, 0), del(lb1, "a", 1), reg(lb2, "a", 2, 2).ifIs(1)}, nil, "in spite of: delete a"},
		{"changed though it may have been replaced", []Op{put(lb1, "a", 1, 0), put(lb1, "a", 2, 1).is(Unknown), put(lb2, "a", 3, 2).ifIs(1)}, nil, ""},
		{"changed though it was replaced, which was seen", []Op{put(lb1, "a", 1, 0), put(lb1, "a", 2, 1).is(Unknown), put(lb2, "a", 3, 3).ifIs(1)},
			[]View{view(lb1, 2, services{"a": has(2, x)})}, "changed though it was something else"},
		{"changed where it is replaced meanwhile", []Op{put(lb1, "a", 1, 0), put(lb1, "a", 2, 1), put(lb2, "a", 3, 1.05).ifIs(1)}, nil, ""},
		{"changed twice as it was", []Op{put(lb1, "a", 1, 0), put(lb1, "a", 2, 1).ifIs(1), gone(lb1, "a", 1.05).ifIs(1)}, nil, "service a was changed twice on the same terms"},
		{"a refused deletion is none", []Op{put(lb1, "a", 1, 1), del(lb2, "a", 1.05).is(Refused)}, []View{view(lb1, 2, services{})}, "not at all"},
	} {
		for i := range c.ops {
			c.ops[i].Answer = "200"
		}
		refuses(t, c.what, Check(&History{Ops: c.ops, Views: c.views, Reuse: sec(10)}), c.says)
	}
}

// refuses checks that a check found one expected error, or none.
func refuses(t *testing.T, what string, wrong []string, says string) {
	t.Helper()
	switch {
	case says == "" && len(wrong) > 0:
		t.Errorf("%s: is refused: %q", what, wrong)
	case says != "" && (len(wrong) == 0 || !strings.Contains(strings.Join(wrong, "\n"), says)):
		t.Errorf("%s: want %q, got %q", what, says, wrong)
	}
}

func TestCheckEndRefuses(t *testing.T) {
	now := time.Now()
	// sound returns a fleet at rest with service a, and b deleted.
	sound := func() (*History, *End) {
		h := &History{Reuse: sec(10), Ops: []Op{put(lb1, "a", 1, 0), put(lb2, "b", 2, 0), put(lb2, "a", 3, 1), del(lb1, "b", 2)}}
		e := &End{At: sec(3), Wall: now, Holdings: map[string][]netip.Addr{"a": {x}}}
		leases := []Lease{{Address: x, Service: "a"}, {Address: y, Service: "b", Cooling: true, Until: now.Add(sec(8))}}
		for _, r := range []Run{lb1, lb2} {
			e.Agents = append(e.Agents, AgentEnd{View: view(r, 3, map[string]Seen{"a": has(3, x)}),
				Frontends: []Frontend{{Service: "a", Address: x, Value: 3, Applied: true}}, Leases: append([]Lease{}, leases...)})
		}
		e.Leases = leases
		return h, e
	}
	for _, c := range []struct {
		what  string
		spoil func(*History, *End)
		says  string
	}{
		{"nothing", func(*History, *End) {}, ""},
		{"an acknowledged registration missing on one agent", func(_ *History, e *End) {
			e.Agents[1].Services, e.Agents[1].Frontends = nil, nil
		}, "lb2.1 shows service a not at all at the end, in spite of: put a=3"},
		{"an older registration on one agent", func(_ *History, e *End) {
			e.Agents[1].Services["a"] = has(1, x)
		}, "as registration 1 at the end"},
		{"a deletion not followed by one agent", func(_ *History, e *End) {
			e.Agents[1].Services["b"] = has(2, y)
		}, "lb2.1 shows service b as registration 2 at the end, in spite of: delete b"},
		{"a refused request that happened", func(h *History, e *End) {
			h.Ops = append(h.Ops, put(lb1, "c", 9, 2).is(Refused))
			e.Agents[0].Services["c"] = has(9, y)
		}, "service c, which nobody asked for"},
		{"an unknown request that did not happen", func(h *History, e *End) {
			h.Ops = append(h.Ops, put(lb1, "a", 9, 2).is(Unknown), del(lb1, "a", 2).is(Unknown), put(lb2, "c", 10, 2).is(Unknown))
		}, ""},
		{"an unknown request that happened on one agent", func(h *History, e *End) {
			h.Ops = append(h.Ops, put(lb1, "a", 9, 2).is(Unknown))
			e.Agents[1].Services["a"], e.Agents[1].Frontends[0].Value = has(9, x), 9
		}, "lb1.1 shows service a as registration 3 with [127.96.0.1], lb2.1 as registration 9"},
		{"an unknown request that was seen, and undone by nobody", func(h *History, _ *End) {
			h.Ops = append(h.Ops, put(lb1, "a", 9, 2).is(Unknown))
			h.Views = append(h.Views, view(lb1, 2.5, map[string]Seen{"a": has(9, x)}))
		}, "as registration 3 at the end, in spite of: put a=9"},
		{"half of an atomic apply that may have happened", func(h *History, e *End) {
			h.Ops = append(h.Ops, put(lb1, "a", 9, 2.2).is(Unknown).in(1), put(lb1, "c", 10, 2.2).is(Unknown).in(1))
			for i := range e.Agents {
				e.Agents[i].Services["a"], e.Agents[i].Frontends[0].Value = has(9, x), 9
			}
		}, "shows service c not at all at the end, in spite of: put c=10"},
		{"half of an atomic apply, the other deleted", func(h *History, e *End) {
			h.Ops = append(h.Ops, put(lb1, "a", 9, 2.2).is(Unknown).in(1), put(lb1, "c", 10, 2.2).is(Unknown).in(1), del(lb1, "c", 2.5))
			for i := range e.Agents {
				e.Agents[i].Services["a"], e.Agents[i].Frontends[0].Value = has(9, x), 9
			}
		}, ""},
		{"an atomic apply that may not have happened", func(h *History, e *End) {
			h.Ops = append(h.Ops, put(lb1, "a", 9, 2.2).is(Unknown).in(1), put(lb1, "c", 10, 2.2).is(Unknown).in(1))
		}, ""},
		{"no backend", func(h *History, e *End) {
			h.Ops = append(h.Ops, said(lb1, "a", 1, 2), gone(lb1, "a", 2.5))
			for i := range e.Agents {
				e.Agents[i].Services["a"], e.Agents[i].Frontends[0].Value = has(NoBackend, x), 0
			}
		}, ""},
		{"a removed backend in the dataplane", func(h *History, e *End) {
			h.Ops = append(h.Ops, gone(lb1, "a", 2.5))
			for i := range e.Agents {
				e.Agents[i].Services["a"] = has(NoBackend, x)
			}
		}, "lb1.1: service a is"},
		{"a drained backend", func(h *History, e *End) {
			h.Ops = append(h.Ops, said(lb1, "a", 1, 2))
			for i := range e.Agents {
				e.Agents[i].Services["a"], e.Agents[i].Frontends[0].Value = has(3, x).as(1), 0
			}
		}, ""},
		{"a drained backend that is ready on one agent", func(h *History, e *End) {
			h.Ops = append(h.Ops, said(lb1, "a", 1, 2).is(Unknown))
			e.Agents[1].Services["a"], e.Agents[1].Frontends[0].Value = has(3, x).as(1), 0
		}, "lb1.1 shows the backend of service a as ready, lb2.1 as drain"},
		{"a backend drained that nobody drained", func(_ *History, e *End) {
			e.Agents[1].Services["a"] = has(3, x).as(2)
		}, "lb2.1 shows the backend of service a as maint at the end, in spite of: nothing that was done"},
		{"a drained backend that takes connections", func(h *History, e *End) {
			h.Ops = append(h.Ops, said(lb1, "a", 2, 2))
			for i := range e.Agents {
				e.Agents[i].Services["a"] = has(3, x).as(2)
			}
		}, "lb1.1: service a is"},
		{"no address", func(_ *History, e *End) {
			e.Agents[0].Services["a"] = has(3)
		}, "with addresses [] at the end, want one"},
		{"another address on one agent", func(_ *History, e *End) {
			e.Agents[1].Services["a"], e.Agents[1].Frontends[0].Address = has(3, y), y
		}, "lb2.1 as registration 3 with [127.96.0.2]"},
		{"not in the dataplane", func(_ *History, e *End) { e.Agents[1].Frontends = nil }, "lb2.1: service a is"},
		{"not applied", func(_ *History, e *End) { e.Agents[1].Frontends[0].Applied = false }, "lb2.1: service a is"},
		{"older backends in the dataplane", func(_ *History, e *End) { e.Agents[1].Frontends[0].Value = 1 }, "lb2.1: service a is"},
		{"a listener that should be gone", func(_ *History, e *End) {
			e.Agents[0].Frontends = append(e.Agents[0].Frontends, Frontend{Service: "b", Address: y})
		}, "127.96.0.2 of service b, which is not there"},
		{"leaked in Consul", func(_ *History, e *End) { e.Leases[1].Cooling = false }, "consul: leaked: 127.96.0.2 is held for service b"},
		{"leaked in cooling", func(_ *History, e *End) { e.Leases[1].Until = now.Add(-time.Minute) }, "consul: leaked: 127.96.0.2 should have been free"},
		{"a lease missing in Consul", func(_ *History, e *End) { e.Leases = e.Leases[1:] }, "consul: service a has [127.96.0.1], and leases on []"},
		{"a lease missing on an agent", func(_ *History, e *End) { e.Agents[1].Leases = e.Agents[1].Leases[1:] }, "lb2.1: service a has"},
		{"two leases", func(_ *History, e *End) { e.Leases = append(e.Leases, Lease{Address: x, Service: "a"}) }, "consul has two leases on 127.96.0.1"},
		{"cooling though held", func(_ *History, e *End) { e.Leases[0].Cooling, e.Leases[0].Until = true, now }, "127.96.0.1 cools down, and service a has it"},
		{"holdings that are wrong", func(_ *History, e *End) { e.Holdings["a"] = []netip.Addr{y} }, "consul: service a holds [127.96.0.2] by its holdings"},
		{"holdings of nobody", func(_ *History, e *End) { e.Holdings["b"] = []netip.Addr{y} }, "consul: service b holds"},
	} {
		h, e := sound()
		c.spoil(h, e)
		refuses(t, c.what, CheckEnd(h, e), c.says)
	}
}
