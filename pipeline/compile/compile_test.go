package compile

import (
	"fmt"
	"net/netip"
	"slices"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"

	"github.com/ironvip/ironvip/test/expect"
	"github.com/ironvip/ironvip/test/must"
	"github.com/ironvip/ironvip/vip"
)

var addr = netip.MustParseAddr

func service(change ...func(*vip.Service)) vip.Service {
	s := vip.Service{
		Key:    vip.ServiceKey{Namespace: "default", Name: "web"},
		Origin: "services.d/web.toml:1",
		Ports:  []vip.Port{{Name: "http", Protocol: vip.TCP, Port: 80, TargetPort: 8080}},
		Backends: []vip.Backend{
			{Address: addr("10.1.0.11"), Weight: 1, State: vip.Ready},
			{Address: addr("10.1.0.12"), Weight: 50, State: vip.Ready},
		},
		Settings: vip.Settings{
			Scheduler:       vip.WeightedRoundRobin,
			Forward:         vip.ForwardNAT,
			InternalTraffic: vip.Cluster,
			ExternalTraffic: vip.Cluster,
			Masquerade:      vip.MasqueradeAuto,
			DrainTimeout:    time.Minute,
		},
	}
	for _, c := range change {
		c(&s)
	}
	return s
}

func input(s vip.Service, vips ...string) Input {
	in := Input{View: View{Service: &s}, Allocation: &vip.Allocation{Asked: &s}}
	for _, v := range vips {
		in.Allocation.VIPs = append(in.Allocation.VIPs, addr(v))
	}
	return in
}

// show formats frontends one per line: "key kind port endpoint*weight ...".
func show(frontends []vip.Frontend) []string {
	var out []string
	for _, f := range frontends {
		line := fmt.Sprintf("%s %s %s", f.Key, f.Kind, f.Port)
		for _, e := range f.Backends {
			line += fmt.Sprintf(" %s*%d", e.Addr, e.Weight)
		}
		out = append(out, line)
	}
	return out
}

