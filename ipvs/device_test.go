package ipvs

import (
	"context"
	"errors"
	"net/netip"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/ironvip/ironvip/plane/kernel/host"
	"github.com/ironvip/ironvip/test/bubble"
	"github.com/ironvip/ironvip/test/expect"
	"github.com/ironvip/ironvip/test/must"
)

// Add waits for the routes of IPv6 addresses. The kernel adds them after it has acknowledged the
// address.
func TestAddressesAreAwaited(t *testing.T) {
	v4, v6, more := netip.MustParseAddr("10.96.0.1"), netip.MustParseAddr("fd96::1"), netip.MustParseAddr("fd96::2")
	for name, c := range map[string]struct {
		addrs []netip.Addr
		tardy int
		takes time.Duration
		asks  int
		fail  int
	}{
		"at once":        {[]netip.Addr{v6}, 0, 0, 1, 0},
		"IPv4":           {[]netip.Addr{v4}, 5, 0, 0, 0},
		"a moment later": {[]netip.Addr{v4, v6, more}, 5, 5 * time.Millisecond, 7, 0},
		"never":          {[]netip.Addr{v6, more}, 1 << 30, host.LocalWithin + time.Millisecond, int(host.LocalWithin/time.Millisecond) + 3, 2},
	} {
		t.Run(name, func(t *testing.T) {
			bubble.Test(t, func(t *testing.T) {
				k, d := fakeDeviceUp(t)
				k.tardy = c.tardy
				begun := time.Now()
				var failures []error
				if err := d.Add(t.Context(), c.addrs, func(_ netip.Addr, err error) { failures = append(failures, err) }); err != nil || len(failures) != c.fail {
					t.Error(err, failures)
				}
				expect.Equal(t, time.Since(begun), c.takes, "the time")
				expect.Equal(t, strings.Count(strings.Join(k.trace, "\n"), "route query"), c.asks, "queries for routes")
			})
		})
	}
}

// The wait for a route ends when the context ends. Add doesn't wait for an address that it could
// not add.
func TestAddressesAreNotAwaitedInVain(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		k, d := fakeDeviceUp(t)
		k.tardy = 1 << 30
		ctx, cancel := context.WithTimeout(t.Context(), 20*time.Millisecond)
		defer cancel()
		begun := time.Now()
		err := d.Add(ctx, []netip.Addr{netip.MustParseAddr("fd96::1")}, func(a netip.Addr, err error) { t.Error(a, err) })
		if took := time.Since(begun); !errors.Is(err, context.DeadlineExceeded) || took > 30*time.Millisecond {
			t.Errorf("%v after %v", err, took)
		}

		k.fail(func(c call) *fault {
			if c.kind == "route message" {
				return &fault{err: unix.ENOBUFS}
			}
			return nil
		})
		begun = time.Now()
		failed := 0
		if err := d.Add(t.Context(), []netip.Addr{netip.MustParseAddr("fd96::2")}, func(netip.Addr, error) { failed++ }); err != nil || failed != 1 {
			t.Errorf("%v, %d failed", err, failed)
		}
		if took := time.Since(begun); took > 0 {
			t.Errorf("waited %v for an address that isn't there", took)
		}
	})
}

// fakeDeviceUp returns a fake kernel with the device.
func fakeDeviceUp(t *testing.T) (*fakeKernel, *host.Device) {
	k := newFakeKernel()
	h := must.Get(k.open(t.Context(), &counters{}))(t)
	must.Get(h.device.Ensure())(t)
	return k, h.device
}
