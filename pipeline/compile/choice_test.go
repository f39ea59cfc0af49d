package compile

import (
	"cmp"
	"fmt"
	"slices"
	"testing"

	gocmp "github.com/google/go-cmp/cmp"

	"github.com/ironvip/ironvip/test/expect"
	"github.com/ironvip/ironvip/test/must"
	"github.com/ironvip/ironvip/vip"
)

// here returns the node of these tests: n1 in zone za, at 10.9.0.1.
func here() Node {
	return Node{Name: "n1", Zone: "za", Addrs: sorted("10.9.0.1", "2001:db8:9::1")}
}

// be is a backend with weight 1, "10.1.0.11" or "10.1.0.11 drain n1 za": its
// address, state, node and zone, "-" for none.
func be(address string, words ...string) vip.Backend {
	b := vip.Backend{Address: addr(address), Weight: 1, State: vip.Ready}
	for i, w := range words {
		if w == "-" {
			continue
		}
		switch i {
		case 0:
			if err := b.State.UnmarshalText([]byte(w)); err != nil {
				panic(err)
			}
		case 1:
			b.Node = w
		case 2:
			b.Zone = w
		}
	}
	return b
}

// Each rule for the selection of backends has its rows here. want lists each frontend's backends by
// the last byte of their address, with their weight.
func TestChoice(t *testing.T) {
	for _, tc := range []struct {
		name         string
		external     vip.TrafficPolicy
		internal     vip.TrafficPolicy
		distribution vip.TrafficDistribution
		node         func(*Node)
		override     vip.State // of 10.1.0.1
		backends     []vip.Backend
		want         string // external
		wantInternal string // "": no separate frontend
	}{
		// Ready backends.
		{name: "ready ones", backends: []vip.Backend{be("10.1.0.1"), be("10.1.0.2")}, want: "1*1 2*1"},
		{name: "a backend without a state is ready", backends: []vip.Backend{{Address: addr("10.1.0.1"), Weight: 3}}, want: "1*3"},
		{name: "no backend", want: ""},

		// Without them, those that serve while they terminate.
		{name: "terminating beside ready takes nothing new", backends: []vip.Backend{be("10.1.0.1", "terminating"), be("10.1.0.2")}, want: "1*0 2*1"},
		{name: "ready with weight 0 is not ready", backends: []vip.Backend{be("10.1.0.1", "terminating"), weightless("10.1.0.2")}, want: "1*1 2*0"},
		{name: "terminating with weight 0 takes nothing", backends: []vip.Backend{{Address: addr("10.1.0.1"), State: vip.Terminating}}, want: "1*0"},
		{name: "an operator's word makes a terminating one ready", override: vip.Ready,
			backends: []vip.Backend{be("10.1.0.1", "terminating"), be("10.1.0.2", "terminating")}, want: "1*1 2*0"},
		{name: "an operator's word takes a terminating one out", override: vip.Maint,
			backends: []vip.Backend{be("10.1.0.1", "terminating"), be("10.1.0.2", "terminating")}, want: "1*0 2*1"},

		// Maint and weight 0 get no new connections.
		{name: "drain, maint, weight 0", backends: []vip.Backend{be("10.1.0.1", "drain"), be("10.1.0.2", "maint"), weightless("10.1.0.3")}, want: "1*0 2*0 3*0"},
		{name: "drain and maint never stand in for ready ones", backends: []vip.Backend{be("10.1.0.1", "drain"), be("10.1.0.2", "terminating")}, want: "1*0 2*1"},

		// Local considers only backends on this node.
		{name: "local by node", external: vip.Local, internal: vip.Local,
			backends: []vip.Backend{be("10.1.0.1", "ready", "n1"), be("10.1.0.2", "ready", "n2")}, want: "1*1"},
		{name: "local by the host's address", external: vip.Local, internal: vip.Local,
			backends: []vip.Backend{be("10.1.0.1"), be("10.9.0.1")}, want: "1*1"},
		{name: "a node named by the source outweighs the address", external: vip.Local, internal: vip.Local,
			backends: []vip.Backend{be("10.9.0.1", "ready", "n2")}, want: ""},
		{name: "loopback is this node", external: vip.Local, internal: vip.Local,
			backends: []vip.Backend{be("127.0.0.7"), be("127.0.0.8", "ready", "n2")}, want: "7*1"},
		{name: "a node without a name has no backend by name", external: vip.Local, internal: vip.Local, node: func(n *Node) { n.Name = "" },
			backends: []vip.Backend{be("10.1.0.1", "ready", "n1"), be("10.1.0.2")}, want: ""},
		{name: "local with a draining one only refuses", external: vip.Local, internal: vip.Local,
			backends: []vip.Backend{be("10.1.0.1", "drain", "n1"), be("10.1.0.2", "ready", "n2")}, want: "1*0"},

		// The same rule: ready, else terminating.
		{name: "local terminating beside local ready", external: vip.Local, internal: vip.Local,
			backends: []vip.Backend{be("10.1.0.1", "terminating", "n1"), be("10.1.0.2", "ready", "n1")}, want: "1*0 2*1"},
		{name: "local terminating though others are ready elsewhere", external: vip.Local, internal: vip.Local,
			backends: []vip.Backend{be("10.1.0.1", "terminating", "n1"), be("10.1.0.2", "ready", "n2")}, want: "1*1"},

		// Zones are used only if every ready backend has one and one matches here.
		{name: "same zone", distribution: vip.PreferSameZone,
			backends: []vip.Backend{be("10.1.0.1", "ready", "-", "za"), be("10.1.0.2", "ready", "-", "zb")}, want: "1*1"},
		{name: "same zone, one ready backend without a zone", distribution: vip.PreferSameZone,
			backends: []vip.Backend{be("10.1.0.1", "ready", "-", "za"), be("10.1.0.2")}, want: "1*1 2*1"},
		{name: "same zone, none matches", distribution: vip.PreferSameZone,
			backends: []vip.Backend{be("10.1.0.1", "ready", "-", "zb"), be("10.1.0.2", "ready", "-", "zc")}, want: "1*1 2*1"},
		{name: "same zone, the node has none", distribution: vip.PreferSameZone, node: func(n *Node) { n.Zone = "" },
			backends: []vip.Backend{be("10.1.0.1", "ready", "-", "za"), be("10.1.0.2", "ready", "-", "zb")}, want: "1*1 2*1"},
		{name: "same zone, nobody has one", distribution: vip.PreferSameZone, node: func(n *Node) { n.Zone = "" },
			backends: []vip.Backend{be("10.1.0.1"), be("10.1.0.2")}, want: "1*1 2*1"},
		{name: "same zone, only a draining one matches", distribution: vip.PreferSameZone,
			backends: []vip.Backend{be("10.1.0.1", "drain", "-", "za"), be("10.1.0.2", "ready", "-", "zb")}, want: "1*0 2*1"},
		{name: "same zone, a weightless one matches", distribution: vip.PreferSameZone,
			backends: []vip.Backend{{Address: addr("10.1.0.1"), Zone: "za"}, be("10.1.0.2", "ready", "-", "zb")}, want: "1*0 2*1"},
		{name: "same zone, one that isn't ready needs no zone", distribution: vip.PreferSameZone,
			backends: []vip.Backend{be("10.1.0.1", "ready", "-", "za"), be("10.1.0.2", "drain"), be("10.1.0.3", "terminating", "-", "za")}, want: "1*1 3*0"},
		{name: "same zone, only terminating ones: all of them", distribution: vip.PreferSameZone,
			backends: []vip.Backend{be("10.1.0.1", "terminating", "-", "za"), be("10.1.0.2", "terminating", "-", "zb")}, want: "1*1 2*1"},
		{name: "an operator's drain of the last one here reaches further", distribution: vip.PreferSameZone, override: vip.Drain,
			backends: []vip.Backend{be("10.1.0.1", "ready", "-", "za"), be("10.1.0.2", "ready", "-", "zb")}, want: "1*0 2*1"},

		// The same for nodes, else zones, else all.
		{name: "same node", distribution: vip.PreferSameNode,
			backends: []vip.Backend{be("10.1.0.1", "ready", "n1", "za"), be("10.1.0.2", "ready", "n2", "za")}, want: "1*1"},
		{name: "same node by the host's address", distribution: vip.PreferSameNode,
			backends: []vip.Backend{be("10.1.0.2"), be("10.9.0.1")}, want: "1*1"},
		{name: "same node falls to the zone", distribution: vip.PreferSameNode,
			backends: []vip.Backend{be("10.1.0.1", "ready", "n2", "za"), be("10.1.0.2", "ready", "n3", "zb")}, want: "1*1"},
		{name: "same node with none ready there falls to the zone", distribution: vip.PreferSameNode,
			backends: []vip.Backend{be("10.1.0.1", "terminating", "n1", "za"), be("10.1.0.2", "ready", "n2", "za"), be("10.1.0.3", "ready", "n3", "zb")}, want: "1*0 2*1"},
		{name: "same node falls to all", distribution: vip.PreferSameNode,
			backends: []vip.Backend{be("10.1.0.1", "ready", "n2", "zb"), be("10.1.0.2", "ready", "n3")}, want: "1*1 2*1"},

		// If ready backends have hints, the hints count and the preference doesn't.
		{name: "hints against zones", distribution: vip.PreferSameZone,
			backends: []vip.Backend{hinted("10.1.0.1", "zb", "za"), hinted("10.1.0.2", "za", "zb")}, want: "1*1"},
		{name: "hints against the node", distribution: vip.PreferSameNode,
			backends: []vip.Backend{be("10.1.0.1", "ready", "n1", "za"), hinted("10.1.0.2", "za", "za"), hinted("10.1.0.3", "za", "zb")}, want: "1*1 2*1 3*1"},
		{name: "hints that leave nothing reach all, whatever is preferred", distribution: vip.PreferSameZone,
			backends: []vip.Backend{hinted("10.1.0.1", "za", "zb"), hinted("10.1.0.2", "zb", "zc")}, want: "1*1 2*1"},
		{name: "hints of a draining one don't count: the zone does", distribution: vip.PreferSameZone,
			backends: []vip.Backend{be("10.1.0.1", "ready", "-", "za"), be("10.1.0.2", "ready", "-", "zb"), hinted("10.1.0.3", "za", "zb", vip.Drain)}, want: "1*1 3*0"},
		{name: "an operator's drain of the last one hinted for here reaches further", override: vip.Drain,
			backends: []vip.Backend{hinted("10.1.0.1", "", "za"), hinted("10.1.0.2", "", "zb")}, want: "1*0 2*1"},
		{name: "a weightless one with a hint for here", backends: []vip.Backend{
			{Address: addr("10.1.0.1"), ForZones: "za"}, hinted("10.1.0.2", "", "zb"), hinted("10.1.0.3", "", "zb")}, want: "1*0 2*1 3*1"},
		{name: "a terminating one hinted for here has its open connections", backends: []vip.Backend{
			hinted("10.1.0.1", "", "za"), hinted("10.1.0.2", "", "za", vip.Terminating), hinted("10.1.0.3", "", "zb", vip.Terminating)}, want: "1*1 2*0"},
		{name: "the other family's hints don't count", distribution: vip.PreferSameZone,
			backends: []vip.Backend{be("10.1.0.1", "ready", "-", "za"), be("10.1.0.2", "ready", "-", "zb"), hinted("2001:db8::1", "za", "zb")}, want: "1*1"},

		// A preference applies only to the cluster policy.
		{name: "local knows no zones", external: vip.Local, internal: vip.Local, distribution: vip.PreferSameZone,
			backends: []vip.Backend{be("10.1.0.1", "ready", "n1", "zb"), be("10.1.0.2", "ready", "n2", "za")}, want: "1*1"},
		{name: "local outside, zone inside", external: vip.Local, distribution: vip.PreferSameZone,
			backends: []vip.Backend{be("10.1.0.1", "ready", "n1", "zb"), be("10.1.0.2", "ready", "n2", "za"), be("10.1.0.3", "ready", "n3", "zb")}, want: "1*1", wantInternal: "2*1"},

		// Each family has its own choice.
		{name: "the other family has one in the zone", distribution: vip.PreferSameZone,
			backends: []vip.Backend{be("10.1.0.1", "ready", "-", "zb"), be("2001:db8::1", "ready", "-", "za")}, want: "1*1"},
		{name: "the other family has one without a zone", distribution: vip.PreferSameZone,
			backends: []vip.Backend{be("10.1.0.1", "ready", "-", "za"), be("10.1.0.2", "ready", "-", "zb"), be("2001:db8::1")}, want: "1*1"},
		{name: "the other family's backends don't count", distribution: vip.PreferSameZone,
			backends: []vip.Backend{be("10.1.0.1", "ready", "-", "zb"), be("2001:db8::1", "ready", "-", "za"), be("2001:db8::2")}, want: "1*1"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			s := service(func(s *vip.Service) {
				s.ExternalTraffic, s.InternalTraffic, s.Distribution = tc.external, tc.internal, tc.distribution
				s.Backends = slices.SortedFunc(slices.Values(tc.backends), compareBackends)
			})
			in := input(s, "192.0.2.10")
			in.Node = here()
			if tc.node != nil {
				tc.node(&in.Node)
			}
			if tc.override != 0 {
				in.Override = func(k vip.BackendKey) (vip.State, bool) { return tc.override, k.Address == addr("10.1.0.1") }
			}
			got, problems := Service(in)
			must.Empty(t, problems)
			want := []string{"everyone " + tc.want}
			if tc.wantInternal != "" {
				want = append(want, "internal "+tc.wantInternal)
			}
			var have []string
			for _, f := range got {
				have = append(have, fmt.Sprintf("%s %s", f.Key.Audience, short(f.Backends)))
			}
			if tc.want == "" {
				want[0] = "everyone none"
			}
			expect.NoDiff(t, gocmp.Diff(want, have))
		})
	}
}

