package ipvs

import (
	"slices"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/ironvip/ironvip/plane/kernel/conntrack"
	"github.com/ironvip/ironvip/plane/kernel/host"
	"github.com/ironvip/ironvip/plane/kernel/linux"
	"github.com/ironvip/ironvip/test/bubble"
	"github.com/ironvip/ironvip/test/expect"
	"github.com/ironvip/ironvip/test/must"
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

// A restarted agent that finds all frontends as wanted writes nothing for them. It still checks
// the sysctls that they need.
func TestSuccessorKeepsTheSysctlsOfFrontends(t *testing.T) {
	inWorld(t, "a start", func(w *world) {
		w.start()
		f := listener("[fd96::1]:80", vip.TCP, "[fd01::1]:80")
		f.Scheduler = vip.MaglevHash
		w.put(f)
		w.waitIdle()
		w.stop()
		w.k.alter(func() { w.k.sysctls[forwarding6.Key], w.k.sysctls[sloppy[0].Key] = "0", "0" })
		w.start()
		w.waitIdle()
		w.checkApplied()
		for _, s := range append([]host.Setting{forwarding6}, sloppy...) {
			if got := w.k.sysctls[s.Key]; got != s.Value {
				w.errorf("%s is %q", s.Key, got)
			}
			if !slices.ContainsFunc(w.target.Findings(), func(f host.Finding) bool { return f.OK && f.Name == "sysctl "+host.SysctlName(s.Key) }) {
				w.errorf("no finding says how %s is: %+v", s.Key, w.target.Findings())
			}
		}
		w.stop()
	})
}

// A sysctl that the agent could not set is a finding and no endless drift. When the operator has set it, it is no longer a
// finding after the next read, also on a host without frontends.
func TestFindingEndsWithWhatItSays(t *testing.T) {
	for _, served := range []bool{false, true} {
		inWorld(t, "the operator", func(w *world) {
			key := settings(linux.ParseVersion(linux.Release()))[1].Key
			w.k.fail(func(c call) *fault {
				if c.kind == "sysctl write" && c.what == key {
					return &fault{err: unix.EPERM}
				}
				return nil
			})
			w.resync = time.Second
			w.start()
			if served {
				w.put(listener("10.96.0.1:80", vip.TCP, "10.1.0.1:80"))
			}
			time.Sleep(10 * time.Second)
			w.waitIdle()
			if n := w.r.Stats().DriftRepairs; n > 0 {
				w.errorf("%d repairs", n)
			}
			bad := func() bool {
				return slices.ContainsFunc(w.target.Findings(), func(f host.Finding) bool { return !f.OK && f.Name == "sysctl "+host.SysctlName(key) })
			}
			if !bad() {
				w.errorf("no finding about %s: %+v", key, w.target.Findings())
			}
			w.k.alter(func() { w.k.sysctls[key] = "1" })
			time.Sleep(2 * time.Second)
			w.waitIdle()
			if bad() {
				w.errorf("what was fixed is still a finding: %+v", w.target.Findings())
			}
			w.stop()
		})
	}
}

// While a module that the rules need is missing, the dataplane's error names it. The error ends
// only when the module is loaded, because a successful read of the kernel says nothing about
// writes. Then the table is rebuilt.
func TestMissingModuleIsReportedUntilLoaded(t *testing.T) {
	inWorld(t, "a missing module", func(w *world) {
		w.resync = time.Second
		w.start()
		w.k.alter(func() { w.k.noModule = "nft_masq" })
		w.put(listener("10.96.0.1:80", vip.TCP, "10.1.0.1:80"))
		w.waitIdle()
		for range 200 { // beyond resyncs
			if got := w.r.Stats().TargetError; !strings.Contains(got, "the dataplane needs kernel module nft_masq") {
				w.errorf("the dataplane's error is %q", got)
			}
			time.Sleep(testBackoff / 3)
			w.waitIdle()
		}
		w.k.alter(func() { w.k.noModule = "" })
		time.Sleep(2 * time.Second)
		w.waitIdle()
		w.checkApplied()
		w.stop()
	})
}

func TestConnReuseModeByKernel(t *testing.T) {
	for v, want := range map[string]bool{"4.0": false, "4.1": true, "4.19": true, "5.8": true, "5.9": false, "6.1": false} {
		got := false
		for _, s := range settings(linux.ParseVersion(v)) {
			got = got || s.Key == "ipv4/vs/conn_reuse_mode"
		}
		expect.Equal(t, got, want, "kernel %s: conn_reuse_mode set", v)
	}
}

// Check changes nothing, so the test runs on any machine. Each finding that isn't OK has a
// remedy. One that could not be made without root says so.
func TestCheckAnywhere(t *testing.T) {
	findings := Check(false)
	must.AtLeast(t, len(findings), 5, "only %d findings", len(findings))
	for _, f := range findings {
		if f.Name == "" || f.Detail == "" || !f.Unknown && f.OK != (f.Remedy == "") {
			t.Errorf("%+v", f)
		}
	}
	bad := []host.Finding{{Name: "a", OK: true, Required: true}, {Name: "b", Detail: "x"}, {Name: "c", Required: true, Detail: "is not", Remedy: "do"}}
	if err := host.Err(bad); err == nil || err.Error() != "the dataplane needs c: is not" {
		t.Errorf("%v", err)
	}
}

// Inactive connections count while packets arrive and for another 5 s.
func TestIdleWatch(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		w := &idleTracker{now: time.Now, seen: map[conntrack.Flow]sample{}}
		k := conntrack.Flow{Frontend: vip.FrontendKey{Port: 80}, Backend: addrPort("10.1.0.1:80")}
		steps := []struct {
			packets uint64
			wait    time.Duration
			want    bool
		}{
			{10, 0, true}, // the first sample
			{10, 4 * time.Second, true},
			{11, 0, true},
			{11, 4 * time.Second, true},
			{11, 2 * time.Second, false},
			{12, time.Hour, true},
		}
		for i, s := range steps {
			time.Sleep(s.wait)
			expect.Equal(t, w.busy(k, s.packets, w.now()), s.want, "step %d: busy", i)
		}
		for i := range uint16(2000) {
			w.busy(conntrack.Flow{Frontend: vip.FrontendKey{Port: i}, Backend: k.Backend}, 1, w.now())
		}
		time.Sleep(2 * time.Minute)
		w.busy(k, 13, w.now())
		w.forget(w.now())
		expect.Equal(t, len(w.seen), 1, "remembered endpoints")
	})
}
