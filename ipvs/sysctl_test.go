package ipvs

import (
	"slices"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/ironvip/ironvip/plane/kernel/host"
	"github.com/ironvip/ironvip/plane/kernel/linux"
	"github.com/ironvip/ironvip/vip"
)

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