// short formats "1*1 2*0": the last byte of each address, and the weight.
func short(backends []vip.Endpoint) string {
	out := ""
	for i, e := range backends {
		if i > 0 {
			out += " "
		}
		b := e.Addr.Addr().AsSlice()
		out += fmt.Sprintf("%d*%d", b[len(b)-1], e.Weight)
	}
	return cmp.Or(out, "none")
}

// hinted is a backend in a zone ("" for none) that is hinted for clients of another zone.
func hinted(address, zone, forZone string, state ...vip.State) vip.Backend {
	b := vip.Backend{Address: addr(address), Weight: 1, State: vip.Ready, Zone: zone, ForZones: vip.NamesOf(forZone)}
	if len(state) > 0 {
		b.State = state[0]
	}
	return b
}

func weightless(address string) vip.Backend {
	return vip.Backend{Address: addr(address), State: vip.Ready}
}

// Each port of a service has the backends that serve it, and selects only from these.
func TestBackendsOfSomePorts(t *testing.T) {
	on := func(b vip.Backend, number uint16, ports ...string) vip.Backend {
		b.Port, b.Ports = number, vip.NamesOf(ports...)
		return b
	}
	for _, tc := range []struct {
		name     string
		change   func(*vip.Service)
		backends []vip.Backend
		want     []string // of port http, and of port admin
	}{
		{name: "one for each port, one for both",
			backends: []vip.Backend{on(be("10.1.0.1"), 8080, "http"), on(be("10.1.0.2"), 9090, "admin"), be("10.1.0.3")},
			want:     []string{"10.1.0.1:8080*1 10.1.0.3:80*1", "10.1.0.2:9090*1 10.1.0.3:90*1"}},
		{name: "one address with a number for each port",
			backends: []vip.Backend{on(be("10.1.0.1"), 8080, "http"), on(be("10.1.0.1"), 9090, "admin")},
			want:     []string{"10.1.0.1:8080*1", "10.1.0.1:9090*1"}},
		{name: "named for both", backends: []vip.Backend{on(be("10.1.0.1"), 0, "http", "admin")}, want: []string{"10.1.0.1:80*1", "10.1.0.1:90*1"}},
		{name: "a port without any refuses", backends: []vip.Backend{on(be("10.1.0.1"), 0, "http")}, want: []string{"10.1.0.1:80*1", ""}},
		{name: "a terminating one serves where the port has no ready one",
			backends: []vip.Backend{on(be("10.1.0.1"), 0, "http"), be("10.1.0.2", "terminating")}, want: []string{"10.1.0.1:80*1 10.1.0.2:80*0", "10.1.0.2:90*1"}},
		{name: "zones are those of the port", change: func(s *vip.Service) { s.Distribution = vip.PreferSameZone },
			backends: []vip.Backend{on(be("10.1.0.1", "ready", "-", "za"), 0, "http"), be("10.1.0.2", "ready", "-", "zb")}, want: []string{"10.1.0.1:80*1", "10.1.0.2:90*1"}},
		{name: "hints are those of the port",
			backends: []vip.Backend{on(hinted("10.1.0.1", "", "za"), 0, "http"), hinted("10.1.0.2", "", "zb"), on(be("10.1.0.3"), 0, "admin")},
			want:     []string{"10.1.0.1:80*1", "10.1.0.2:90*1 10.1.0.3:90*1"}},
		{name: "local ones of the port", change: func(s *vip.Service) { s.ExternalTraffic, s.InternalTraffic = vip.Local, vip.Local },
			backends: []vip.Backend{on(be("10.1.0.1", "ready", "n1"), 0, "http"), be("10.1.0.2", "terminating", "n1"), be("10.1.0.3", "ready", "n2")},
			want:     []string{"10.1.0.1:80*1 10.1.0.2:80*0", "10.1.0.2:90*1"}},
		{name: "a target port and the same stated for another port",
			backends: []vip.Backend{on(be("10.1.0.1"), 0, "http"), on(be("10.1.0.1"), 80, "admin")}, want: []string{"10.1.0.1:80*1", "10.1.0.1:80*1"}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			s := service(func(s *vip.Service) {
				s.Ports = []vip.Port{{Name: "http", Protocol: vip.TCP, Port: 80, TargetPort: 80}, {Name: "admin", Protocol: vip.TCP, Port: 90, TargetPort: 90}}
				s.Backends = slices.SortedFunc(slices.Values(tc.backends), compareBackends)
			})
			if tc.change != nil {
				tc.change(&s)
			}
			in := input(s, "192.0.2.10")
			in.Node = here()
			got, _ := Service(in)
			want := []string{"192.0.2.10:80/tcp vip http", "192.0.2.10:90/tcp vip admin"}
			for i, backends := range tc.want {
				if backends != "" {
					want[i] += " " + backends
				}
			}
			expect.NoDiff(t, gocmp.Diff(want, show(got)))
		})
	}
}