func TestService(t *testing.T) {
	backends := func(b ...vip.Backend) func(*vip.Service) {
		return func(s *vip.Service) { s.Backends = b }
	}
	ports := func(p ...vip.Port) func(*vip.Service) {
		return func(s *vip.Service) { s.Ports = p }
	}
	states := func(m map[string]vip.State) func(vip.BackendKey) (vip.State, bool) {
		return func(k vip.BackendKey) (vip.State, bool) {
			id := vip.Backend{Address: k.Address, Port: k.Port}.ID()
			s, ok := m[id]
			return s, ok
		}
	}
	for _, tc := range []struct {
		name  string
		in    Input
		nodes []string
		np    map[vip.PortKey]uint16
		state map[string]vip.State
		want  []string
	}{{
		name: "one vip, one port",
		in:   input(service(), "192.0.2.10"),
		want: []string{"192.0.2.10:80/tcp vip http 10.1.0.11:8080*1 10.1.0.12:8080*50"},
	}, {
		name: "nothing granted yet",
		in:   input(service()),
	}, {
		name: "no backends: the frontend is there, to refuse clients",
		in:   input(service(backends()), "192.0.2.10"),
		want: []string{"192.0.2.10:80/tcp vip http"},
	}, {
		name: "each family has its own backends",
		in: input(service(backends(
			vip.Backend{Address: addr("10.1.0.11"), Weight: 1},
			vip.Backend{Address: addr("2001:db8:1::11"), Weight: 2},
		)), "192.0.2.10", "2001:db8::10"),
		want: []string{
			"192.0.2.10:80/tcp vip http 10.1.0.11:8080*1",
			"[2001:db8::10]:80/tcp vip http [2001:db8:1::11]:8080*2",
		},
	}, {
		name: "a backend's own port counts for every service port",
		in: input(service(
			ports(vip.Port{Name: "a", Protocol: vip.TCP, Port: 80, TargetPort: 8080}, vip.Port{Name: "b", Protocol: vip.UDP, Port: 53, TargetPort: 5353}),
			backends(vip.Backend{Address: addr("10.1.0.11"), Weight: 1}, vip.Backend{Address: addr("10.1.0.12"), Port: 9000, Weight: 1}),
		), "192.0.2.10"),
		want: []string{
			"192.0.2.10:53/udp vip b 10.1.0.11:5353*1 10.1.0.12:9000*1",
			"192.0.2.10:80/tcp vip a 10.1.0.11:8080*1 10.1.0.12:9000*1",
		},
	}, {
		name: "two backends that come to the same are one, the one with a port of its own",
		in: input(service(backends(
			vip.Backend{Address: addr("10.1.0.11"), Weight: 1},
			vip.Backend{Address: addr("10.1.0.11"), Port: 80, Weight: 2},
			vip.Backend{Address: addr("10.1.0.11"), Port: 8080, Weight: 3},
			vip.Backend{Address: addr("10.1.0.11"), Port: 9090, Weight: 4},
		)), "192.0.2.10"),
		want: []string{"192.0.2.10:80/tcp vip http 10.1.0.11:80*2 10.1.0.11:8080*3 10.1.0.11:9090*4"},
	}, {
		name: "the operator's word overrides the source's, per backend as listed",
		in: input(service(backends(
			vip.Backend{Address: addr("10.1.0.11"), Weight: 5, State: vip.Drain},
			vip.Backend{Address: addr("10.1.0.12"), Weight: 5},
			vip.Backend{Address: addr("10.1.0.13"), Port: 80, Weight: 5},
		)), "192.0.2.10"),
		state: map[string]vip.State{"10.1.0.11": vip.Ready, "10.1.0.12": vip.Maint, "10.1.0.13": vip.Drain},
		want:  []string{"192.0.2.10:80/tcp vip http 10.1.0.11:8080*5 10.1.0.12:8080*0 10.1.0.13:80*5"},
	}, {
		name: "node ports on every chosen address, where granted and wanted",
		in: input(service(ports(
			vip.Port{Name: "a", Protocol: vip.TCP, Port: 80, TargetPort: 8080, NodePort: vip.NodePort{Auto: true}},
			vip.Port{Name: "b", Protocol: vip.TCP, Port: 81, TargetPort: 8080, NodePort: vip.NodePort{Number: 30081}},
			vip.Port{Name: "c", Protocol: vip.TCP, Port: 82, TargetPort: 8080},
		)), "192.0.2.10"),
		nodes: []string{"2001:db8:2::1", "10.9.0.1", "10.9.0.1"},
		np:    map[vip.PortKey]uint16{{Port: 80, Protocol: vip.TCP}: 30080, {Port: 82, Protocol: vip.TCP}: 30082},
		want: []string{
			"10.9.0.1:30080/tcp node-port a 10.1.0.11:8080*1 10.1.0.12:8080*50",
			"192.0.2.10:80/tcp vip a 10.1.0.11:8080*1 10.1.0.12:8080*50",
			"192.0.2.10:81/tcp vip b 10.1.0.11:8080*1 10.1.0.12:8080*50",
			"192.0.2.10:82/tcp vip c 10.1.0.11:8080*1 10.1.0.12:8080*50",
		},
	}, {
		name:  "node ports are for the families of the VIPs",
		in:    input(service(ports(vip.Port{Name: "a", Protocol: vip.TCP, Port: 80, TargetPort: 8080, NodePort: vip.NodePort{Auto: true}})), "192.0.2.10", "2001:db8::10"),
		nodes: []string{"2001:db8:2::1", "10.9.0.1"},
		np:    map[vip.PortKey]uint16{{Port: 80, Protocol: vip.TCP}: 30080},
		want: []string{
			"10.9.0.1:30080/tcp node-port a 10.1.0.11:8080*1 10.1.0.12:8080*50",
			"192.0.2.10:80/tcp vip a 10.1.0.11:8080*1 10.1.0.12:8080*50",
			"[2001:db8::10]:80/tcp vip a",
			"[2001:db8:2::1]:30080/tcp node-port a",
		},
	}} {
		t.Run(tc.name, func(t *testing.T) {
			for _, n := range tc.nodes {
				tc.in.Node.NodePortAddrs = append(tc.in.Node.NodePortAddrs, addr(n))
			}
			tc.in.Allocation.NodePorts = tc.np
			if tc.state != nil {
				tc.in.Override = states(tc.state)
			}
			before := slices.Clone(tc.in.Service.Backends)
			got, problems := Service(tc.in)
			must.Empty(t, problems, "problems")
			expect.SameList(t, before, tc.in.Service.Backends, "the service's backends became")
			expect.NoDiff(t, cmp.Diff(tc.want, show(got), cmpopts.EquateEmpty()))
		})
	}
}

