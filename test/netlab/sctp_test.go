//go:build linux && vm

package netlab_test

import (
	"errors"
	"net/netip"
	"syscall"
	"testing"

	"github.com/ironvip/ironvip/test/need"
	"github.com/ironvip/ironvip/test/netlab"
)

func TestSCTP(t *testing.T) {
	need.Module(t, "sctp")
	l := netlab.New(t)
	for _, addr := range addresses(l.Backends[0]) {
		at := l.Backends[0].Serve("sctp", netip.AddrPortFrom(addr, 7000))
		c, err := l.Client.DialFrom("sctp", netip.Addr{}, at)
		if err != nil {
			t.Fatal(err)
		}
		for range 2 {
			if a, err := c.Ask(); err != nil || a.Name != "backend1" || a.Client.Addr() != l.Client.Addr4 && a.Client.Addr() != l.Client.Addr6 {
				t.Errorf("%v: %v, %v", at, a, err)
			}
		}
		if _, err := l.Client.DialFrom("sctp", netip.Addr{}, netip.AddrPortFrom(addr, 7001)); !errors.Is(err, syscall.ECONNREFUSED) {
			t.Errorf("nobody listens: %v", err)
		}
	}
}
