package compile

import (
	"net/netip"
	"slices"
	"testing"

	"github.com/ironvip/ironvip/test/expect"
	"github.com/ironvip/ironvip/vip"
)

func big(backends int) Input {
	s := service()
	s.Backends = nil
	for i := range backends {
		a := netip.AddrFrom4([4]byte{10, 1, byte(i >> 8), byte(i)})
		s.Backends = append(s.Backends, vip.Backend{Address: a, Weight: 1, State: vip.Ready})
	}
	return input(s, "192.0.2.10")
}

// One compile allocates its list of frontends and one list of backends per port and family, whatever the number of
// backends and with a health that all of them have. Backends that serve some of the ports cost one list per port, and
// nothing for the selection.
func TestServiceAllocations(t *testing.T) {
	row := vip.BackendHealth{Checks: []vip.CheckResult{{Type: vip.CheckTCP, Health: vip.Healthy}}}
	healthy, ports := big(1000), big(1000)
	healthy.Health = func(vip.BackendKey) *vip.BackendHealth { return &row }
	ports.Service.Ports = append(ports.Service.Ports, vip.Port{Name: "admin", Protocol: vip.TCP, Port: 90, TargetPort: 90})
	for i := range ports.Service.Backends {
		ports.Service.Backends[i].Ports, ports.Service.Backends[i].ForZones = "admin http", "za zb"
	}
	ports.Node.Zone = "zb"
	for name, tc := range map[string]struct {
		in   Input
		most float64
	}{"1 backend": {big(1), 2}, "1,000 backends": {big(1000), 2}, "with health": {healthy, 2}, "of two ports": {ports, 3}} {
		got := testing.AllocsPerRun(50, func() { Service(tc.in) })
		expect.AtMost(t, got, tc.most, "%s: %v allocations, at most", name, got)
	}
}

// A caller that compiles many services allocates the frontends once, and gets the same result.
func TestRoomIsUsedAgain(t *testing.T) {
	in := big(10)
	in.Service.Ports = append(in.Service.Ports, vip.Port{Name: "admin", Protocol: vip.TCP, Port: 70, TargetPort: 70})
	want, _ := Service(in)
	in.Room = make([]vip.Frontend, 1, 2)
	got, _ := Service(in)
	if !slices.EqualFunc(got, want, SameFrontend) || &got[0] != &in.Room[0] {
		t.Errorf("%v, want %v in the room given", show(got), show(want))
	}
	more := func() float64 { return testing.AllocsPerRun(50, func() { Service(in) }) }
	with := more()
	if in.Room = nil; with >= more() {
		t.Errorf("%v allocations with room, %v without", with, more())
	}
}

// A node port on another address shares the backends of the first.
func TestFrontendsOfOnePortShareBackends(t *testing.T) {
	in := big(10)
	in.Service.Ports[0].NodePort.Auto = true
	in.Allocation.NodePorts = map[vip.PortKey]uint16{{Port: 80, Protocol: vip.TCP}: 30080}
	in.Node.NodePortAddrs = []netip.Addr{addr("10.9.0.1"), addr("10.9.0.2")}
	got, _ := Service(in)
	if len(got) != 3 || &got[0].Backends[0] != &got[1].Backends[0] || &got[1].Backends[0] != &got[2].Backends[0] {
		t.Errorf("not shared: %v", show(got))
	}
}