func TestHinted(t *testing.T) {
	s := service(func(s *vip.Service) {
		s.Backends = []vip.Backend{be("10.1.0.1"), hinted("10.1.0.2", "", "za"), {Address: addr("10.1.0.3"), ForNodes: "n1"}, be("2001:db8::1")}
		s.Backends[1].Ports = vip.NamesOf("http")
	})
	drained := func(vip.BackendKey) (vip.State, bool) { return vip.Drain, true }
	for _, tc := range []struct {
		family   vip.Family
		port     string
		override func(vip.BackendKey) (vip.State, bool)
		want     bool
	}{{vip.IPv4, "http", nil, true}, {vip.IPv4, "admin", nil, false}, {vip.IPv6, "http", nil, false}, {vip.IPv4, "http", drained, false}} {
		v := View{Service: &s, Override: tc.override}
		expect.Equal(t, v.Hinted(tc.family, tc.port), tc.want, "%s %s", tc.family, tc.port)
	}
}

func TestMasquerade(t *testing.T) {
	for _, tc := range []struct {
		asked              vip.Masquerade
		forward            vip.Forward
		external, internal vip.TrafficPolicy
		want, wantInternal vip.Masquerade
	}{
		{0, 0, 0, 0, vip.MasqueradeAuto, 0},
		{vip.MasqueradeAuto, vip.ForwardNAT, vip.Cluster, vip.Cluster, vip.MasqueradeAuto, 0},
		{vip.MasqueradeAuto, vip.ForwardNAT, vip.Local, vip.Local, vip.MasqueradeOwn, 0},
		{vip.MasqueradeAuto, vip.ForwardNAT, vip.Local, vip.Cluster, vip.MasqueradeOwn, vip.MasqueradeAuto},
		{vip.MasqueradeAuto, vip.ForwardNAT, vip.Cluster, vip.Local, vip.MasqueradeAuto, vip.MasqueradeOwn},
		{vip.MasqueradeAlways, vip.ForwardNAT, vip.Local, vip.Local, vip.MasqueradeAlways, 0},
		{vip.MasqueradeNever, vip.ForwardNAT, vip.Local, vip.Cluster, vip.MasqueradeNever, vip.MasqueradeNever},
		{vip.MasqueradeAuto, vip.ForwardDirect, vip.Cluster, vip.Cluster, vip.MasqueradeNever, 0},
		{vip.MasqueradeAuto, vip.ForwardTunnel, vip.Local, vip.Cluster, vip.MasqueradeNever, vip.MasqueradeNever},
	} {
		t.Run(fmt.Sprintf("%+v", tc), func(t *testing.T) {
			got, _ := Service(input(service(func(s *vip.Service) {
				s.Masquerade, s.Forward, s.ExternalTraffic, s.InternalTraffic = tc.asked, tc.forward, tc.external, tc.internal
			}), "192.0.2.10"))
			if len(got) == 0 || got[0].Masquerade != tc.want {
				t.Fatalf("got %v, want %s", got, tc.want)
			}
			if tc.wantInternal == 0 && len(got) != 1 || tc.wantInternal != 0 && (len(got) != 2 || got[1].Masquerade != tc.wantInternal) {
				t.Errorf("got %v, want %s for internal clients", got, tc.wantInternal)
			}
		})
	}
}

