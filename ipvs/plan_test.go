package ipvs

import (
	"errors"
	"maps"
	"net/netip"
	"slices"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/ironvip/ironvip/ipvs/internal/kernel"
	"github.com/ironvip/ironvip/test/expect"
	"github.com/ironvip/ironvip/test/must"
	"github.com/ironvip/ironvip/vip"
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

func hashed(changes ...func(*vip.Frontend)) *vip.Frontend {
	return changed(func(f *vip.Frontend) {
		f.Scheduler = vip.MaglevHash
		for _, c := range changes {
			c(f)
		}
	})
}

func adding(backend string) func(*vip.Frontend) {
	return func(f *vip.Frontend) {
		f.Backends = append(f.Backends, vip.Endpoint{Addr: addrPort(backend), Weight: 1})
		slices.SortFunc(f.Backends, vip.CompareEndpoints)
	}
}

func planned(old, new *vip.Frontend) []string {
	var have, want *kernel.State
	if old != nil {
		s := desired(old, 0)
		have = &s
	}
	if new != nil {
		s := desired(new, 0)
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
			f.Backends[0].Leaving = vip.InstantOf(time.Now())
		}), nil},
		{"one backend replaced: added before taken", f, changed(func(f *vip.Frontend) { f.Backends[0].Addr = addrPort("10.1.0.3:8080"); slices.Reverse(f.Backends) }), []string{
			"add destination 10.1.0.3:8080 to 10.96.0.1:80/tcp", "delete destination 10.1.0.1:8080 of 10.96.0.1:80/tcp"}},
		{"limit", f, changed(func(f *vip.Frontend) { f.Backends[1].MaxConnections = 9 }), []string{"change destination 10.1.0.2:8080 of 10.96.0.1:80/tcp"}},
		{"weights swap: raised before lowered", changed(func(f *vip.Frontend) { f.Backends[1].Weight = 0 }), changed(func(f *vip.Frontend) { f.Backends[0].Weight = 0 }), []string{
			"change destination 10.1.0.2:8080 of 10.96.0.1:80/tcp", "change destination 10.1.0.1:8080 of 10.96.0.1:80/tcp"}},
		{"mh is given its destinations before it fills a table of them", nil, hashed(), []string{
			"add ipvs service 10.96.0.1:80/tcp (none)",
			"add destination 10.1.0.1:8080 to 10.96.0.1:80/tcp", "add destination 10.1.0.2:8080 to 10.96.0.1:80/tcp",
			"change ipvs service 10.96.0.1:80/tcp (mh)"}},
		{"mh: a weight", hashed(), hashed(func(f *vip.Frontend) { f.Backends[0].Weight = 7 }), []string{"change destination 10.1.0.1:8080 of 10.96.0.1:80/tcp"}},
		{"mh: the highest backend is new", hashed(), hashed(adding("10.1.0.3:8080")), []string{"add destination 10.1.0.3:8080 to 10.96.0.1:80/tcp"}},
		{"mh: a backend goes", hashed(adding("10.1.0.3:8080")), hashed(), []string{"delete destination 10.1.0.3:8080 of 10.96.0.1:80/tcp"}},
		{"mh: another is new, those above it follow", hashed(), hashed(adding("10.1.0.1:9090")), []string{
			"add destination 10.1.0.1:9090 to 10.96.0.1:80/tcp",
			"delete destination 10.1.0.2:8080 of 10.96.0.1:80/tcp", "add destination 10.1.0.2:8080 to 10.96.0.1:80/tcp"}},
		{"mh: a backend that takes no more leaves the table", hashed(), hashed(func(f *vip.Frontend) { f.Backends[0].Weight = 0 }), []string{
			"delete destination 10.1.0.1:8080 of 10.96.0.1:80/tcp", "add destination 10.1.0.1:8080 to 10.96.0.1:80/tcp"}},
	}
	for _, c := range cases {
		expect.SameList(t, planned(c.old, c.new), c.want, c.name)
	}
}

