//go:build linux

package host

import (
	"context"
	"encoding/binary"
	"net/netip"
	"slices"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/ironvip/ironvip/internal/netlink"
	"github.com/ironvip/ironvip/test/must"
	"github.com/ironvip/ironvip/test/netlab"
)

// BenchmarkVirtualAddresses adds virtual addresses to a device as local routes, and in another namespace as addresses.
// It reports the time of the routes, its share that is system time, and how many times as long the addresses take.
func BenchmarkVirtualAddresses(b *testing.B) {
	for name, c := range map[string]struct {
		first netip.Addr
		count int
	}{
		"IPv4/1000": {netip.MustParseAddr("10.96.0.1"), 1000}, "IPv4/10000": {netip.MustParseAddr("10.96.0.1"), 10_000},
		"IPv6/1000": {netip.MustParseAddr("fd96::1"), 1000}, "IPv6/10000": {netip.MustParseAddr("fd96::1"), 10_000},
	} {
		b.Run(name, func(b *testing.B) {
			all := make([]netip.Addr, c.count)
			for i := range all {
				all[i] = c.first
				c.first = c.first.Next()
			}
			var routes, system, addresses time.Duration
			for b.Loop() {
				for i, add := range []func(*Device) error{
					func(d *Device) error {
						return d.Add(context.Background(), all, func(a netip.Addr, err error) { b.Errorf("%s: %v", a, err) })
					},
					func(d *Device) error { return d.addAddresses(all) },
				} {
					w := newWorld(b, netlab.NewLAN(b, "host").Nodes[0])
					w.ensure()
					began, before := time.Now(), systemTime(b)
					must.Succeed(b, add(w.device))
					if i == 0 {
						routes, system = routes+time.Since(began), system+systemTime(b)-before
					} else {
						addresses += time.Since(began)
					}
				}
			}
			n := time.Duration(b.N)
			b.ReportMetric(0, "ns/op")
			b.ReportMetric(float64((routes / n).Milliseconds()), "ms/routes")
			b.ReportMetric(float64((system / n).Milliseconds()), "ms-system/routes")
			b.ReportMetric(float64(addresses)/float64(routes), "addresses/routes")
		})
	}
}

func systemTime(b *testing.B) time.Duration {
	var u syscall.Rusage
	must.Succeed(b, syscall.Getrusage(syscall.RUSAGE_SELF, &u))
	return time.Duration(u.Stime.Nano())
}

// addAddresses puts addresses on the device.
func (d *Device) addAddresses(all []netip.Addr) error {
	var failed error
	err := d.Conn.Write(context.Background(), len(all), func(b []byte, i int) []byte {
		b = netlink.BeginMessage(b, unix.RTM_NEWADDR, unix.NLM_F_CREATE)
		b = appendAddress(b, d.index, Single(all[i]))
		if all[i].Is4() {
			return b
		}
		b = netlink.AppendAttr32(b, unix.IFA_FLAGS, unix.IFA_F_NODAD|unix.IFA_F_NOPREFIXROUTE)
		lifetimes := binary.NativeEndian.AppendUint32(make([]byte, 4), 0xffffffff) // preferred and valid
		return netlink.AppendAttr(b, unix.IFA_CACHEINFO, slices.Concat(lifetimes, make([]byte, 8))...)
	}, func(_ int, err error) {
		if err != nil {
			failed = err
		}
	})
	if err == nil {
		err = failed
	}
	return err
}
