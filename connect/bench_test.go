package connect

import (
	"net/netip"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/ironvip/ironvip/plane/reconcile"
	"github.com/ironvip/ironvip/test/must"
	"github.com/ironvip/ironvip/vip"
)

// BenchmarkApply adds 5,000 frontends with 10 backends each, reads them, and changes one backend of each.
func BenchmarkApply(b *testing.B) {
	l := newLab(b)
	var fleet, changed []reconcile.Update[vip.FrontendKey, vip.Frontend]
	for i := range 5000 {
		f := &vip.Frontend{Key: vip.FrontendKey{Addr: netip.AddrFrom4([4]byte{192, 0, byte(i >> 8), byte(i)}), Port: 80, Protocol: vip.TCP},
			Kind: vip.OnVIP, Scheduler: vip.WeightedRoundRobin}
		for j := range 10 {
			f.Backends = append(f.Backends, vip.Endpoint{Addr: netip.AddrPortFrom(netip.AddrFrom4([4]byte{10, byte(i >> 8), byte(i), byte(j)}), 80), Weight: 1})
		}
		g := *f
		g.Backends = f.Backends[1:]
		fleet = append(fleet, reconcile.Update[vip.FrontendKey, vip.Frontend]{Key: f.Key, New: f})
		changed = append(changed, reconcile.Update[vip.FrontendKey, vip.Frontend]{Key: f.Key, Old: f, New: &g})
	}
	for b.Loop() {
		for _, step := range []struct {
			name string
			run  func()
		}{
			{"add", func() { must.Succeed(b, l.Apply(b.Context(), fleet)) }},
			{"read", func() { must.Len(b, l.actual(), len(fleet)) }},
			{"change", func() { must.Succeed(b, l.Apply(b.Context(), changed)) }},
		} {
			before := cpuTime(b)
			step.run()
			b.ReportMetric((cpuTime(b)-before)*1e3, step.name+"-ms")
		}
	}
}

// cpuTime returns the CPU time of this process, in seconds.
func cpuTime(t testing.TB) float64 {
	var u unix.Rusage
	must.Succeed(t, unix.Getrusage(unix.RUSAGE_SELF, &u))
	return float64(u.Utime.Nano()+u.Stime.Nano()) / 1e9
}
