//go:build linux && vm

package ipvs

import (
	"testing"
	"time"

	"github.com/ironvip/ironvip/ipvs/internal/kernel"
	"github.com/ironvip/ironvip/test/must"
	"github.com/ironvip/ironvip/test/netlab"
	"github.com/ironvip/ironvip/vip"
)

// The time to program 100 mh services of 10 backends, relative to the time of our plan: with mh
// from the start, and with wrr until all backends are added. The third ratio compares our plan
// with wrr alone.
func BenchmarkProgramMaglev(b *testing.B) {
	all := many(100, 10)
	for _, f := range all {
		f.Scheduler = vip.MaglevHash
	}
	timed := func(plans func(want *kernel.State) []op) (time.Duration, int) {
		p := newPlane(b, netlab.New(b).Director)
		var ops []op
		for _, f := range all {
			want := desired(f, 0)
			ops = append(ops, plans(&want)...)
		}
		start := time.Now()
		err := runOps(b.Context(), p.kernel, ops, func(i int, err error) {
			if err != nil {
				b.Errorf("%s: %v", &ops[i], err)
			}
		})
		must.Succeed(b, err)
		d := time.Since(start)
		run(b, p.Node, "ipvsadm", "-C")
		return d, len(ops)
	}
	as := func(first string, then bool) func(want *kernel.State) []op {
		return func(want *kernel.State) []op {
			begun := want.Service
			begun.Scheduler = first
			ops := []op{{cmd: kernel.CmdNewService, service: &begun}}
			for _, d := range want.Dests {
				ops = append(ops, op{cmd: kernel.CmdNewDest, service: &begun, dest: d})
			}
			if then {
				ops = append(ops, op{cmd: kernel.CmdSetService, service: &want.Service})
			}
			return ops
		}
	}
	timed(as(maglev, false)) // the first run is slower than all later ones
	for range b.N {
		ours, messages := timed(func(want *kernel.State) []op { return plan(nil, 0, nil, want) })
		direct, fewer := timed(as(maglev, false))
		exchanged, _ := timed(as("wrr", true))
		weighted, _ := timed(as("wrr", false))
		b.ReportMetric(float64(direct)/float64(ours), "mh-from-the-start/ours")
		b.ReportMetric(float64(exchanged)/float64(ours), "wrr-first/ours")
		b.ReportMetric(float64(ours)/float64(weighted), "ours/wrr-alone")
		b.ReportMetric(float64(messages), "messages")
		b.ReportMetric(float64(fewer), "messages-from-the-start")
		b.ReportMetric(ours.Seconds()*1000, "ms/ours")
	}
}
