package compile

import (
	"net/netip"
	"slices"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"

	"github.com/ironvip/ironvip/test/expect"
	"github.com/ironvip/ironvip/test/must"
	"github.com/ironvip/ironvip/vip"
)

func sorted(addrs ...string) (out []netip.Addr) {
	for _, a := range addrs {
		out = append(out, addr(a))
	}
	slices.SortFunc(out, netip.Addr.Compare)
	return out
}

func TestRanges(t *testing.T) {
	for _, tc := range []struct {
		name     string
		port     vip.Port
		backends []vip.Backend
		want     string
	}{
		{"the port that the client asked for", vip.Port{Port: 10000, LastPort: 10099}, []vip.Backend{be("10.1.0.1"), be("10.1.0.2")},
			"192.0.2.10:10000-10099/tcp vip  10.1.0.1:0*1 10.1.0.2:0*1"},
		{"one target port for all", vip.Port{Port: 10000, LastPort: 10099, TargetPort: 7000}, []vip.Backend{be("10.1.0.1")},
			"192.0.2.10:10000-10099/tcp vip  10.1.0.1:7000*1"},
		{"a backend's own port", vip.Port{Port: 1, LastPort: 65535}, []vip.Backend{be("10.1.0.1"), {Address: addr("10.1.0.2"), Port: 9, Weight: 2}},
			"192.0.2.10:1-65535/tcp vip  10.1.0.1:0*1 10.1.0.2:9*2"},
		{"no node port", vip.Port{Port: 10000, LastPort: 10099, NodePort: vip.NodePort{Auto: true}}, nil,
			"192.0.2.10:10000-10099/tcp vip "},
	} {
		t.Run(tc.name, func(t *testing.T) {
			tc.port.Protocol = vip.TCP
			in := input(service(func(s *vip.Service) { s.Ports, s.Backends = []vip.Port{tc.port}, tc.backends }), "192.0.2.10")
			in.Node.NodePortAddrs = sorted("10.9.0.1")
			in.Allocation.NodePorts = map[vip.PortKey]uint16{tc.port.Key(): 30000}
			got, _ := Service(in)
			expect.NoDiff(t, cmp.Diff([]string{tc.want}, show(got)))
		})
	}
}

// A service with forward host has its whole VIPs, for this host if all of its checks have passed.
func TestWhole(t *testing.T) {
	host := service(func(s *vip.Service) {
		s.Forward, s.Check, s.Backends = vip.ForwardHost, &vip.HealthCheck{Type: vip.CheckTCP}, []vip.Backend{be("127.0.0.1")}
	})
	unchecked := host
	unchecked.Check = &vip.HealthCheck{Type: vip.CheckNone}
	for _, tc := range []struct {
		what    string
		service vip.Service
		health  string
		want    string
	}{
		{"no result yet", host, "", "0"},
		{"unknown", host, "unknown", "0"},
		{"one of two", host, "healthy unknown", "0"},
		{"failed", host, "unhealthy", "0"},
		{"passed", host, "healthy healthy", "1"},
		{"no check", unchecked, "", "1"},
	} {
		in := input(tc.service, "192.0.2.10", "2001:db8::10")
		in.Health = observed(map[byte]string{1: tc.health})
		got, problems := Service(in)
		expect.Len(t, problems, 0, "%s", tc.what)
		expect.NoDiff(t, cmp.Diff([]string{"192.0.2.10 vip  127.0.0.1:0*" + tc.want, "2001:db8::10 vip  127.0.0.1:0*" + tc.want}, show(got)), tc.what)
		expect.True(t, !got[0].Refuses() == (tc.want == "1") && got[0].Usable() == (tc.want == "1"), tc.what)
		// With a panic threshold, its owner keeps it, whatever its check says.
		expect.False(t, got[0].KeepsOwner, tc.what)
		keeping := tc.service
		keeping.PanicThreshold = 1
		in.Service = &keeping
		got, _ = Service(in)
		expect.True(t, got[0].KeepsOwner && got[0].Usable() == (tc.want == "1"), "%s, with a panic threshold", tc.what)
	}
}

