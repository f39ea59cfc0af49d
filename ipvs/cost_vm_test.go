//go:build linux && vm

package ipvs

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/ironvip/ironvip/test/expect"
	"github.com/ironvip/ironvip/test/must"
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
		must.Succeed(t, p.Apply(t.Context(), batch))
		for _, u := range batch {
			must.Succeed(t, u.Err)
		}
		all = all[n:]
	}
}

// A change costs the same with 10 services and with 200.
func TestOneChangeCostsTheSame(t *testing.T) {
	changes := []struct {
		name   string
		change func(*vip.Frontend)
		writes uint64 // IPVS messages for the change and its reversal
		nft    uint64 // nftables messages for both
	}{
		{"weight", func(f *vip.Frontend) { f.Backends[1].Weight = 7 }, 2, 0},
		{"scheduler", func(f *vip.Frontend) { f.Scheduler = vip.LeastConnection }, 2, 0},
		{"backend", func(f *vip.Frontend) { f.Backends = f.Backends[1:] }, 2, 0},
		{"affinity", func(f *vip.Frontend) { f.Affinity = time.Hour }, 2, 0},
		{"a source range more", func(f *vip.Frontend) { f.SourceRanges = prefixes("192.0.2.0/24", "203.0.113.0/24") }, 0, 3},
		{"another source range", func(f *vip.Frontend) { f.SourceRanges = prefixes("203.0.113.0/24") }, 0, 6},
	}
	allocations := map[string]float64{}
	for _, size := range []int{10, 200} {
		lab := netlab.New(t)
		p := newPlane(t, lab.Director)
		all := many(size, 10)
		for _, f := range all {
			f.SourceRanges = prefixes("192.0.2.0/24")
		}
		p.createAll(t, all)
		for _, c := range changes {
			f, g := all[5], with(all[5], c.change)
			before, addresses := p.Stats(), p.VIPs.Writes()
			const rounds = 20
			n := testing.AllocsPerRun(rounds, func() { p.change(t, f, g); p.change(t, g, f) })
			after := p.Stats()
			if w := after.WritesSent - before.WritesSent; w != c.writes*(rounds+1) {
				t.Errorf("%d services: %s there and back cost %.1f messages", size, c.name, float64(w)/(rounds+1))
			}
			if n := after.NFTMessages - before.NFTMessages; n != c.nft*(rounds+1) {
				t.Errorf("%d services: %s there and back cost %.1f nftables messages", size, c.name, float64(n)/(rounds+1))
			}
			if p.VIPs.Writes() != addresses || after.DumpsSent != before.DumpsSent {
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

// Services that are programmed in bulk look in ipvsadm -Sn exactly like those that ipvsadm -R
// makes of the same rules. They take few sends.
func TestProgramsInBulkAsIpvsadmDoes(t *testing.T) {
	const services, backends = 100, 10
	all := many(services, backends)
	theirs := netlab.New(t).Director
	runWith(t, theirs, asRules(all), "ipvsadm", "-R")
	want := run(t, theirs, "ipvsadm", "-Sn")

	lab := netlab.New(t)
	p := newPlane(t, lab.Director)
	before := p.Stats()
	p.createAll(t, all)
	after := p.Stats()
	expect.Equal(t, run(t, lab.Director, "ipvsadm", "-Sn"), want, "programmed services")
	messages, sends := after.WritesSent-before.WritesSent, after.SendsDone-before.SendsDone
	if messages != services*(1+backends)+1 || sends > messages/100 {
		t.Errorf("%d messages, one of them for the timeout, took %d sends", messages, sends)
	}
}

// asRules returns the services of all in the form that ipvsadm -R reads.
func asRules(all []*vip.Frontend) string {
	var rules strings.Builder
	for _, f := range all {
		fmt.Fprintf(&rules, "-A -t %s -s %s\n", f.Key.AddrPort(), f.Scheduler)
		for _, b := range f.Backends {
			fmt.Fprintf(&rules, "-a -t %s -r %s -m -w %d\n", f.Key.AddrPort(), b.Addr, b.Weight)
		}
	}
	return rules.String()
}
