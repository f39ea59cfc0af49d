package compile

import (
	"fmt"
	"net/netip"
	"slices"
	"testing"

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

// One compile allocates its list of frontends and one list of backends per port
// and family, whatever the number of backends.
func TestServiceAllocations(t *testing.T) {
	for _, n := range []int{1, 10, 1000} {
		in := big(n)
		if got := testing.AllocsPerRun(50, func() { Service(in) }); got > 2 {
			t.Errorf("%d backends: %v allocations, at most 2", n, got)
		}
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

// Backends that serve some of the ports cost one list per port, and nothing for the selection.
func TestServiceAllocationsByPort(t *testing.T) {
	in := big(1000)
	in.Service.Ports = append(in.Service.Ports, vip.Port{Name: "admin", Protocol: vip.TCP, Port: 90, TargetPort: 90})
	for i := range in.Service.Backends {
		in.Service.Backends[i].Ports, in.Service.Backends[i].ForZones = "admin http", "za zb"
	}
	in.Node.Zone = "zb"
	if got := testing.AllocsPerRun(50, func() { Service(in) }); got > 3 {
		t.Errorf("%v allocations, at most 3", got)
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

func BenchmarkService(b *testing.B) {
	for _, n := range []int{3, 100, 1000} {
		b.Run(fmt.Sprintf("backends=%d", n), func(b *testing.B) {
			in := big(n)
			b.ReportAllocs()
			for b.Loop() {
				Service(in)
			}
		})
	}
}

func BenchmarkSameFrontend(b *testing.B) {
	x, _ := Service(big(100))
	y, _ := Service(big(100))
	b.ReportAllocs()
	for b.Loop() {
		if !SameFrontend(x[0], y[0]) {
			b.Fatal("differ")
		}
	}
}