// A VIP that the service still shares with another one is no whole VIP.
func TestSharedVIPIsNoWholeOne(t *testing.T) {
	in := input(service(func(s *vip.Service) { s.Forward, s.Backends = vip.ForwardHost, []vip.Backend{be("127.0.0.1")} }), "192.0.2.10")
	in.Allocation.Problems = []vip.Problem{{Code: vip.CodeAddressTaken}}
	got, _ := Service(in)
	expect.Len(t, got, 0, "frontends")
}

// Source ranges apply to VIPs, for every audience, and not to node ports.
func TestSourceRangesAreForVIPs(t *testing.T) {
	in := input(service(func(s *vip.Service) {
		s.SourceRanges = []netip.Prefix{netip.MustParsePrefix("198.51.100.0/24")}
		s.Ports[0].NodePort.Auto = true
		s.InternalTraffic = vip.Local
	}), "192.0.2.10")
	in.Node.NodePortAddrs = sorted("10.9.0.1")
	in.Allocation.NodePorts = map[vip.PortKey]uint16{{Port: 80, Protocol: vip.TCP}: 30080}
	got, _ := Service(in)
	if len(got) != 3 {
		t.Fatal(show(got))
	}
	for _, f := range got {
		has := len(f.SourceRanges) > 0
		expect.Equal(t, has, (f.Kind == vip.OnVIP), "%s has source ranges %v", f.Key, f.SourceRanges)
	}
}

// A backend that takes no new clients keeps its open TCP connections. UDP has no connections, so
// its clients leave the backend.
func TestIdleBackendsAreOutOfUDP(t *testing.T) {
	in := input(service(func(s *vip.Service) {
		auto := vip.NodePort{Auto: true}
		s.OnePacket = true // for UDP alone
		s.Ports = []vip.Port{
			{Port: 53, TargetPort: 53, Protocol: vip.UDP},
			{Port: 53, TargetPort: 53, Protocol: vip.TCP, NodePort: auto},
			{Port: 54, TargetPort: 53, Protocol: vip.UDP, NodePort: auto},
		}
		s.Backends = []vip.Backend{be("10.1.0.1", "drain"), be("10.1.0.2", "maint"), weightless("10.1.0.3"), be("10.1.0.4", "terminating"), be("10.9.0.1")}
	}), "192.0.2.10")
	in.Node = here()
	in.Node.NodePortAddrs = sorted("10.9.0.1")
	in.Allocation.NodePorts = map[vip.PortKey]uint16{{Protocol: vip.TCP, Port: 53}: 30053, {Protocol: vip.UDP, Port: 54}: 30054}
	got, _ := Service(in)
	idle := " 10.1.0.1:53*0 10.1.0.2:53*0 10.1.0.3:53*0 10.1.0.4:53*0 10.9.0.1:53*1"
	want := []string{
		"10.9.0.1:30053/tcp node-port " + idle,
		"10.9.0.1:30054/udp node-port  10.9.0.1:53*1",
		"192.0.2.10:53/tcp vip " + idle,
		"192.0.2.10:53/udp vip  10.9.0.1:53*1",
		"192.0.2.10:54/udp vip  10.9.0.1:53*1",
	}
	expect.NoDiff(t, cmp.Diff(want, show(got)))
	for _, f := range got {
		expect.Equal(t, f.OnePacket, f.Key.Protocol == vip.UDP, "%s: one packet", f.Key)
	}
	in.Service.Backends = in.Service.Backends[:4]
	got, _ = Service(in)
	expect.Equal(t, show(got)[3], "192.0.2.10:53/udp vip  10.1.0.4:53*1", "with none ready")
}

