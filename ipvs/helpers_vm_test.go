//go:build linux && vm

package ipvs

import (
	"context"
	"fmt"
	"iter"
	"log/slog"
	"net/netip"
	"os/exec"
	"slices"
	"strings"
	"testing"

	"github.com/ironvip/ironvip/test/netlab"
	"github.com/ironvip/ironvip/vip"
)

// planeIn is a Target that works in a node's namespace, in any goroutine.
type planeIn struct {
	*Target
	node *netlab.Node
}

func newPlane(t testing.TB, node *netlab.Node, change ...func(*Options)) *planeIn {
	t.Helper()
	o := Options{Owns: owns, Log: slog.New(slog.NewTextHandler(t.Output(), nil))}
	for _, c := range change {
		c(&o)
	}
	p := &planeIn{node: node}
	node.Do(func() {
		var err error
		if p.Target, err = New(o); err != nil {
			t.Fatal(err)
		}
	})
	t.Cleanup(func() { p.Close() })
	return p
}

func (p *planeIn) Apply(ctx context.Context, batch []updateOf) (err error) {
	p.node.Do(func() { err = p.Target.Apply(ctx, batch) })
	return err
}

func (p *planeIn) Actual(ctx context.Context) iter.Seq2[observed, error] {
	return func(yield func(observed, error) bool) {
		var all []observed
		var err error
		p.node.Do(func() { all, err = p.Target.readState(ctx) })
		if err != nil {
			yield(observed{}, err)
			return
		}
		for _, o := range all {
			if !yield(o, nil) {
				return
			}
		}
	}
}

// put applies changes and fails the test if any of them fails.
func (p *planeIn) put(t testing.TB, batch ...updateOf) {
	t.Helper()
	if err := p.Apply(t.Context(), batch); err != nil {
		t.Fatal(err)
	}
	for _, u := range batch {
		if u.Err != nil {
			t.Fatalf("%s: %v", u.Key, u.Err)
		}
	}
}

func (p *planeIn) create(t testing.TB, all ...*vip.Frontend) {
	t.Helper()
	var batch []updateOf
	for _, f := range all {
		batch = append(batch, updateOf{Key: f.Key, New: f})
	}
	p.put(t, batch...)
}

func (p *planeIn) change(t testing.TB, old, new *vip.Frontend) {
	t.Helper()
	p.put(t, updateOf{Key: old.Key, Old: old, New: new})
}

func (p *planeIn) remove(t testing.TB, old *vip.Frontend) { t.Helper(); p.change(t, old, nil) }

// read returns Actual's results by key.
func (p *planeIn) read(t testing.TB) map[vip.FrontendKey]observed {
	t.Helper()
	all := map[vip.FrontendKey]observed{}
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

// wants checks that the kernel has exactly these frontends, without differences.
func (p *planeIn) wants(t testing.TB, all ...*vip.Frontend) {
	t.Helper()
	have := p.read(t)
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

// run runs a program in the node and returns its output.
func run(t testing.TB, node *netlab.Node, args ...string) string {
	t.Helper()
	var out []byte
	var err error
	node.Do(func() { out, err = exec.Command(args[0], args[1:]...).CombinedOutput() })
	if err != nil {
		t.Fatalf("%v: %v: %s", args, err, out)
	}
	return string(out)
}

// runWith runs a program with input.
func runWith(t testing.TB, node *netlab.Node, input string, args ...string) string {
	t.Helper()
	var out []byte
	var err error
	node.Do(func() {
		cmd := exec.Command(args[0], args[1:]...)
		cmd.Stdin = strings.NewReader(input)
		out, err = cmd.CombinedOutput()
	})
	if err != nil {
		t.Fatalf("%v: %v: %s", args, err, out)
	}
	return string(out)
}

// frontend returns a frontend on a virtual address, "10.96.0.1:80", with backends of weight 1.
func frontend(at string, p vip.Protocol, backends ...netip.AddrPort) *vip.Frontend {
	ap := netip.MustParseAddrPort(at)
	f := &vip.Frontend{
		Key:        vip.FrontendKey{Addr: ap.Addr(), Port: ap.Port(), Protocol: p},
		Kind:       vip.OnVIP,
		Scheduler:  vip.WeightedRoundRobin,
		Forward:    vip.ForwardNAT,
		Masquerade: vip.MasqueradeAuto,
	}
	for _, b := range backends {
		f.Backends = append(f.Backends, vip.Endpoint{Addr: b, Weight: 1})
	}
	slices.SortFunc(f.Backends, vip.CompareEndpoints)
	return f
}

func addrs(all ...string) []netip.AddrPort {
	var out []netip.AddrPort
	for _, s := range all {
		out = append(out, netip.MustParseAddrPort(s))
	}
	return out
}

// with returns a copy of f with a change.
func with(f *vip.Frontend, change func(*vip.Frontend)) *vip.Frontend {
	g := *f
	g.Backends = slices.Clone(f.Backends)
	change(&g)
	return &g
}

// nth returns the i-th address of a range.
func nth(p netip.Prefix, i int) netip.Addr {
	b := p.Addr().AsSlice()
	n := len(b)
	b[n-1], b[n-2] = byte(i), b[n-2]+byte(i>>8)
	a, _ := netip.AddrFromSlice(b)
	return a
}

// many returns n frontends with m backends each.
func many(n, m int) []*vip.Frontend {
	var all []*vip.Frontend
	for i := range n {
		var backends []netip.AddrPort
		for j := range m {
			backends = append(backends, netip.AddrPortFrom(netip.AddrFrom4([4]byte{172, 16, byte(j), byte(i%250 + 1)}), 8080))
		}
		all = append(all, frontend(fmt.Sprintf("%s:80", nth(pool4, i+1)), vip.TCP, backends...))
	}
	return all
}
