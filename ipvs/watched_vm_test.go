//go:build linux && vm

package ipvs

import (
	"errors"
	"fmt"
	"net/netip"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/ironvip/ironvip/plane/kernel/filter"
	"github.com/ironvip/ironvip/plane/kernel/host"
	"github.com/ironvip/ironvip/test/expect"
	"github.com/ironvip/ironvip/test/must"
	"github.com/ironvip/ironvip/test/netlab"
	"github.com/ironvip/ironvip/test/wait"
)

// Without any resync, every change by another program that the kernel reports is repaired at once, each time. Own changes
// cause no reading.
func TestChangesByOthersAreRepairedAtOnce(t *testing.T) {
	lab := netlab.New(t)
	p := newPlane(t, lab.Director)
	l, all := newLoop(t, p, -1), aFew()
	var device *host.Device // of its own: the loop uses that of the Target
	lab.Director.Do(func() { device = must.Get(host.OpenDevice(DefaultDevice, new(atomic.Uint64)))(t) })
	t.Cleanup(device.Close)
	whole := func(when string) {
		t.Helper()
		wait.For(t, when, func() (missing error) {
			lab.Director.Do(func() {
				state, err := device.Read(t.Context())
				rules, failed := filter.New(p.opt.table(), &p.stats.nftMessages).Read(t.Context())
				if missing = errors.Join(err, failed); missing == nil && (state.Fault != "" || !rules.Intact) {
					missing = fmt.Errorf("device %q, table intact: %v", state.Fault, rules.Intact)
				}
				for _, f := range all {
					if _, there := state.Addrs[f.Key.Addr]; missing == nil && !(there && rules.Has(filter.AddrElement(filter.SetVIPs, f.Key.Addr))) {
						missing = fmt.Errorf("%s is missing from the device or the table", f.Key.Addr)
					}
				}
			})
			return missing
		})
	}
	for range 10 {
		l.Set(all...)
		whole("programmed")
		for _, f := range all {
			l.Delete(f.Key)
		}
		wait.Until(t, "removed", func() bool { return run(t, lab.Director, "ipvsadm", "-Sn") == "" })
	}
	l.Set(all...)
	whole("programmed")
	started := l.Stats()
	must.Equal(t, started.DriftRepairs, 0, "repairs of own changes")
	for i := range 10 {
		for _, a := range []string{"10.96.0.1/32", "fd96::1/128"} {
			lab.Director.Bounce("ironvip0", netip.MustParsePrefix(a))
			whole(fmt.Sprintf("%s was removed %d times", a, i+1))
		}
	}
	for _, command := range []string{
		"ip link set ironvip0 down", "ip link set ironvip0 arp on", "ip link del ironvip0", "ip route flush table local dev ironvip0", "ip -6 route flush table local proto 178",
	} {
		run(t, lab.Director, strings.Fields(command)...)
		whole(command)
	}
	expect.Equal(t, l.Stats().LastResync, started.LastResync, "the last read of everything")
	for _, command := range []string{
		"nft delete table inet ironvip", "nft flush ruleset", "nft flush chain inet ironvip unserved", "nft delete element inet ironvip vips4 { 10.96.0.2 }",
	} {
		run(t, lab.Director, strings.Fields(command)...)
		whole(command)
	}
	expect.False(t, l.Stats().LastResync == started.LastResync, "nothing was read")
}