func drawState(t *rapid.T, label string) *kernel.State {
	if rapid.IntRange(0, 5).Draw(t, label+" absent") == 0 {
		return nil
	}
	s := &kernel.State{Service: kernel.Service{Key: oneFrontend().Key, Netmask: kernel.Netmask4}}
	s.Scheduler = rapid.SampledFrom([]string{"rr", "wrr", "mh", "sh"}).Draw(t, label+" scheduler")
	s.Timeout = rapid.Uint32Range(0, 1).Draw(t, label+" timeout")
	for i := range uint16(5) {
		if w := rapid.IntRange(-2, 3).Draw(t, label+" weight"); w >= 0 {
			s.Dests = append(s.Dests, kernel.Dest{Addr: netip.AddrPortFrom(netip.MustParseAddr("10.1.0.1"), i), Weight: uint32(w)})
		}
	}
	return s
}

// A plan leads from any state to any other. It contains no unneeded message, and a service that
// is usable before and after it is usable in between.
func TestPlanAgainstModel(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		have, want := drawState(t, "have"), drawState(t, "want")
		k := newFakeKernel()
		if have != nil {
			k.put(have.Service)
			dests, s := slices.Clone(have.Dests), k.services[have.Key]
			if !dependsOnOrder(have.Scheduler) || rapid.Bool().Draw(t, "drifted") {
				dests = rapid.Permutation(dests).Draw(t, "list")
				have.Ages = map[netip.AddrPort]int{}
				for i, d := range dests {
					have.Ages[d.Addr] = i
				}
			}
			for _, d := range dests {
				s.age(d.Addr)
				s.dests[d.Addr], s.last[d.Addr] = d, d.Weight
				if d.Weight == 0 && have.Scheduler != maglev {
					s.last[d.Addr] = rapid.Uint32Range(0, 3).Draw(t, "last weight")
				}
			}
		}
		fewest := 0
		switch {
		case want == nil && have != nil:
			fewest = 1
		case want != nil:
			old := map[netip.AddrPort]kernel.Dest{}
			if have == nil || have.Service != want.Service {
				fewest++
			}
			if have != nil {
				for _, d := range have.Dests {
					old[d.Addr] = d
				}
			}
			for _, d := range want.Dests {
				if old[d.Addr] != d {
					fewest++
				}
				delete(old, d.Addr)
			}
			fewest += len(old)
		}
		before, after := usable(have), usable(want)
		ops := plan(nil, 0, have, want)
		inOrder := have == nil || have.Ages == nil && (want == nil || have.Scheduler == want.Scheduler)
		quiet := have == nil || want == nil || !slices.ContainsFunc(have.Dests, func(d kernel.Dest) bool { // no weight changes from or to 0
			return slices.ContainsFunc(want.Dests, func(w kernel.Dest) bool { return w.Addr == d.Addr && (w.Weight == 0) != (d.Weight == 0) })
		})
		appended := have == nil || len(have.Dests) == 0 || want != nil && !slices.ContainsFunc(want.Dests, func(d kernel.Dest) bool {
			return d.Addr.Compare(have.Dests[len(have.Dests)-1].Addr) < 0 && !slices.ContainsFunc(have.Dests, func(h kernel.Dest) bool { return h.Addr == d.Addr })
		})
		late := want != nil && have == nil && want.Scheduler == "mh" && len(want.Dests) > 1
		if late {
			fewest++
		}
		if (want == nil || !dependsOnOrder(want.Scheduler) || inOrder && appended && quiet) && len(ops) != fewest {
			t.Fatalf("%d messages, %d would do", len(ops), fewest)
		}
		filled := 0
		for _, o := range ops {
			if o.cmd == kernel.CmdSetService && o.service.Scheduler == maglev || o.cmd == kernel.CmdNewDest && k.services[o.service.Key].Scheduler == maglev {
				filled++
			}
			must.Equal(t, k.carryOut(&o), 0, "%s", &o)
			if o.moves && o.cmd == kernel.CmdDelDest {
				continue // the next op adds it again
			}
			if before && after && !usable(k.state()) {
				t.Fatalf("after %q there is no usable backend", &o)
			}
		}
		got := k.state()
		if want == nil || got == nil {
			if want != nil || got != nil {
				t.Fatalf("got %v, want %v", got, want)
			}
			return
		}
		if wrong := k.services[want.Key].misplaced(); dependsOnOrder(want.Scheduler) && wrong != "" {
			t.Fatal(wrong)
		}
		if late && filled != 1 {
			t.Fatalf("the table of a new service was filled %d times", filled)
		}
		if got.Service != want.Service || !slices.Equal(got.Dests, want.Dests) {
			t.Fatalf("got %+v, want %+v", *got, *want)
		}
	})
}

