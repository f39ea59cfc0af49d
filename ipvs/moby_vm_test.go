//go:build linux && vm

package ipvs

import (
	"net"
	"slices"
	"testing"

	moby "github.com/moby/ipvs"
	"golang.org/x/sys/unix"

	"github.com/ironvip/ironvip/ipvs/internal/kernel"
	"github.com/ironvip/ironvip/test/netlab"
	"github.com/ironvip/ironvip/vip"
)

// Services that moby/ipvs has written are read unchanged. Services that are as a frontend wants
// them need no change.
func TestReadsWhatMobyWrites(t *testing.T) {
	lab := netlab.New(t)
	p := newPlane(t, lab.Director)
	all := []*vip.Frontend{
		frontend("10.96.0.1:80", vip.TCP, addrs("10.77.1.2:8080", "10.77.2.2:8081")...),
		with(frontend("10.96.0.2:53", vip.UDP, addrs("10.77.1.2:53")...), func(f *vip.Frontend) { f.Affinity = 300e9 }),
		with(frontend("[fd96::1]:443", vip.TCP, addrs("[fd77:1::2]:443", "[fd77:2::2]:443")...), func(f *vip.Frontend) {
			f.Scheduler, f.Backends[1].Weight = vip.LeastConnection, 0
		}),
	}
	for _, f := range all {
		f.Masquerade = vip.MasqueradeNever // it needs nothing but what moby/ipvs supports
	}
	lab.Director.Do(func() {
		h, err := moby.New("")
		if err != nil {
			t.Fatal(err)
		}
		defer h.Close()
		for _, f := range all {
			want := desired(f, 0)
			s := &moby.Service{
				Address: net.IP(f.Key.Addr.AsSlice()), Protocol: uint16(f.Key.Protocol), Port: f.Key.Port, AddressFamily: kernel.FamilyOf(f.Key.Addr),
				SchedName: want.Scheduler, Flags: want.Flags, Timeout: want.Timeout, Netmask: want.Netmask,
			}
			if err := h.NewService(s); err != nil {
				t.Fatalf("%s: %v", f.Key, err)
			}
			for _, b := range f.Backends {
				d := &moby.Destination{
					Address: net.IP(b.Addr.Addr().AsSlice()), Port: b.Addr.Port(), Weight: int(b.Weight), AddressFamily: kernel.FamilyOf(b.Addr.Addr()),
					ConnectionFlags: moby.ConnectionFlagMasq, UpperThreshold: 0, LowerThreshold: 0,
				}
				if err := h.NewDestination(s, d); err != nil {
					t.Fatalf("%s: %v", b.Addr, err)
				}
			}
		}
		// This service belongs to no frontend.
		foreign := &moby.Service{FWMark: 77, AddressFamily: unix.AF_INET, SchedName: "sed", Netmask: kernel.Netmask4}
		if err := h.NewService(foreign); err != nil {
			t.Fatal(err)
		}
	})
	for _, f := range all {
		want := desired(f, 0)
		got, err := p.kernel.State(t.Context(), f.Key, 0)
		if err != nil || got == nil || got.Service != want.Service || !slices.Equal(got.Dests, want.Dests) {
			t.Errorf("%s is read as %+v, %v, want %+v", f.Key, got, err, want)
		}
		o, there := p.Read(t)[f.Key]
		if !there || !p.Same(&o.Value, f) {
			t.Errorf("%s is taken for %+v", f.Key, o.Value)
		}
	}
	services, err := p.kernel.Services(t.Context())
	if err != nil || len(services) != len(all)+1 {
		t.Errorf("%d services, %v", len(services), err)
	}
	if !slices.ContainsFunc(services, func(s kernel.Service) bool { return s.Mark == 77 && s.Scheduler == "sed" }) {
		t.Errorf("the service by mark is missing: %+v", services)
	}
}
