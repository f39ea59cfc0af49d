//go:build !vm

package ipvs

import (
	"testing"

	"golang.org/x/sys/unix"

	"github.com/ironvip/ironvip/internal/kernelplane/conntrack"
	"github.com/ironvip/ironvip/vip"
)

// The table outlives an end that fails half-way. A repetition ends the rest.
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
	r := &Remains{access: h, Table: DefaultTable, target: unopenedTarget(o, h, stats)}
	if err := r.findServices(t.Context()); err != nil {
		t.Fatal(err)
	}
	k.fail(func(c call) *fault {
		if c.kind == "conntrack sweep" {
			return &fault{err: unix.ENOBUFS}
		}
		return nil
	})
	if err := r.End(t.Context()); err == nil || k.table == nil {
		t.Errorf("the first end: %v, table %v", err, k.table)
	}
	k.fail(nil)
	if err := r.End(t.Context()); err != nil || k.table != nil || len(k.services) > 0 {
		t.Errorf("the second end: %v, table %v, services %v", err, k.table, k.services)
	}
	if _, left := k.entries[foreign]; !left || len(k.entries) != 1 {
		t.Errorf("entries of connection tracking: %v", k.entries)
	}
}