// state returns the only service, or nil.
func (k *fakeKernel) state() *kernel.State {
	for _, s := range k.services {
		return &kernel.State{Service: s.Service, Dests: slices.SortedFunc(maps.Values(s.dests), kernel.CompareDests)}
	}
	return nil
}

func usable(s *kernel.State) bool {
	return s != nil && slices.ContainsFunc(s.Dests, func(d kernel.Dest) bool { return d.Weight > 0 })
}

func TestUnsupportedIsNamed(t *testing.T) {
	cases := []struct {
		change func(*vip.Frontend)
		says   []string
	}{
		{func(f *vip.Frontend) { f.Scheduler = vip.OtherScheduler }, []string{`scheduler "other"`}},
		{func(f *vip.Frontend) { f.Forward = vip.ForwardHost + 1 }, []string{`forward "vip.Forward(5)"`}},
		{func(f *vip.Frontend) { f.Key.Protocol = 47 }, []string{"protocol protocol(47)"}},
		{func(f *vip.Frontend) { f.Forward = vip.ForwardDirect }, []string{`backend 10.1.0.1:8080 of 10.96.0.1:80/tcp with forward "dr", which can't change the port`, "10.1.0.2:8080"}},
		{func(f *vip.Frontend) { f.Forward, f.Key.Port, f.Key.LastPort = vip.ForwardTunnel, 8080, 8090 }, []string{"backend 10.1.0.1:8080", `forward "tunnel"`}},
		{func(f *vip.Frontend) { f.Forward, f.Kind, f.Key.Port = vip.ForwardDirect, vip.OnHost, 8080 }, []string{`forward "dr" on a node port`}},
		{func(f *vip.Frontend) {
			f.Forward, f.Masquerade, f.Key.Port = vip.ForwardTunnel, vip.MasqueradeAlways, 8080
		}, []string{`masquerade "always" with forward "tunnel"`}},
		{func(f *vip.Frontend) { f.Kind = vip.OnRealServer }, []string{`a real server with forward "nat"`}},
		{func(f *vip.Frontend) { f.OnePacket = true }, []string{"one-packet for tcp", `one-packet with forward "nat"`}},
		{func(f *vip.Frontend) {
			f.OnePacket, f.Affinity, f.Key.Protocol, f.Forward, f.Key.Port = true, time.Hour, vip.UDP, vip.ForwardDirect, 8080
		}, []string{"one-packet with affinity"}},
		{func(f *vip.Frontend) { f.Backends[0].Addr = addrPort("[fd00::1]:80") }, []string{"backend [fd00::1]:80 behind an ipv4 address"}},
		{func(f *vip.Frontend) { f.Affinity, f.Key.LastPort = time.Hour, 90 }, []string{"affinity on 10.96.0.1:80-90/tcp with backends at port 8080"}},
		{func(f *vip.Frontend) { f.Affinity, f.Key.Audience = time.Hour, vip.InternalClients }, []string{"affinity on 10.96.0.1:80/tcp+internal with backends at port 8080"}},
		{func(f *vip.Frontend) { f.Scheduler, f.Forward = vip.OtherScheduler, vip.ForwardHost+1 }, []string{`scheduler "other"`, `forward "vip.Forward(5)"`}},
		{func(f *vip.Frontend) { f.MaxConnectionsPerSource, f.MaxRatePerSource, f.SynProxy = 1, 1, true }, []string{"max_connections_per_source", "max_rate_per_source", "syn_proxy"}},
	}
	for _, c := range cases {
		err := Unsupported(changed(c.change))
		p, ok := errors.AsType[vip.Problem](err)
		if !ok || p.Code != vip.CodeUnsupported || p.Field == "" {
			t.Errorf("%v is no problem with code %q", err, vip.CodeUnsupported)
			continue
		}
		for _, s := range c.says {
			expect.Contains(t, p.Message, s, "doesn't name")
		}
	}
	for _, s := range kernel.Schedulers() {
		expect.Succeed(t, Unsupported(changed(func(f *vip.Frontend) { f.Scheduler, f.Forward = s, 0 })))
	}
	ranged := func(f *vip.Frontend) { f.Key.Port, f.Key.LastPort = 8080, 8090 }
	asked := func(f *vip.Frontend) {
		for i, b := range f.Backends {
			f.Backends[i].Addr = netip.AddrPortFrom(b.Addr.Addr(), 0)
		}
	}
	direct := func(f *vip.Frontend) { f.Forward, f.Key.Port = vip.ForwardDirect, 8080 }
	tunnel := func(f *vip.Frontend) { f.Forward, f.Key.Port = vip.ForwardTunnel, 8080 }
	sticky := func(f *vip.Frontend) { f.Affinity = time.Hour }
	for i, changes := range [][]func(*vip.Frontend){
		{ranged}, {ranged, asked}, {direct}, {tunnel}, {direct, ranged, asked}, {tunnel, ranged, asked},
		{direct, func(f *vip.Frontend) { f.OnePacket, f.Key.Protocol = true, vip.UDP }},
		{func(f *vip.Frontend) { f.Key.Protocol = vip.SCTP }},
		{tunnel, func(f *vip.Frontend) { f.Kind = vip.OnRealServer }},
		{ranged, asked, sticky},
		{sticky},
		{sticky, func(f *vip.Frontend) { f.Key.Port, f.Key.Audience = 8080, vip.InternalClients }},
	} {
		f := oneFrontend()
		for _, c := range changes {
			c(f)
		}
		expect.Succeed(t, Unsupported(f), "case %d", i)
	}
}