func TestServiceHandsOnEveryPolicy(t *testing.T) {
	s := service(func(s *vip.Service) {
		s.Scheduler, s.SchedulerFallback, s.SchedulerPort = vip.MaglevHash, true, true
		s.Affinity, s.Masquerade, s.DrainTimeout = time.Hour, vip.MasqueradeNever, 7*time.Second
		s.Relay = &vip.ProxySettings{IdleTimeout: 5 * time.Minute}
		s.Backends = s.Backends[:1]
	})
	got, _ := Service(input(s, "192.0.2.10"))
	want := vip.Frontend{
		Key:       vip.FrontendKey{Addr: addr("192.0.2.10"), Port: 80, Protocol: vip.TCP},
		Kind:      vip.OnVIP,
		Service:   s.Key,
		Port:      "http",
		Scheduler: vip.MaglevHash, SchedulerFallback: true, SchedulerPort: true,
		Forward: vip.ForwardNAT, Affinity: time.Hour, Masquerade: vip.MasqueradeNever, DrainTimeout: 7 * time.Second,
		Relay:    s.Relay,
		Backends: []vip.Endpoint{{Addr: netip.MustParseAddrPort("10.1.0.11:8080"), Weight: 1}},
	}
	if len(got) != 1 || !SameFrontend(got[0], want) {
		t.Errorf("got %+v, want %+v", got, want)
	}
}

// A setting that some dataplane may support is not rejected here.
func TestServiceRefusesWhatNobodyCanDo(t *testing.T) {
	s := service(func(s *vip.Service) { s.Ports = append(s.Ports, vip.Port{Port: 1, Protocol: 33}) })
	got, problems := Service(input(s, "192.0.2.10"))
	if len(got) != 0 {
		t.Errorf("still exposed: %v", show(got))
	}
	must.Len(t, problems, 1, "problems")
	p := problems[0]
	if p.Code != vip.CodeUnsupported || p.Field != "ports[1].protocol" || p.Service != "web" || p.Place != s.Origin {
		t.Errorf("problem %+v", p)
	}
	expect.Contains(t, p.Message, "does not support", "message")
	for name, change := range map[string]func(*vip.Service){
		"direct routing": func(s *vip.Service) { s.Forward = vip.ForwardDirect },
		"tunnels":        func(s *vip.Service) { s.Forward = vip.ForwardTunnel },
		"internal":       func(s *vip.Service) { s.InternalTraffic = vip.Local },
		"external":       func(s *vip.Service) { s.ExternalTraffic = vip.Local },
		"sctp":           func(s *vip.Service) { s.Ports[0].Protocol = vip.SCTP },
		"ranges":         func(s *vip.Service) { s.Ports[0].LastPort = 90 },
		"one-packet":     func(s *vip.Service) { s.Ports[0].Protocol, s.OnePacket = vip.UDP, true },
	} {
		if got, problems := Service(input(service(change), "192.0.2.10")); len(got) == 0 || len(problems) > 0 {
			t.Errorf("%s: %v, %v", name, show(got), problems)
		}
	}
}
