package ipvs

import (
	"testing"

	"golang.org/x/sys/unix"

	"github.com/ironvip/ironvip/ipvs/internal/kernel"
	"github.com/ironvip/ironvip/ipvs/internal/kernel/kerneltest"
	"github.com/ironvip/ironvip/plane/kernel/conntrack"
	"github.com/ironvip/ironvip/vip"
)

// The table outlives an end that fails half-way. A repetition by another process ends the rest.
func TestEndIsRepeated(t *testing.T) {
	k := newFakeKernel()
	stats := &counters{}
	h, err := k.open(t.Context(), stats)
	if err != nil {
		t.Fatal(err)
	}
	o := Options{Owns: owns}
	target, err := newTarget(o, h, stats)
	if err != nil {
		t.Fatal(err)
	}
	defer target.Close()
	f := listener("10.96.0.1:53", vip.UDP, "10.1.0.1:53")
	if err := target.Apply(t.Context(), []updateOf{{Key: f.Key, New: f}}); err != nil {
		t.Fatal(err)
	}
	k.traffic()
	foreign := conntrack.Flow{Frontend: vip.FrontendKey{Addr: f.Key.Addr, Port: 54, Protocol: vip.UDP}, Backend: addrPort("10.1.0.1:54")}
	k.alter(func() { k.entries[foreign] = struct{}{} })
	find := func() *Remains {
		r := &Remains{access: h, Table: DefaultTable, target: unopenedTarget(o, h, stats)}
		if err := r.findServices(t.Context()); err != nil {
			t.Fatal(err)
		}
		return r
	}
	k.fail(func(c call) *fault {
		if c.kind == "conntrack sweep" {
			return &fault{err: unix.ENOBUFS}
		}
		return nil
	})
	if err := find().End(t.Context()); err == nil || k.table == nil || len(k.services) > 0 {
		t.Errorf("the first end: %v, table %v", err, k.table)
	}
	k.fail(nil)
	if err := find().End(t.Context()); err != nil || k.table != nil { // of another process, which finds no services
		t.Errorf("the second end: %v, table %v, services %v", err, k.table, k.services)
	}
	if _, left := k.entries[foreign]; !left || len(k.entries) != 1 {
		t.Errorf("entries of connection tracking: %v", k.entries)
	}
}

// Connections of services that the kernel's table lacks count, too.
func TestOpenBesideOtherNamespaces(t *testing.T) {
	tcp, udp := addrPortKey("10.96.0.1:80", vip.TCP), addrPortKey("[fd96::1]:53", vip.UDP)
	canned := cannedIPVS{dests: map[string][]string{"10.96.0.1:80/tcp mark 0": {kerneltest.Dest}, "[fd96::1]:53/udp mark 0": {kerneltest.Dest}}}
	r := &Remains{states: map[vip.FrontendKey]*kernel.State{tcp: {Service: kernel.Service{Key: tcp}}, udp: {Service: kernel.Service{Key: udp}}}}
	for text, want := range map[string]int{kerneltest.Table: 6, "\n\n\n": 3} {
		r.target = &Target{statsReader: &statsReader{stats: &counters{}, kernel: &kernel.Conn{Socket: canned}, conns: tableText(text)}}
		open, err := r.Open(t.Context())
		if err != nil || len(open) != 1 || open[tcp] != want {
			t.Errorf("%q: %v, %v", text, open, err)
		}
	}
}
