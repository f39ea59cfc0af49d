package ipvs

import (
	"slices"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/ironvip/ironvip/plane/kernel/host"
	"github.com/ironvip/ironvip/vip"
)

// While there is no frontend, another program may change the sysctls. The first frontend sets them, without a resync.
func TestFirstFrontendSetsTheSysctls(t *testing.T) {
	inWorld(t, "another program", func(w *world) {
		w.start()
		f := listener("10.96.0.1:80", vip.TCP, "10.1.0.1:80")
		for range 2 {
			w.waitIdle()
			w.k.alter(func() { w.k.sysctls["ipv4/ip_forward"] = "0" })
			w.put(f)
			w.waitIdle()
			if got := w.k.sysctls["ipv4/ip_forward"]; got != "1" {
				w.errorf("ip_forward is %q with a frontend", got)
			}
			w.set(f.Key, nil)
		}
		w.waitIdle()
		w.stop()
	})
}

// Findings about what a service needs end with the need: the service is gone, or needs less.
func TestFindingEndsWithItsService(t *testing.T) {
	inWorld(t, "services", func(w *world) {
		w.k.fail(func(c call) *fault {
			if c.what == "set the timeout" || c.kind == "sysctl write" && c.what == forwarding6.Key {
				return &fault{err: unix.EPERM}
			}
			return nil
		})
		w.k.alter(func() { w.k.sysctls[host.Remembered(0).Key], w.k.idle = "600", 15*time.Minute })
		w.resync = time.Second
		w.start()
		expect := func(when string, want ...string) {
			time.Sleep(2 * time.Second)
			w.waitIdle()
			var got []string
			for _, f := range w.target.Findings() {
				if !f.OK {
					got = append(got, f.Name)
				}
			}
			if slices.Sort(got); !slices.Equal(got, want) {
				w.errorf("%s: findings about %q, want %q", when, got, want)
			}
		}
		f := listener("[fd96::1]:80", vip.TCP, "[fd01::1]:80")
		needing := func(idle time.Duration) *vip.Frontend {
			g := *f
			g.Relay = vip.RelayOf(vip.ProxySettings{IdleTimeout: idle})
			return &g
		}
		all := []string{"ipvs timeout", "sysctl net.ipv6.conf.all.forwarding", "sysctl net.netfilter.nf_conntrack_tcp_timeout_established"}
		w.put(needing(2 * time.Hour))
		expect("long", all...)
		w.put(needing(5 * time.Minute))
		expect("short", all[1])
		w.put(needing(2 * time.Hour))
		expect("long again", all...)
		if n := w.r.Stats().DriftRepairs; n > 0 {
			w.errorf("%d repairs", n)
		}
		w.set(f.Key, nil)
		expect("gone")
		w.stop()
	})
}
