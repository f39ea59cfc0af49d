package vips

import (
	"context"
	"errors"
	"log/slog"
	"slices"
	"sync"
	"testing"

	"github.com/ironvip/ironvip/plane/reconcile"
	"github.com/ironvip/ironvip/proxy"
	"github.com/ironvip/ironvip/test/expect"
	"github.com/ironvip/ironvip/test/must"
	"github.com/ironvip/ironvip/vip"
)

// bench is one Plane under test, with a proxy in this process.
type bench struct {
	testing.TB
	*Plane
	target  *proxy.Target
	closing sync.Once
}

func newPlane(t testing.TB, o Options) *bench {
	t.Helper()
	log := slog.New(slog.DiscardHandler)
	b := &bench{TB: t, target: proxy.New(proxy.Options{Log: log})}
	o.Plane, o.Sockets = b.target, true
	b.Plane = must.Get(New(o))(t)
	t.Cleanup(func() { expect.Succeed(t, b.Close()) })
	return b
}

// Close ends both.
func (b *bench) Close() error {
	var err error
	b.closing.Do(func() { err = errors.Join(b.Plane.Close(), b.target.Close()) })
	return err
}

// apply applies one frontend and returns the frontend's error.
func (b *bench) apply(f *vip.Frontend) error {
	b.Helper()
	batch := []reconcile.Update[vip.FrontendKey, vip.Frontend]{{Key: f.Key, New: f}}
	must.Succeed(b, b.Apply(context.Background(), batch))
	return batch[0].Err
}

func (b *bench) must(f *vip.Frontend) {
	b.Helper()
	must.Succeed(b, b.apply(f))
}

func (b *bench) remove(key vip.FrontendKey) {
	b.Helper()
	batch := []reconcile.Update[vip.FrontendKey, vip.Frontend]{{Key: key}}
	must.Succeed(b, errors.Join(b.Apply(context.Background(), batch), batch[0].Err))
}

func (b *bench) actual() []reconcile.Observed[vip.Frontend] {
	b.Helper()
	var out []reconcile.Observed[vip.Frontend]
	for o, err := range b.Actual(context.Background()) {
		must.Succeed(b, err)
		out = append(out, o)
	}
	slices.SortFunc(out, func(x, y reconcile.Observed[vip.Frontend]) int {
		return vip.CompareFrontendKeys(x.Value.Key, y.Value.Key)
	})
	return out
}