func TestSame(t *testing.T) {
	var target Target
	f := oneFrontend()
	alike := []*vip.Frontend{
		changed(func(f *vip.Frontend) { f.Service.Name, f.Port, f.DrainTimeout, f.Forward = "a", "b", time.Hour, 0 }),
		changed(func(f *vip.Frontend) { f.Masquerade, f.SchedulerPort = 0, true }),
		changed(func(f *vip.Frontend) { f.Backends[0].Leaving = vip.InstantOf(time.Now()) }),
	}
	for _, g := range alike {
		expect.True(t, target.Same(f, g), "%+v is not the same as %+v", g, f)
	}
	unlike := []*vip.Frontend{
		changed(func(f *vip.Frontend) { f.Kind = vip.OnHost }),
		changed(func(f *vip.Frontend) { f.Masquerade = vip.MasqueradeNever }),
		changed(func(f *vip.Frontend) { f.Scheduler = vip.RoundRobin }),
		changed(func(f *vip.Frontend) { f.Affinity = time.Second }),
		changed(func(f *vip.Frontend) { f.Backends[0].Weight = 0 }),
		changed(func(f *vip.Frontend) { f.Backends = f.Backends[:1] }),
		changed(func(f *vip.Frontend) { f.MaxConnectionsPerSource = 1 }), // which Apply refuses
	}
	for _, g := range unlike {
		expect.False(t, target.Same(f, g), "%+v is the same as %+v", g, f)
	}
	// For a real server, the scheduler and the weights make no difference. The forwarding method
	// and the addresses do.
	real := func(changes ...func(*vip.Frontend)) *vip.Frontend {
		return changed(func(f *vip.Frontend) {
			f.Kind, f.Forward, f.Key.Port = vip.OnRealServer, vip.ForwardTunnel, 8080
			for _, c := range changes {
				c(f)
			}
		})
	}
	if !target.Same(real(), real(func(f *vip.Frontend) { f.Scheduler, f.Backends[0].Weight = 0, 9 })) {
		t.Error("the scheduler and weights make a real server another")
	}
	for i, c := range []func(*vip.Frontend){
		func(f *vip.Frontend) { f.Forward = vip.ForwardDirect },
		func(f *vip.Frontend) { f.Backends = f.Backends[1:] },
		func(f *vip.Frontend) { f.Kind = vip.OnVIP },
	} {
		expect.False(t, target.Same(real(), real(c)), "a real server is the same after change %d", i)
	}
	// The clients of a node port are masqueraded with both modes.
	a := changed(func(f *vip.Frontend) { f.Kind = vip.OnHost })
	b := changed(func(f *vip.Frontend) { f.Kind, f.Masquerade = vip.OnHost, vip.MasqueradeAlways })
	expect.True(t, target.Same(a, b), "auto and always differ for a node port")
}

// desired returns what the kernel must have for f. The service is one by mark unless mark is 0.
func desired(f *vip.Frontend, mark uint32) kernel.State {
	return kernel.State{Service: desiredService(f, mark), Dests: appendDests(make([]kernel.Dest, 0, len(f.Backends)), f)}
}
