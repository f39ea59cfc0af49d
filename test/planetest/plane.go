//go:build linux

// Package planetest runs the kernel dataplanes in a lab, for their tests: a plane in the namespace of a node, a
// reconciler's loop on it, and storms of changes, kills and changes by other programs.
//
// Its inputs are a reconcile.Plane and a netlab.Node. It ends with the test.
package planetest

import (
	"context"
	"errors"
	"iter"
	"log/slog"
	"net/netip"
	"sync"
	"testing"

	"github.com/ironvip/ironvip/internal/netlink"
	"github.com/ironvip/ironvip/plane/kernel/vips"
	"github.com/ironvip/ironvip/plane/reconcile"
	"github.com/ironvip/ironvip/test/netlab"
	"github.com/ironvip/ironvip/vip"
)

type (
	// Update is one update of a frontend.
	Update = reconcile.Update[vip.FrontendKey, vip.Frontend]
	// Observed is one frontend as a dataplane reads it.
	Observed = reconcile.Observed[vip.Frontend]
)

// Target is a dataplane of this kernel.
type Target interface {
	reconcile.Plane
	Close() error
}

// Plane is a Target with the addresses of its frontends, as in the agent, that works in a node's namespace, in any
// goroutine. Tests embed it beside their Target, one level higher, so that these methods take precedence.
type Plane struct {
	Node *netlab.Node
	VIPs *vips.Plane
	// Faults sees every send of the Target. Set it before anything uses the Target.
	Faults netlink.Interceptor
	// Applying is held while the Target changes the kernel.
	Applying sync.Mutex
	on       Target
}

// withVIPs closes both.
type withVIPs struct {
	*vips.Plane
	target Target
}

func (w withVIPs) Close() error { return errors.Join(w.Plane.Close(), w.target.Close()) }

// New returns the Target that open creates in a node's namespace. The end of the test closes it.
func New[T Target](t testing.TB, node *netlab.Node, open func() (T, error)) (*Plane, T) {
	t.Helper()
	p := &Plane{Node: node}
	var target T
	var err error
	node.Do(func() {
		if target, err = open(); err == nil {
			p.VIPs, err = vips.New(vips.Options{Plane: target, Log: slog.New(slog.NewTextHandler(t.Output(), nil))})
		}
	})
	if err != nil {
		t.Fatal(err)
	}
	p.on = withVIPs{p.VIPs, target}
	t.Cleanup(func() { p.on.Close() })
	return p, target
}

func (p *Plane) do(ctx context.Context, f func(context.Context)) {
	if p.Faults != nil {
		ctx = netlink.Intercept(ctx, p.Faults)
	}
	p.Node.Do(func() { f(ctx) })
}

// Apply implements reconcile.Plane.
func (p *Plane) Apply(ctx context.Context, batch []Update) (err error) {
	p.Applying.Lock()
	defer p.Applying.Unlock()
	p.do(ctx, func(ctx context.Context) { err = p.on.Apply(ctx, batch) })
	return err
}

// Actual implements reconcile.Plane.
func (p *Plane) Actual(ctx context.Context) iter.Seq2[Observed, error] {
	return reconcile.ReadAll(ctx, func(ctx context.Context) (all []Observed, err error) {
		p.do(ctx, func(ctx context.Context) {
			for o, failed := range p.on.Actual(ctx) {
				if failed != nil {
					all, err = nil, failed
					return
				}
				all = append(all, o)
			}
		})
		return all, err
	})
}

// Same implements reconcile.Plane.
func (p *Plane) Same(a, b *vip.Frontend) bool { return p.on.Same(a, b) }

// Connections implements reconcile.Connections.
func (p *Plane) Connections(ctx context.Context, key vip.FrontendKey) (out map[netip.AddrPort]int, err error) {
	p.do(ctx, func(ctx context.Context) { out, err = p.on.Connections(ctx, key) })
	return out, err
}

// Changed implements reconcile.Target.
func (p *Plane) Changed() <-chan struct{} { return p.on.Changed() }

// Check implements reconcile.Target.
func (p *Plane) Check(ctx context.Context) (s reconcile.Drift[vip.FrontendKey, vip.Frontend], err error) {
	p.do(ctx, func(ctx context.Context) { s, err = p.on.Check(ctx) })
	return s, err
}

// Unclean implements reconcile.Target.
func (p *Plane) Unclean() bool { return p.on.Unclean() }

// Clean implements reconcile.Target.
func (p *Plane) Clean(ctx context.Context) (err error) {
	p.Applying.Lock()
	defer p.Applying.Unlock()
	p.do(ctx, func(ctx context.Context) { err = p.on.Clean(ctx) })
	return err
}

// Suspect implements reconcile.Target.
func (p *Plane) Suspect() { p.on.Suspect() }

// Close closes the Target.
func (p *Plane) Close() error { return p.on.Close() }

// Put applies changes, cleans, and fails the test if any of that fails.
func (p *Plane) Put(t testing.TB, batch ...Update) {
	t.Helper()
	if err := p.Apply(t.Context(), batch); err != nil {
		t.Fatal(err)
	}
	for _, u := range batch {
		if u.Err != nil {
			t.Fatalf("%s: %v", u.Key, u.Err)
		}
	}
	if p.Unclean() {
		if err := p.Clean(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
}

// Create programs new frontends.
func (p *Plane) Create(t testing.TB, all ...*vip.Frontend) {
	t.Helper()
	var batch []Update
	for _, f := range all {
		batch = append(batch, Update{Key: f.Key, New: f})
	}
	p.Put(t, batch...)
}

// Read returns Actual's results by key.
func (p *Plane) Read(t testing.TB) map[vip.FrontendKey]Observed {
	t.Helper()
	all := map[vip.FrontendKey]Observed{}
	for o, err := range p.Actual(t.Context()) {
		if err != nil {
			t.Fatal(err)
		}
		if _, twice := all[o.Value.Key]; twice {
			t.Errorf("%s is yielded twice", o.Value.Key)
		}
		all[o.Value.Key] = o
	}
	return all
}

// Wants checks that the Target reads exactly these frontends, without differences.
func (p *Plane) Wants(t testing.TB, all ...*vip.Frontend) {
	t.Helper()
	have := p.Read(t)
	for _, f := range all {
		o, ok := have[f.Key]
		switch {
		case !ok:
			t.Errorf("%s is missing", f.Key)
		case len(o.Damage) > 0:
			t.Errorf("%s is damaged: %q", f.Key, o.Damage)
		case !p.Same(&o.Value, f):
			t.Errorf("%s is\n%+v, want\n%+v", f.Key, o.Value, *f)
		}
		delete(have, f.Key)
	}
	for _, o := range have {
		t.Errorf("%s should not be there: %q", o.Value.Key, o.Damage)
	}
}