func TestLocalReady(t *testing.T) {
	in := input(service(func(s *vip.Service) {
		s.ExternalTraffic = vip.Local
		s.Backends = []vip.Backend{
			be("10.1.0.1", "ready", "n1"), be("10.1.0.2", "terminating", "n1"), be("10.1.0.3", "drain", "n1"),
			be("10.1.0.4", "ready", "n2"), be("10.9.0.1"), {Address: addr("10.1.0.5"), Node: "n1"}, be("2001:db8:9::1"),
		}
	}), "192.0.2.10")
	in.Node = here()
	expect.Equal(t, LocalReady(&in), 2, "ready here, want 10.1.0.1 and 10.9.0.1")
	in.Allocation.VIPs = append(in.Allocation.VIPs, addr("2001:db8:1::1"))
	expect.Equal(t, LocalReady(&in), 3, "ready here, want the one of the other family, too")
	in.Service.Backends = append(in.Service.Backends,
		vip.Backend{Address: addr("10.1.0.8"), Port: 1, Weight: 1, Node: "n1", Ports: "http"}, vip.Backend{Address: addr("10.1.0.8"), Port: 2, Weight: 1, Node: "n1", Ports: "admin"})
	expect.Equal(t, LocalReady(&in), 4, "ready here, want 10.1.0.8 once more, for both of its ports")
	in.Service.Backends = in.Service.Backends[1:4]
	expect.Equal(t, LocalReady(&in), 0, "ready here, want none: terminating doesn't count")
	// Load balancers over nodes send nothing to a node with unhealthy backends only.
	in.Service.Backends = []vip.Backend{be("10.1.0.1", "ready", "n1"), be("10.1.0.2", "ready", "n1"), be("10.1.0.3", "ready", "n2")}
	for want, health := range []map[byte]string{2: nil, 1: {1: "unhealthy"}, 0: {1: "unhealthy", 2: "unhealthy"}} {
		in.Health = observed(health)
		n := LocalReady(&in)
		expect.Equal(t, n, want, "%v: %d ready here", health, n)
	}
}

