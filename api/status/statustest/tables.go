// Package statustest has the tables that statuses depend on, for tests of their readers.
package statustest

import (
	"fmt"
	"net/netip"
	"slices"

	"github.com/ironvip/ironvip/api/status"
	"github.com/ironvip/ironvip/internal/table"
	"github.com/ironvip/ironvip/pipeline"
	"github.com/ironvip/ironvip/plane/reconcile"
	"github.com/ironvip/ironvip/sources"
	"github.com/ironvip/ironvip/vip"
)

// Tables are the tables that statuses depend on. The tests fill them.
type Tables struct {
	Clock       *table.Clock
	Services    *table.Table[vip.ServiceKey, vip.Service]
	Allocations *table.Table[vip.ServiceKey, vip.Allocation]
	Compiled    *table.Table[vip.ServiceKey, pipeline.Compiled]
	Overrides   *table.Table[vip.OverrideKey, vip.BackendState]
	Health      *table.Table[vip.BackendKey, vip.BackendHealth]
	Passive     *table.Table[vip.PassiveKey, vip.PassiveHealth]
	Frontends   *table.Table[vip.FrontendKey, vip.Frontend]
	Applied     *table.Table[vip.FrontendKey, reconcile.AppliedFrontend]
	Refused     *table.Table[sources.RefusedKey, sources.Refused]
}

// New returns empty tables.
func New() *Tables {
	clock := &table.Clock{}
	return &Tables{
		Clock:       clock,
		Services:    table.New(clock, vip.KeyOfService, nil),
		Allocations: table.New(clock, vip.KeyOfAllocation, nil),
		Compiled:    table.New(clock, pipeline.KeyOfCompiled, nil),
		Overrides:   table.New(clock, vip.KeyOfBackendState, nil),
		Health:      table.New(clock, vip.KeyOfBackendHealth, nil),
		Passive:     table.New(clock, vip.KeyOfPassiveHealth, nil),
		Frontends:   table.New(clock, vip.KeyOfFrontend, nil),
		Applied:     table.New(clock, reconcile.KeyOfApplied, nil),
		Refused:     table.New(clock, sources.KeyOfRefused, nil),
	}
}

// Readers returns the tables for readers, without names and revisions.
func (w *Tables) Readers() status.Tables {
	return status.Tables{Clock: w.Clock, Services: w.Services, Allocations: w.Allocations, Compiled: w.Compiled, Frontends: w.Frontends, Applied: w.Applied,
		Overrides: w.Overrides, Health: w.Health, Passive: w.Passive, Refused: w.Refused}
}

// OneBackend is a backend of a service.
var OneBackend = vip.Backend{Address: netip.MustParseAddr("10.0.0.1"), Port: 80, Weight: 1, State: vip.Ready, Health: vip.Healthy}

// ServiceNo returns the key of service i.
func ServiceNo(i int) vip.ServiceKey {
	return vip.ServiceKey{Namespace: "default", Name: fmt.Sprintf("s%d", i)}
}

// FrontendNo returns the key of the frontend of service i.
func FrontendNo(i int) vip.FrontendKey {
	return vip.FrontendKey{Addr: netip.AddrFrom4([4]byte{192, byte(i >> 16), byte(i >> 8), byte(i)}), Port: 80, Protocol: vip.TCP}
}

// PassiveKey returns the key of OneBackend in a service.
func PassiveKey(k vip.ServiceKey) vip.PassiveKey {
	return vip.PassiveKey{Service: k, Protocol: vip.TCP, Addr: netip.AddrPortFrom(OneBackend.Address, OneBackend.Port)}
}

// Healthy adds service i in a healthy state.
func (w *Tables) Healthy(i int) {
	k, f := ServiceNo(i), FrontendNo(i)
	wanted := w.Services.Put(vip.Service{Key: k, Ports: []vip.Port{{Protocol: vip.TCP, Port: 80}}, Backends: []vip.Backend{OneBackend}})
	w.Allocations.Set(vip.Allocation{Asked: &wanted.Value, ServiceRev: wanted.Rev, VIPs: []netip.Addr{f.Addr}})
	made := w.Frontends.Put(vip.Frontend{Key: f, Kind: vip.OnVIP, Service: k,
		Backends: []vip.Endpoint{{Addr: netip.AddrPortFrom(OneBackend.Address, 80), Weight: 1}}})
	w.Compiled.Set(pipeline.Compiled{Service: &wanted.Value, ServiceRev: wanted.Rev, Frontends: []*pipeline.FrontendRow{made}})
	w.Applied.Set(reconcile.AppliedFrontend{Tried: made})
}

// Fill adds n healthy services with the given number of backends each.
func (w *Tables) Fill(n, backends int) {
	for i := range n {
		k, f := ServiceNo(i), FrontendNo(i)
		s := vip.Service{Key: k, Source: "files", Ports: []vip.Port{{Protocol: vip.TCP, Port: 80}}}
		front := vip.Frontend{Key: f, Kind: vip.OnVIP, Service: k}
		for b := range backends {
			at := netip.AddrFrom4([4]byte{10, byte(i >> 8), byte(i), byte(b)})
			s.Backends = append(s.Backends, vip.Backend{Address: at, Port: 8080, Weight: 1, State: vip.Ready})
			front.Backends = append(front.Backends, vip.Endpoint{Addr: netip.AddrPortFrom(at, 8080), Weight: 1})
		}
		wanted, made := w.Services.Put(s), w.Frontends.Put(front)
		w.Allocations.Set(vip.Allocation{Asked: &wanted.Value, ServiceRev: wanted.Rev, VIPs: []netip.Addr{f.Addr}})
		w.Compiled.Set(pipeline.Compiled{Service: &wanted.Value, ServiceRev: wanted.Rev, Frontends: []*pipeline.FrontendRow{made}})
		w.Applied.Set(reconcile.AppliedFrontend{Tried: made})
	}
}

// Disown removes frontend f, which is now k's, from the compiled rows of other services.
func (w *Tables) Disown(f vip.FrontendKey, k vip.ServiceKey) {
	for other, row := range w.Compiled.All() {
		if other != k && slices.ContainsFunc(row.Frontends, func(r *pipeline.FrontendRow) bool { return r.Value.Key == f }) {
			row.Frontends = nil
			w.Compiled.Set(row)
		}
	}
}
