package ipvs

import (
	"testing"

	"golang.org/x/sys/unix"

	"github.com/ironvip/ironvip/ipvs/internal/kernel"
	"github.com/ironvip/ironvip/plane/kernel/conntrack"
	"github.com/ironvip/ironvip/test/kerneltest"
	"github.com/ironvip/ironvip/test/must"
	"github.com/ironvip/ironvip/vip"
)

// The table outlives a removal that fails half-way. A repetition by another process removes the rest.
func TestRemovalIsRepeated(t *testing.T) {
	k := newFakeKernel()
	stats := &counters{}
	h := must.Get(k.open(t.Context(), stats))(t)
	o := Options{Owns: owns}
	target := newTarget(o, h, stats)
	defer target.Close()
	f := listener("10.96.0.1:53", vip.UDP, "10.1.0.1:53")
	must.Succeed(t, target.Apply(t.Context(), []updateOf{{Key: f.Key, New: f}}))
	k.traffic()
	foreign := conntrack.Flow{Frontend: vip.FrontendKey{Addr: f.Key.Addr, Port: 54, Protocol: vip.UDP}, Backend: addrPort("10.1.0.1:54")}
	k.alter(func() { k.entries[foreign] = struct{}{} })
	find := func() *Target { return unopenedTarget(o, h, stats) }
	k.fail(func(c call) *fault {
		if c.kind == "conntrack sweep" {
			return &fault{err: unix.ENOBUFS}
		}
		return nil
	})
	if err := find().Remove(t.Context()); err == nil || k.table == nil || len(k.services) > 0 {
		t.Errorf("the first removal: %v, table %v", err, k.table)
	}
	k.fail(nil)
	if err := find().Remove(t.Context()); err != nil || k.table != nil { // of another process, which finds no services
		t.Errorf("the second removal: %v, table %v, services %v", err, k.table, k.services)
	}
	if _, left := k.entries[foreign]; !left || len(k.entries) != 1 {
		t.Errorf("entries of connection tracking: %v", k.entries)
	}
}

// Clients of UDP, and services of others, don't keep a dataplane.
func TestOpen(t *testing.T) {
	tcp, udp := addrPortKey("10.96.0.1:80", vip.TCP), addrPortKey("[fd96::1]:53", vip.UDP)
	canned := cannedIPVS{all: []string{kerneltest.UDP6, kerneltest.TCP, kerneltest.Mark}}
	target := &Target{statsReader: &statsReader{stats: &counters{}, kernel: &kernel.Conn{Socket: canned}, conns: tableText(kerneltest.Table).Read}}
	for _, ours := range [][]vip.FrontendKey{{tcp, udp}, {udp}} {
		target.left = &kernelState{states: map[vip.FrontendKey]*kernel.State{}}
		for _, k := range ours {
			target.left.states[k] = &kernel.State{Service: kernel.Service{Key: k}}
		}
		open, err := target.Open(t.Context())
		if err != nil || len(open) != len(ours)-1 || len(ours) == 2 && open[tcp] != 6 {
			t.Errorf("of %v: %v, %v", ours, open, err)
		}
	}
}