func TestRealServer(t *testing.T) {
	for _, tc := range []struct {
		name   string
		change func(*vip.Service)
		vips   []string
		health map[byte]string
		want   []string
	}{{
		name: "a service by nat is nobody's business here",
		change: func(s *vip.Service) {
			s.Forward, s.Backends = vip.ForwardNAT, []vip.Backend{be("10.9.0.1")}
		},
	}, {
		name:   "no backend here",
		change: func(s *vip.Service) { s.Backends = []vip.Backend{be("10.1.0.1")} },
	}, {
		name: "the endpoints of this host alone, on each port",
		change: func(s *vip.Service) {
			s.Ports = append(s.Ports, vip.Port{Name: "range", Port: 10000, LastPort: 10099, Protocol: vip.UDP})
			s.Backends = []vip.Backend{be("10.1.0.1"), be("10.9.0.1")}
		},
		want: []string{"192.0.2.10:80/tcp real-server http 10.9.0.1:80*1", "192.0.2.10:10000-10099/udp real-server range 10.9.0.1:0*1"},
	}, {
		name: "the ports that the backends here serve",
		change: func(s *vip.Service) {
			s.Ports = append(s.Ports, vip.Port{Name: "dns", Port: 53, TargetPort: 53, Protocol: vip.UDP})
			s.Backends = []vip.Backend{be("10.1.0.1"), be("10.9.0.1", "terminating")}
			s.Backends[0].Ports, s.Backends[1].Ports = "http", "dns"
		},
		want: []string{"192.0.2.10:53/udp real-server dns 10.9.0.1:53*1"},
	}, {
		name: "the address decides, whatever the node's name",
		change: func(s *vip.Service) {
			s.Backends = []vip.Backend{be("10.1.0.1", "ready", "n1"), be("10.9.0.1", "ready", "n2")}
		},
		want: []string{"192.0.2.10:80/tcp real-server http 10.9.0.1:80*1"},
	}, {
		name:   "a draining one has open connections",
		change: func(s *vip.Service) { s.Backends = []vip.Backend{be("10.1.0.1"), be("10.9.0.1", "drain")} },
		want:   []string{"192.0.2.10:80/tcp real-server http 10.9.0.1:80*0"},
	}, {
		name: "a terminating one serves where none is ready",
		change: func(s *vip.Service) {
			s.Backends = []vip.Backend{be("10.1.0.1", "drain"), be("10.9.0.1", "terminating")}
		},
		want: []string{"192.0.2.10:80/tcp real-server http 10.9.0.1:80*1"},
	}, {
		name:   "health is the directors' business",
		change: func(s *vip.Service) { s.Backends = []vip.Backend{be("10.9.0.1"), be("10.1.0.2")} },
		health: map[byte]string{1: "unhealthy"},
		want:   []string{"192.0.2.10:80/tcp real-server http 10.9.0.1:80*0"},
	}, {
		name:   "each family on its own",
		change: func(s *vip.Service) { s.Backends = []vip.Backend{be("10.1.0.1"), be("2001:db8:9::1")} },
		vips:   []string{"192.0.2.10", "2001:db8::10"},
		want:   []string{"[2001:db8::10]:80/tcp real-server http [2001:db8:9::1]:80*1"},
	}, {
		name: "policies and zones are the directors' business",
		change: func(s *vip.Service) {
			s.InternalTraffic, s.Distribution, s.SourceRanges = vip.Local, vip.PreferSameZone, []netip.Prefix{netip.MustParsePrefix("10.0.0.0/8")}
			s.Backends = []vip.Backend{be("10.1.0.1", "ready", "n2", "za"), be("10.9.0.1", "ready", "n2", "zb")}
		},
		want: []string{"192.0.2.10:80/tcp real-server http 10.9.0.1:80*1"},
	}} {
		t.Run(tc.name, func(t *testing.T) {
			if tc.vips == nil {
				tc.vips = []string{"192.0.2.10"}
			}
			s := service(func(s *vip.Service) { s.Forward, s.Ports[0].TargetPort = vip.ForwardDirect, 80 }, tc.change)
			in := input(s, tc.vips...)
			in.Node = here()
			in.Node.RealServer = true
			in.Node.NodePortAddrs = in.Node.Addrs
			in.Health = observed(tc.health)
			got, problems := Service(in)
			must.Empty(t, problems)
			expect.NoDiff(t, cmp.Diff(tc.want, show(got), cmpopts.EquateEmpty()))
			for _, f := range got {
				if f.Masquerade != vip.MasqueradeNever || f.SourceRanges != nil {
					t.Errorf("%s: masquerade %s, source ranges %v", f.Key, f.Masquerade, f.SourceRanges)
				}
			}
		})
	}
}
