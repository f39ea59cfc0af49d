//go:build linux && vm

package ipvs

import (
	"errors"
	"net/netip"
	"strings"
	"syscall"
	"testing"

	"github.com/ironvip/ironvip/vip"
)

// A UDP client of a range of ports is answered by another backend as soon as its own is removed,
// and is refused when no backend is left.
func TestUDPBackendOfARangeLeaves(t *testing.T) {
	for _, at := range []string{"10.96.0.1:8000", "[fd96::1]:8000"} {
		for _, target := range []uint16{0, 8080} {
			w := newTown(t)
			f := ranged(frontend(at, vip.UDP, w.backends(at, 2)...), 8100, target)
			w.Create(t, f)
			c, err := w.Client.Dial("udp", netip.AddrPortFrom(f.Key.Addr, 8080))
			if err != nil {
				t.Fatal(err)
			}
			a, err := c.Ask()
			if err != nil {
				t.Fatalf("%s to %d: %v", at, target, err)
			}
			staying := 0
			if a.Name == "backend1" {
				staying = 1
			}
			g := with(f, func(f *vip.Frontend) { f.Backends = f.Backends[staying : staying+1] })
			w.change(t, f, g)
			if out, gone := run(t, w.Director, "conntrack", "-L"), f.Backends[1-staying].Addr.Addr().String(); strings.Contains(out, "src="+gone+" ") {
				t.Errorf("%s to %d: connection tracking still knows %s:\n%s", at, target, gone, out)
			}
			if b, err := c.Ask(); err != nil || b.Name == a.Name {
				t.Errorf("%s to %d: after %s left: %v, %v", at, target, a.Name, b, err)
			}
			w.change(t, g, with(g, func(f *vip.Frontend) { f.Backends = nil }))
			if _, err := c.Ask(); !errors.Is(err, syscall.ECONNREFUSED) {
				t.Errorf("%s to %d: with no backend left: %v", at, target, err)
			}
		}
	}
}
