package ipvs

import (
	"slices"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/ironvip/ironvip/test/bubble"
	"github.com/ironvip/ironvip/test/expect"
	"github.com/ironvip/ironvip/vip"
)

// A scheduler changes between the start and the end of a pause. Other changes and new services
// need no pause. If the table can't be written, the scheduler changes anyway.
func TestSchedulerChangesInAPause(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		w := newWorld()
		w.start()
		f := &vip.Frontend{
			Key: vip.FrontendKey{Addr: addrPort("10.96.0.1:80").Addr(), Port: 80, Protocol: vip.TCP}, Kind: vip.OnVIP,
			Scheduler: vip.RoundRobin, Forward: vip.ForwardNAT, Masquerade: vip.MasqueradeAuto,
			Backends: []vip.Endpoint{{Addr: addrPort("10.1.0.1:80"), Weight: 1}},
		}
		// steps returns the effects of a change on the table's pauses and on the service.
		steps := func(change func(f *vip.Frontend), fails func(c call) *fault) (out []string) {
			g := *f
			g.Backends = slices.Clone(f.Backends)
			change(&g)
			f = &g
			w.k.fail(func(c call) *fault {
				switch at := strings.Index(c.what, "paused4:"); {
				case at >= 0:
					out = append(out, "pause "+strings.TrimSuffix(c.what[at+len("paused4:"):], "]"))
				case strings.Contains(c.what, "change ipvs service"):
					out = append(out, "change")
				}
				if fails != nil {
					return fails(c)
				}
				return nil
			})
			w.set(f.Key, f)
			w.waitIdle()
			w.k.fail(nil)
			return out
		}
		for _, tc := range []struct {
			name   string
			change func(f *vip.Frontend)
			want   []string
		}{
			{"a new service", func(*vip.Frontend) {}, nil},
			{"a weight", func(f *vip.Frontend) { f.Backends[0].Weight = 2 }, nil},
			{"an affinity", func(f *vip.Frontend) { f.Affinity = 1e9 }, []string{"change"}},
			{"a scheduler", func(f *vip.Frontend) { f.Scheduler = vip.LeastConnection }, []string{"pause true", "change", "pause false"}},
			{"to mh", func(f *vip.Frontend) { f.Scheduler = vip.MaglevHash }, []string{"pause true", "change", "pause false"}},
		} {
			expect.SameList(t, steps(tc.change, nil), tc.want, tc.name)
		}
		noTable := func(c call) *fault {
			if c.kind == "nft transaction" {
				return &fault{err: unix.ENOBUFS}
			}
			return nil
		}
		got := steps(func(f *vip.Frontend) { f.Scheduler = vip.SourceHash }, noTable)
		expect.True(t, slices.Contains(got, "change"), "without a table: %q", got)
		w.checkApplied()
		w.stop()
		report(t, w, "at the end")
	})
}
