package nft

import (
	"context"
	"log/slog"
	"net/netip"
	"testing"

	"github.com/ironvip/ironvip/plane/reconcile"
	"github.com/ironvip/ironvip/test/netlab"
	"github.com/ironvip/ironvip/test/planetest"
	"github.com/ironvip/ironvip/vip"
)

var (
	pool4 = netip.MustParsePrefix("10.96.0.0/16")
	pool6 = netip.MustParsePrefix("fd96::/112")
)

func owns(a netip.Addr) bool { return pool4.Contains(a) || pool6.Contains(a) }

// planeIn is a Target in the namespace of a node.
type planeIn struct {
	*planetest.Plane
	inner
}

// inner puts the Target's methods below those of Plane.
type inner struct{ *Target }

func newPlane(t testing.TB, node *netlab.Node, change ...func(*Options)) *planeIn {
	t.Helper()
	o := Options{Owns: owns, Log: slog.New(slog.NewTextHandler(t.Output(), nil))}
	for _, c := range change {
		c(&o)
	}
	p := &planeIn{}
	p.Plane, p.Target = planetest.New(t, node, func() (*Target, error) { return New(o) })
	return p
}

// writes returns the number of changes of all kinds.
func (p *planeIn) writes() uint64 { return p.Stats().NFTMessages + p.VIPs.Writes() }

func (p *planeIn) Totals(ctx context.Context, want func(vip.FrontendKey) bool) (out map[vip.FrontendKey]reconcile.Traffic, err error) {
	p.Node.Do(func() { out, err = p.Target.Totals(ctx, want) })
	return out, err
}

func (p *planeIn) Breakdown(ctx context.Context, key vip.FrontendKey) (out reconcile.Breakdown, found bool, err error) {
	p.Node.Do(func() { out, found, err = p.Target.Breakdown(ctx, key) })
	return out, found, err
}

func (p *planeIn) ListConnections(ctx context.Context, want func(vip.FrontendKey) bool, yield func(reconcile.Connection) bool) (err error) {
	p.Node.Do(func() { err = p.Target.ListConnections(ctx, want, yield) })
	return err
}
