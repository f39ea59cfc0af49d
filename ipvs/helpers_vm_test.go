//go:build linux && vm

package ipvs

import (
	"fmt"
	"log/slog"
	"net/netip"
	"slices"
	"testing"

	"github.com/ironvip/ironvip/test/must"
	"github.com/ironvip/ironvip/test/netlab"
	"github.com/ironvip/ironvip/test/planetest"
	"github.com/ironvip/ironvip/vip"
)

// planeIn is a Target that works in a node's namespace, in any goroutine.
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
func (p *planeIn) writes() uint64 {
	s := p.Stats()
	return s.WritesSent + s.NFTMessages + p.VIPs.Writes()
}

func (p *planeIn) change(t testing.TB, old, new *vip.Frontend) {
	t.Helper()
	p.Put(t, updateOf{Key: old.Key, Old: old, New: new})
}

func (p *planeIn) remove(t testing.TB, old *vip.Frontend) { t.Helper(); p.change(t, old, nil) }

// run runs a program in the node and returns its output.
func run(t testing.TB, node *netlab.Node, args ...string) string {
	t.Helper()
	return runWith(t, node, "", args...)
}

// runWith runs a program with input.
func runWith(t testing.TB, node *netlab.Node, input string, args ...string) string {
	t.Helper()
	out, err := node.Feed(input, args...)
	must.Succeed(t, err, "%v: %s", args, out)
	return out
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

func prefixes(all ...string) []netip.Prefix {
	var out []netip.Prefix
	for _, s := range all {
		out = append(out, netip.MustParsePrefix(s))
	}
	return out
}

func restricted(f *vip.Frontend, ranges ...string) *vip.Frontend {
	return with(f, func(f *vip.Frontend) { f.SourceRanges = prefixes(ranges...) })
}
