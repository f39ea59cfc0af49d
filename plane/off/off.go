// Package off is the choice of no dataplane: a host that only floats addresses for its own programs, or answers DNS. It
// refuses every frontend with backends. Package plane/kernel/vips gives it the addresses, as every dataplane. It neither
// reads nor changes anything.
package off

import (
	"context"
	"iter"
	"net/netip"

	"github.com/ironvip/ironvip/internal/firewall"
	"github.com/ironvip/ironvip/plane"
	"github.com/ironvip/ironvip/plane/reconcile"
	"github.com/ironvip/ironvip/vip"
)

// Kind is the choice of no dataplane.
var Kind = plane.Kind{Mode: "off", Packets: []firewall.Path{firewall.ToVIP},
	Unsupported: func(*vip.Frontend) error { return refusal },
	Open:        func(plane.Host) (plane.Opened, error) { return plane.Opened{Plane: nothing{}}, nil },
}

var refusal = vip.Problem{Code: vip.CodeUnsupported, Field: "backends", Message: `dataplane.mode "off" serves no backends: this host has addresses for its own programs only`,
	Hint: `use forward "host", or another dataplane.mode, or leave the service to other hosts by dataplane.labels`}

// nothing is a reconcile.Plane without frontends.
type nothing struct {
	reconcile.Quiet[vip.FrontendKey, vip.Frontend]
}

// Apply implements reconcile.Target.
func (nothing) Apply(ctx context.Context, batch []reconcile.Update[vip.FrontendKey, vip.Frontend]) error {
	for i := range batch {
		if batch[i].Err = nil; batch[i].New != nil {
			batch[i].Err = refusal
		}
	}
	return ctx.Err()
}

// Actual implements reconcile.Target.
func (nothing) Actual(context.Context) iter.Seq2[reconcile.Observed[vip.Frontend], error] {
	return func(func(reconcile.Observed[vip.Frontend], error) bool) {}
}

// Same implements reconcile.Target.
func (nothing) Same(a, b *vip.Frontend) bool { return true }

// Connections implements reconcile.Connections.
func (nothing) Connections(context.Context, vip.FrontendKey) (map[netip.AddrPort]int, error) {
	return nil, nil
}

// ListConnections implements reconcile.ConnectionLister.
func (nothing) ListConnections(context.Context, func(vip.FrontendKey) bool, func(reconcile.Connection) bool) error {
	return nil
}

// Counted implements reconcile.Statistics.
func (nothing) Counted() reconcile.Counted { return reconcile.Counted{} }

// Totals implements reconcile.Statistics.
func (nothing) Totals(context.Context, func(vip.FrontendKey) bool) (map[vip.FrontendKey]reconcile.Traffic, error) {
	return nil, nil
}

// Breakdown implements reconcile.Statistics.
func (nothing) Breakdown(context.Context, vip.FrontendKey) (reconcile.Breakdown, bool, error) {
	return reconcile.Breakdown{}, false, nil
}

// Ignored implements reconcile.Plane.
func (nothing) Ignored(*vip.Service) []vip.Problem { return nil }