func TestDependsOnHost(t *testing.T) {
	named := func(s *vip.Service) { s.Backends = []vip.Backend{be("10.1.0.1", "ready", "n1")} }
	for _, tc := range []struct {
		name       string
		change     func(*vip.Service)
		realServer bool
		want       bool
	}{
		{"cluster", func(*vip.Service) {}, false, false},
		{"node port", func(s *vip.Service) { s.Ports[0].NodePort.Auto = true }, false, true},
		{"external local", func(s *vip.Service) { s.ExternalTraffic = vip.Local }, false, true},
		{"internal local", func(s *vip.Service) { s.InternalTraffic = vip.Local }, false, true},
		{"local, all nodes named", func(s *vip.Service) { s.InternalTraffic = vip.Local; named(s) }, false, false},
		{"same node", func(s *vip.Service) { s.Distribution = vip.PreferSameNode }, false, true},
		{"same node, all nodes named", func(s *vip.Service) { s.Distribution = vip.PreferSameNode; named(s) }, false, false},
		{"same zone", func(s *vip.Service) { s.Distribution = vip.PreferSameZone }, false, false},
		{"direct routing", func(s *vip.Service) { s.Forward = vip.ForwardDirect }, false, true},
		{"direct routing on a real server", func(s *vip.Service) { s.Forward = vip.ForwardDirect; named(s) }, true, true},
		{"tunnel on a real server", func(s *vip.Service) { s.Forward = vip.ForwardTunnel }, true, true},
		{"nat on a real server", func(s *vip.Service) { s.ExternalTraffic = vip.Local; s.Ports[0].NodePort.Auto = true }, true, false},
	} {
		s := service(tc.change)
		expect.Equal(t, DependsOnHost(&s, tc.realServer), tc.want, tc.name)
	}
}
