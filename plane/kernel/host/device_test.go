//go:build linux

package host

import (
	"context"
	"maps"
	"net/netip"
	"slices"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/ironvip/ironvip/test/expect"
	"github.com/ironvip/ironvip/test/must"
	"github.com/ironvip/ironvip/test/netlab"
)

var (
	vip4 = netip.MustParseAddr("10.96.0.1")
	vip6 = netip.MustParseAddr("fd96::1")
)

// world is a device in the network namespace of a node.
type world struct {
	testing.TB
	*netlab.Node
	device *Device
	writes atomic.Uint64
}

func newWorld(t testing.TB, node *netlab.Node) *world {
	w := &world{TB: t, Node: node}
	w.Do(func() { w.device = must.Get(OpenDevice("ironvip0", &w.writes))(t) })
	t.Cleanup(w.device.Close)
	return w
}

func (w *world) run(command string) string {
	w.Helper()
	return w.Node.Run("sh", "-c", command)
}

// ensure prepares the device, and returns whether it was not as it must be.
func (w *world) ensure() (changed bool) {
	w.Helper()
	w.Do(func() { changed = must.Get(w.device.Ensure())(w.TB) })
	return changed
}

func (w *world) add(addrs ...netip.Addr) {
	w.Helper()
	must.Succeed(w.TB, w.device.Add(context.Background(), addrs, func(a netip.Addr, err error) { w.Errorf("%s: %v", a, err) }))
}

// reads checks what Read finds.
func (w *world) reads(when string, want ...netip.Addr) {
	w.Helper()
	w.Do(func() {
		s := must.Get(w.device.Read(context.Background()))(w.TB)
		expect.SameList(w.TB, slices.SortedFunc(maps.Keys(s.Addrs), netip.Addr.Compare), want, "%s: found", when)
	})
}

// local returns the routes to the device in table local, without those of the kernel.
func (w *world) local() string {
	return w.run("ip route show table local dev ironvip0 | grep -v kernel; ip -6 route show table local dev ironvip0 | grep -v kernel; true")
}

// A virtual address costs one message and is one route. Routes of others stay, even to the same address.
func TestRoutesOfVirtualAddresses(t *testing.T) {
	w := newWorld(t, netlab.NewLAN(t, "host").Nodes[0])
	expect.True(t, w.ensure(), "a new device is no change")
	expect.False(t, w.ensure(), "nothing is a change")
	w.reads("a new device")
	w.run("ip link add other0 type bridge; ip link set other0 up; ip route add local 10.96.0.1 table local dev other0 scope host proto 178 metric 178")
	w.run("ip -6 route add local fd96::1 table local dev other0 proto 178 metric 178; ip route add local 10.96.0.9 table local dev ironvip0")
	others := "table local; ip -6 route show table local dev other0 proto 178; ip route show table local 10.96.0.9"
	before := w.run("ip route show dev other0 " + others)
	w.add(vip4, vip6)
	expect.Equal(t, w.writes.Load(), 2, "messages")
	expect.Equal(t, w.local(), "local 10.96.0.1 proto 178 scope host metric 178 \nlocal 10.96.0.9 scope host \nlocal fd96::1 proto 178 metric 178 pref medium\n", "routes")
	w.reads("added", vip4, vip6)
	w.add(vip4, vip6) // they are there
	must.Succeed(t, w.device.Remove(context.Background(), []netip.Addr{vip4, vip6, vip6.Next()}, func(a netip.Addr, err error) { t.Errorf("%s: %v", a, err) }))
	w.reads("removed")
	expect.Equal(t, w.run("ip route show dev other0 "+others), before, "routes of others")
}

// The kernel removes the routes with the device, and those of IPv6 when the device is set down. It refuses new ones of IPv6
// until the device is up. Ensure reports both.
func TestRoutesGoWithTheDevice(t *testing.T) {
	w := newWorld(t, netlab.NewLAN(t, "host").Nodes[0])
	for _, command := range []string{"ip link set ironvip0 down", "ip link del ironvip0"} {
		w.ensure()
		w.add(vip4, vip6)
		w.run(command)
		err := w.device.Add(context.Background(), []netip.Addr{vip6, vip4}, func(a netip.Addr, err error) { t.Logf("%s: %v", a, err) })
		expect.Equal(t, err, error(unix.ENODEV), "%s: the error", command)
		expect.True(t, w.ensure(), "%s is no change", command)
		w.add(vip4, vip6)
		w.reads("repaired", vip4, vip6)
	}
}

// BenchmarkVirtualAddresses adds virtual addresses to a device as local routes. It reports the time of the routes, and its
// share that is system time.
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
			var routes, system time.Duration
			for b.Loop() {
				w := newWorld(b, netlab.NewLAN(b, "host").Nodes[0])
				w.ensure()
				began, before := time.Now(), systemTime(b)
				must.Succeed(b, w.device.Add(context.Background(), all, func(a netip.Addr, err error) { b.Errorf("%s: %v", a, err) }))
				routes, system = routes+time.Since(began), system+systemTime(b)-before
			}
			n := time.Duration(b.N)
			b.ReportMetric(0, "ns/op")
			b.ReportMetric(float64((routes / n).Milliseconds()), "ms/routes")
			b.ReportMetric(float64((system / n).Milliseconds()), "ms-system/routes")
		})
	}
}

func systemTime(b *testing.B) time.Duration {
	var u syscall.Rusage
	must.Succeed(b, syscall.Getrusage(syscall.RUSAGE_SELF, &u))
	return time.Duration(u.Stime.Nano())
}
