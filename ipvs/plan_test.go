package ipvs

import (
	"errors"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/ironvip/ironvip/vip"
	"pgregory.net/rapid"
)

func addrPort(s string) netip.AddrPort { return netip.MustParseAddrPort(s) }

func oneFrontend() *vip.Frontend {
	return &vip.Frontend{
		Key:       vip.FrontendKey{Addr: netip.MustParseAddr("10.96.0.1"), Port: 80, Protocol: vip.TCP},
		Kind:      vip.OnVIP,
		Scheduler: vip.WeightedRoundRobin, Forward: vip.ForwardNAT, Masquerade: vip.MasqueradeAuto,
		Backends: []vip.Endpoint{
			{Addr: addrPort("10.1.0.1:8080"), Weight: 1},
			{Addr: addrPort("10.1.0.2:8080"), Weight: 1},
		},
	}
}

func changed(change func(*vip.Frontend)) *vip.Frontend {
	f := oneFrontend()
	change(f)
	return f
}

func planned(old, new *vip.Frontend) []string {
	var have, want *state
	if old != nil {
		s := desired(old)
		have = &s
	}
	if new != nil {
		s := desired(new)
		want = &s
	}
	var out []string
	for _, o := range plan(nil, 0, have, want) {
		out = append(out, o.String())
	}
	return out
}

func TestPlan(t *testing.T) {
	f := oneFrontend()
	cases := []struct {
		name     string
		old, new *vip.Frontend
		want     []string
	}{
		{"nothing", f, f, nil},
		{"neither", nil, nil, nil},
		{"create", nil, f, []string{
			"add ipvs service 10.96.0.1:80/tcp (wrr)",
			"add destination 10.1.0.1:8080 to 10.96.0.1:80/tcp", "add destination 10.1.0.2:8080 to 10.96.0.1:80/tcp"}},
		{"remove takes the destinations along", f, nil, []string{"delete ipvs service 10.96.0.1:80/tcp"}},
		{"weight", f, changed(func(f *vip.Frontend) { f.Backends[1].Weight = 9 }), []string{"change destination 10.1.0.2:8080 of 10.96.0.1:80/tcp"}},
		{"scheduler", f, changed(func(f *vip.Frontend) { f.Scheduler = vip.MaglevHash }), []string{"change ipvs service 10.96.0.1:80/tcp (mh)"}},
		{"affinity", f, changed(func(f *vip.Frontend) { f.Affinity = time.Hour }), []string{"change ipvs service 10.96.0.1:80/tcp (wrr)"}},
		{"scheduler flags", changed(func(f *vip.Frontend) { f.Scheduler = vip.SourceHash }),
			changed(func(f *vip.Frontend) { f.Scheduler, f.SchedulerPort = vip.SourceHash, true }), []string{"change ipvs service 10.96.0.1:80/tcp (sh)"}},
		{"scheduler flags mean nothing to wrr", f, changed(func(f *vip.Frontend) { f.SchedulerPort, f.SchedulerFallback = true, true }), nil},
		{"fields of others", f, changed(func(f *vip.Frontend) {
			f.Service.Name, f.Port, f.DrainTimeout, f.Masquerade = "web", "http", time.Minute, vip.MasqueradeNever
			f.Backends[0].Leaving = time.Now()
		}), nil},
		{"one backend replaced: added before taken", f, changed(func(f *vip.Frontend) { f.Backends[0].Addr = addrPort("10.1.0.3:8080"); slices.Reverse(f.Backends) }), []string{
			"add destination 10.1.0.3:8080 to 10.96.0.1:80/tcp", "delete destination 10.1.0.1:8080 of 10.96.0.1:80/tcp"}},
		{"weights swap: raised before lowered", changed(func(f *vip.Frontend) { f.Backends[1].Weight = 0 }), changed(func(f *vip.Frontend) { f.Backends[0].Weight = 0 }), []string{
			"change destination 10.1.0.2:8080 of 10.96.0.1:80/tcp", "change destination 10.1.0.1:8080 of 10.96.0.1:80/tcp"}},
	}
	for _, c := range cases {
		if got := planned(c.old, c.new); !slices.Equal(got, c.want) {
			t.Errorf("%s: %q, want %q", c.name, got, c.want)
		}
	}
}

// model is a kernel in miniature. It refuses what the kernel refuses.
type model struct {
	*state
	t *rapid.T
}

func (m *model) run(o op) {
	at := func() (int, bool) { return slices.BinarySearchFunc(m.dests, o.dest, compareDests) }
	if o.cmd == cmdNewService {
		if m.state != nil {
			m.t.Fatal("a second service")
		}
		m.state = &state{service: *o.service}
		return
	}
	if m.state == nil {
		m.t.Fatalf("%s: no service", &o)
	}
	switch o.cmd {
	case cmdDelService:
		m.state = nil
	case cmdSetService:
		m.service = *o.service
	case cmdNewDest:
		i, there := at()
		if there {
			m.t.Fatalf("%s: it is there", &o)
		}
		m.dests = slices.Insert(m.dests, i, o.dest)
	case cmdSetDest, cmdDelDest:
		i, there := at()
		if !there {
			m.t.Fatalf("%s: it isn't there", &o)
		}
		if o.cmd == cmdSetDest {
			m.dests[i] = o.dest
		} else {
			m.dests = slices.Delete(m.dests, i, i+1)
		}
	}
}

func (m *model) usable() bool {
	return m.state != nil && slices.ContainsFunc(m.dests, func(d dest) bool { return d.weight > 0 })
}

