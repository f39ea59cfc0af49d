//go:build linux && vm

package ipvs

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/ironvip/ironvip/test/netlab"
	"github.com/ironvip/ironvip/vip"
)

func repairOf(f *vip.Frontend) updateOf {
	return updateOf{Key: f.Key, Old: f, New: f, Repair: true}
}

// createAll applies in batches, as the reconciler does.
func (p *planeIn) createAll(t testing.TB, all []*vip.Frontend) {
	t.Helper()
	for len(all) > 0 {
		n := min(512, len(all))
		batch := make([]updateOf, n)
		for i, f := range all[:n] {
			batch[i] = updateOf{Key: f.Key, New: f}
		}
		if err := p.Apply(t.Context(), batch); err != nil {
			t.Fatal(err)
		}
		for _, u := range batch {
			if u.Err != nil {
				t.Fatal(u.Err)
			}
		}
		all = all[n:]
	}
}

// One change costs the same whether there are 10 services or 5,000.
func TestOneChangeCostsTheSame(t *testing.T) {
	changes := []struct {
		name   string
		change func(*vip.Frontend)
		writes uint64 // there and back
	}{
		{"weight", func(f *vip.Frontend) { f.Backends[1].Weight = 7 }, 2},
		{"scheduler", func(f *vip.Frontend) { f.Scheduler = vip.LeastConnection }, 2},
		{"backend", func(f *vip.Frontend) { f.Backends = f.Backends[1:] }, 2},
		{"affinity", func(f *vip.Frontend) { f.Affinity = time.Hour }, 2},
	}
	allocations := map[string]float64{}
	for _, size := range []int{10, 5000} {
		lab := netlab.New(t)
		p := newPlane(t, lab.Director)
		all := many(size, 10)
		p.createAll(t, all)
		for _, c := range changes {
			f, g := all[5], with(all[5], c.change)
			before := p.Stats()
			const rounds = 20
			n := testing.AllocsPerRun(rounds, func() { p.change(t, f, g); p.change(t, g, f) })
			after := p.Stats()
			if w := after.WritesSent - before.WritesSent; w != c.writes*(rounds+1) {
				t.Errorf("%d services: %s there and back cost %.1f messages", size, c.name, float64(w)/(rounds+1))
			}
			if after.Writes() != before.Writes()+after.WritesSent-before.WritesSent || after.DumpsSent != before.DumpsSent {
				t.Errorf("%d services: %s cost more than ipvs messages: %+v, before %+v", size, c.name, after, before)
			}
			if small := allocations[c.name]; small > 0 && n > 1.5*small {
				t.Errorf("%s: %.0f allocations among %d services, %.0f among 10", c.name, n, size, small)
			}
			allocations[c.name] = n
		}
		lab.Director.Netlink.Close()
	}
	t.Logf("allocations of a change there and back: %v", allocations)
}

// programming is how long the same rules take in the same boot. Deleted
// destinations slow later adds, so each way has a namespace of its own. The hash
// table of services and the estimators' time are shared by all namespaces, so
// each is cleared before the next is timed.
type programming struct {
	ipvsadm time.Duration // ipvsadm -R
	ipvs    time.Duration // our messages, for the services alone as ipvsadm does
	whole   time.Duration // Apply, with addresses and filters
	read    time.Duration // Actual
	sends   uint64
}

func program(t testing.TB, services, backends int) programming {
	t.Helper()
	var p programming
	all := many(services, backends)
	var rules strings.Builder
	for _, f := range all {
		fmt.Fprintf(&rules, "-A -t %s -s %s\n", f.Key.AddrPort(), f.Scheduler)
		for _, b := range f.Backends {
			fmt.Fprintf(&rules, "-a -t %s -r %s -m -w %d\n", f.Key.AddrPort(), b.Addr, b.Weight)
		}
	}
	theirs := netlab.New(t)
	start := time.Now()
	runWith(t, theirs.Director, rules.String(), "ipvsadm", "-R")
	p.ipvsadm = time.Since(start)
	made := run(t, theirs.Director, "ipvsadm", "-Sn")
	run(t, theirs.Director, "ipvsadm", "-C")

	lab := netlab.New(t)
	ours := newPlane(t, lab.Director)
	start = time.Now()
	var ops []op
	for i, f := range all {
		want := desired(f)
		ops = plan(ops, i, nil, &want)
	}
	err := ours.kernel.run(t.Context(), ops, func(i int, err error) {
		if err != nil {
			t.Errorf("%s: %v", &ops[i], err)
		}
	})
	if err != nil {
		t.Fatal(err)
	}
	p.ipvs = time.Since(start)
	if run(t, lab.Director, "ipvsadm", "-Sn") != made {
		t.Error("what we programmed is not what ipvsadm did")
	}
	run(t, lab.Director, "ipvsadm", "-C")

	full := newPlane(t, netlab.New(t).Director)
	start = time.Now()
	full.createAll(t, all)
	p.whole = time.Since(start)
	p.sends = full.Stats().SendsDone
	start = time.Now()
	if n := len(full.read(t)); n != services {
		t.Errorf("read back %d services, want %d", n, services)
	}
	p.read = time.Since(start)
	return p
}

// What is programmed in bulk is, to the byte of ipvsadm -Sn, what ipvsadm -R
// makes of the same rules, and goes to the kernel in few sends.
func TestProgramsInBulkAsIpvsadmDoes(t *testing.T) {
	const services, backends = 1000, 10
	p := program(t, services, backends)
	if messages := uint64(services * (1 + backends)); p.sends > messages/100 {
		t.Errorf("%d messages took %d sends", messages, p.sends)
	}
}

// Absolute times in an emulated machine say little, the ratios more: how many
// times faster than ipvsadm -R with the same rules.
func BenchmarkProgram5000(b *testing.B) {
	for range b.N {
		p := program(b, 5000, 10)
		b.ReportMetric(float64(p.ipvsadm)/float64(p.ipvs), "ipvsadm/services")
		b.ReportMetric(float64(p.ipvsadm)/float64(p.whole), "ipvsadm/everything")
		b.ReportMetric(p.ipvs.Seconds(), "s/services")
		b.ReportMetric(p.whole.Seconds(), "s/everything")
		b.ReportMetric(p.read.Seconds(), "s/reading")
		b.ReportMetric(float64(p.sends), "sends")
	}
}

// One weight among 5,000 services, through Apply.
func BenchmarkChangeOneOf5000(b *testing.B) {
	p := newPlane(b, netlab.New(b).Director)
	all := many(5000, 10)
	p.createAll(b, all)
	f, g := all[5], with(all[5], func(f *vip.Frontend) { f.Backends[1].Weight = 7 })
	b.ReportAllocs()
	for b.Loop() {
		p.change(b, f, g)
		f, g = g, f
	}
}
