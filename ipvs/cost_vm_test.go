//go:build linux && vm

package ipvs

import (
	"fmt"
	"runtime"
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

// Programming 5,000 services with 10 backends each, against ipvsadm -R with the
// same rules in the same boot. Deleted destinations slow later adds, so each
// has a namespace of its own.
func TestProgrammingIsFast(t *testing.T) {
	const services, backends = 5000, 10
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
	ipvsadm := time.Since(start)

	// The services alone, as ipvsadm does.
	ours := netlab.New(t)
	p := newPlane(t, ours.Director)
	start = time.Now()
	var ops []op
	for i, f := range all {
		want := desired(f)
		ops = plan(ops, i, nil, &want)
	}
	err := p.kernel.run(t.Context(), ops, func(i int, err error) {
		if err != nil {
			t.Errorf("%s: %v", &ops[i], err)
		}
	})
	if err != nil {
		t.Fatal(err)
	}
	services_ := time.Since(start)
	if a, b := run(t, ours.Director, "ipvsadm", "-Sn"), run(t, theirs.Director, "ipvsadm", "-Sn"); a != b {
		t.Error("the two are not alike")
	}

	// All of it, with addresses and filters; then the reading at a start.
	full := newPlane(t, netlab.New(t).Director)
	var m0, m1 runtime.MemStats
	runtime.ReadMemStats(&m0)
	start = time.Now()
	full.createAll(t, all)
	whole := time.Since(start)
	runtime.ReadMemStats(&m1)
	start = time.Now()
	n := len(full.read(t))
	reading := time.Since(start)
	if n != services {
		t.Errorf("read %d services", n)
	}
	ratio, ratioWhole := float64(ipvsadm)/float64(services_), float64(ipvsadm)/float64(whole)
	t.Logf("%d services with %d backends: ipvsadm -R %v; our ipvs messages %v (%.1f times faster); "+
		"with addresses and filters %v (%.1f times faster, %d sends, %.1f MB allocated); read back in %v",
		services, backends, ipvsadm, services_, ratio, whole, ratioWhole, full.Stats().SendsDone,
		float64(m1.TotalAlloc-m0.TotalAlloc)/1e6, reading)
	if ratio < 5 {
		t.Errorf("ipvs messages are only %.1f times faster than ipvsadm -R, want 5", ratio)
	}
}