func drawState(t *rapid.T, label string) *state {
	if rapid.IntRange(0, 5).Draw(t, label+" absent") == 0 {
		return nil
	}
	s := &state{service: service{key: oneFrontend().Key, netmask: netmask4}}
	s.sched = rapid.SampledFrom([]string{"rr", "wrr", "mh"}).Draw(t, label+" scheduler")
	s.timeout = rapid.Uint32Range(0, 1).Draw(t, label+" timeout")
	for i := range uint16(5) {
		if w := rapid.IntRange(-2, 3).Draw(t, label+" weight"); w >= 0 {
			s.dests = append(s.dests, dest{addr: netip.AddrPortFrom(netip.MustParseAddr("10.1.0.1"), i), weight: uint32(w)})
		}
	}
	return s
}

// From any state to any other: what the plan leads to is right, no message is
// spent on what is right already, and a service that is usable before and after
// is usable all the way.
func TestPlanAgainstModel(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		have, want := drawState(t, "have"), drawState(t, "want")
		fewest := 0
		switch {
		case want == nil && have != nil:
			fewest = 1
		case want != nil:
			old := map[netip.AddrPort]dest{}
			if have == nil || have.service != want.service {
				fewest++
			}
			if have != nil {
				for _, d := range have.dests {
					old[d.addr] = d
				}
			}
			for _, d := range want.dests {
				if old[d.addr] != d {
					fewest++
				}
				delete(old, d.addr)
			}
			fewest += len(old)
		}
		m := &model{t: t}
		if have != nil {
			m.state = &state{service: have.service, dests: slices.Clone(have.dests)}
		}
		before, after := m.usable(), (&model{state: want}).usable()
		ops := plan(nil, 0, have, want)
		if len(ops) != fewest {
			t.Fatalf("%d messages, %d would do", len(ops), fewest)
		}
		for _, o := range ops {
			m.run(o)
			if before && after && !m.usable() {
				t.Fatalf("after %q there is no usable backend", &o)
			}
		}
		if want == nil || m.state == nil {
			if want != nil || m.state != nil {
				t.Fatalf("got %v, want %v", m.state, want)
			}
			return
		}
		if m.service != want.service || !slices.Equal(m.dests, want.dests) {
			t.Fatalf("got %+v, want %+v", *m.state, *want)
		}
	})
}

func TestUnsupportedIsNamed(t *testing.T) {
	cases := []struct {
		change func(*vip.Frontend)
		says   []string
	}{
		{func(f *vip.Frontend) { f.Scheduler = vip.ShortestExpectedDelay }, []string{`scheduler "sed"`}},
		{func(f *vip.Frontend) { f.Forward = vip.ForwardDirect }, []string{`forward "dr"`}},
		{func(f *vip.Frontend) { f.Forward = vip.ForwardTunnel }, []string{`forward "tunnel"`}},
		{func(f *vip.Frontend) { f.Key.Protocol = vip.SCTP }, []string{"protocol sctp"}},
		{func(f *vip.Frontend) { f.SourceRanges = []netip.Prefix{{}} }, []string{"source_ranges"}},
		{func(f *vip.Frontend) { f.Backends[0].Addr = addrPort("[fd00::1]:80") }, []string{"backend [fd00::1]:80 behind an ipv4 address"}},
		{func(f *vip.Frontend) { f.Scheduler, f.Forward = "magic", vip.ForwardDirect }, []string{`scheduler "magic"`, `forward "dr"`}},
	}
	for _, c := range cases {
		err := unsupported(changed(c.change))
		p, ok := errors.AsType[vip.Problem](err)
		if !ok || p.Code != vip.CodeUnsupported || p.Field == "" {
			t.Errorf("%v is no problem with code %q", err, vip.CodeUnsupported)
			continue
		}
		for _, s := range c.says {
			if !strings.Contains(p.Message, s) {
				t.Errorf("%q doesn't name %q", p.Message, s)
			}
		}
	}
	for _, s := range []vip.Scheduler{"rr", "wrr", "lc", "wlc", "sh", "mh"} {
		if err := unsupported(changed(func(f *vip.Frontend) { f.Scheduler, f.Forward = s, "" })); err != nil {
			t.Error(err)
		}
	}
}

func TestSame(t *testing.T) {
	var target Target
	f := oneFrontend()
	alike := []*vip.Frontend{
		changed(func(f *vip.Frontend) { f.Service.Name, f.Port, f.DrainTimeout, f.Forward = "a", "b", time.Hour, "" }),
		changed(func(f *vip.Frontend) { f.Masquerade, f.SchedulerPort = "", true }),
		changed(func(f *vip.Frontend) { f.Backends[0].Leaving = time.Now() }),
	}
	for _, g := range alike {
		if !target.Same(f, g) {
			t.Errorf("%+v is not the same as %+v", g, f)
		}
	}
	unlike := []*vip.Frontend{
		changed(func(f *vip.Frontend) { f.Kind = vip.OnHost }),
		changed(func(f *vip.Frontend) { f.Masquerade = vip.MasqueradeNever }),
		changed(func(f *vip.Frontend) { f.Scheduler = vip.RoundRobin }),
		changed(func(f *vip.Frontend) { f.Affinity = time.Second }),
		changed(func(f *vip.Frontend) { f.Backends[0].Weight = 0 }),
		changed(func(f *vip.Frontend) { f.Backends = f.Backends[:1] }),
	}
	for _, g := range unlike {
		if target.Same(f, g) {
			t.Errorf("%+v is the same as %+v", g, f)
		}
	}
	// A node port's clients are masqueraded either way.
	a := changed(func(f *vip.Frontend) { f.Kind = vip.OnHost })
	b := changed(func(f *vip.Frontend) { f.Kind, f.Masquerade = vip.OnHost, vip.MasqueradeAlways })
	if !target.Same(a, b) {
		t.Error("auto and always differ for a node port")
	}
}
