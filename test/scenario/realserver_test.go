//go:build linux

package scenario

import (
	"context"
	"errors"
	"iter"
	"log/slog"

	"github.com/ironvip/ironvip/ipvs"
	"github.com/ironvip/ironvip/plane/kernel/vips"
	"github.com/ironvip/ironvip/plane/reconcile"
	"github.com/ironvip/ironvip/test/netlab"
	"github.com/ironvip/ironvip/vip"
)

// planeAt is a dataplane in another namespace than this process's.
type planeAt struct {
	*vips.Plane
	target *ipvs.Target
	node   *netlab.Node
}

func (r *run) openAt(p place) (plane, error) {
	at := &planeAt{node: r.nodes[p].For(r)}
	var err error
	at.node.Do(func() {
		if at.target, err = ipvs.New(ipvs.Options{Device: device, Owns: r.owns, Log: slog.New(slog.DiscardHandler)}); err == nil {
			at.Plane, err = vips.New(vips.Options{Plane: at.target, Device: device})
		}
	})
	return at, err
}

func (p *planeAt) Apply(ctx context.Context, batch []reconcile.Update[vip.FrontendKey, vip.Frontend]) (err error) {
	p.node.Do(func() { err = p.Plane.Apply(ctx, batch) })
	return err
}

func (p *planeAt) Actual(ctx context.Context) iter.Seq2[reconcile.Observed[vip.Frontend], error] {
	type observed = reconcile.Observed[vip.Frontend]
	var all []observed
	var failed error
	p.node.Do(func() {
		for o, err := range p.Plane.Actual(ctx) {
			if err != nil {
				failed = err
				return
			}
			all = append(all, o)
		}
	})
	return func(yield func(observed, error) bool) {
		if failed != nil {
			yield(observed{}, failed)
			return
		}
		for _, o := range all {
			if !yield(o, nil) {
				return
			}
		}
	}
}

// Clean implements reconcile.Target.
func (p *planeAt) Clean(ctx context.Context) (err error) {
	p.node.Do(func() { err = p.Plane.Clean(ctx) })
	return err
}

// Close removes everything from the namespace, which outlives the dataplane.
func (p *planeAt) Close() (err error) {
	p.node.Do(func() { err = errors.Join(p.Remove(), p.target.Remove(context.Background())) })
	return errors.Join(err, p.Plane.Close(), p.target.Close())
}
