//go:build linux && vm

package ipvs

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"testing"

	"github.com/ironvip/ironvip/ipvs/internal/kernel"
	"github.com/ironvip/ironvip/plane/kernel/host"
	"github.com/ironvip/ironvip/plane/kernel/linux"
	"github.com/ironvip/ironvip/plane/reconcile"
	"github.com/ironvip/ironvip/test/expect"
	"github.com/ironvip/ironvip/test/must"
	"github.com/ironvip/ironvip/test/need"
	"github.com/ironvip/ironvip/test/netlab"
	"github.com/ironvip/ironvip/test/wait"
	"github.com/ironvip/ironvip/vip"
)

// ipvsadmNumbers reads a list of ipvsadm: five or two numbers at the end of each service's line
// and, under "service destination", of each destination's.
func ipvsadmNumbers(t *testing.T, node *netlab.Node, numbers int, args ...string) map[string][]uint64 {
	t.Helper()
	out := map[string][]uint64{}
	service := ""
	for i, line := range strings.Split(strings.TrimSpace(run(t, node, append([]string{"ipvsadm", "-Ln"}, args...)...)), "\n") {
		f := strings.Fields(line)
		if i < 3 || len(f) < 2 {
			continue
		}
		var name string
		if f[0] == "->" {
			name = service + " " + f[1]
		} else {
			service = strings.ToLower(f[0]) + " " + f[1]
			name = service
		}
		if f[0] != "->" && numbers == 2 {
			continue // it ends with the scheduler and its flags
		}
		var all []uint64
		for _, s := range f[len(f)-numbers:] {
			n, err := strconv.ParseUint(s, 10, 64)
			must.Succeed(t, err, "%q", line)
			all = append(all, n)
		}
		out[name] = all
	}
	return out
}

func counters5(t reconcile.Traffic) []uint64 {
	return []uint64{t.Connections, t.In.Packets, t.Out.Packets, t.In.Bytes, t.Out.Bytes}
}

func rates5(t reconcile.Traffic) []uint64 {
	return []uint64{t.Rates.Connections, t.Rates.In.Packets, t.Rates.Out.Packets, t.Rates.In.Bytes, t.Rates.Out.Bytes}
}

func shownName(key vip.FrontendKey) string {
	return key.Protocol.String() + " " + key.AddrPort().String()
}

// totalsAt reads the totals in the network namespace of a node, whose table of connections they need.
func totalsAt(t *testing.T, n *netlab.Node, p *Target, want func(vip.FrontendKey) bool) (all map[vip.FrontendKey]reconcile.Traffic, err error) {
	n.Do(func() { all, err = p.Totals(t.Context(), want) })
	return all, err
}

// compareShown compares our statistics with ipvsadm's and returns the difference. The kernel
// updates its counters every 2 s.
func (w *town) compareShown(t *testing.T, all []*vip.Frontend) error {
	t.Helper()
	stats := ipvsadmNumbers(t, w.Director, 5, "--stats", "--exact")
	rate := ipvsadmNumbers(t, w.Director, 5, "--rate", "--exact")
	conns := ipvsadmNumbers(t, w.Director, 2)
	totals := must.Get(totalsAt(t, w.Director, w.Target, everyFrontend))(t)
	if len(totals) != len(all) {
		return fmt.Errorf("%d frontends, want %d", len(totals), len(all))
	}
	for _, f := range all {
		total, ok := totals[f.Key]
		one, found, err := w.Breakdown(t.Context(), f.Key)
		if err != nil || !found || !ok || len(one.Endpoints) != len(f.Backends) {
			t.Fatalf("%s: in totals %v, found %v, %d endpoints, %v", f.Key, ok, found, len(one.Endpoints), err)
		}
		if one.Traffic != total {
			return fmt.Errorf("%s: alone %+v, among all %+v", f.Key, one.Traffic, total)
		}
		check := func(name string, got reconcile.Traffic) error {
			for what, pair := range map[string][2][]uint64{"counters": {counters5(got), stats[name]}, "rates": {rates5(got), rate[name]}} {
				if fmt.Sprint(pair[0]) != fmt.Sprint(pair[1]) {
					return fmt.Errorf("%s: %s are %v, ipvsadm says %v", name, what, pair[0], pair[1])
				}
			}
			return nil
		}
		if err := check(shownName(f.Key), total); err != nil {
			return err
		}
		var sum reconcile.Traffic
		for _, b := range f.Backends {
			name := shownName(f.Key) + " " + b.Addr.String()
			got := one.Endpoints[b.Addr]
			if err := check(name, got); err != nil {
				return err
			}
			want := conns[name]
			if f.Key.Protocol == vip.UDP {
				want = []uint64{want[0] + want[1], 0}
			}
			if fmt.Sprint([]uint64{got.Active, got.Inactive}) != fmt.Sprint(want) {
				return fmt.Errorf("%s: %d active and %d inactive connections, ipvsadm says %v", name, got.Active, got.Inactive, want)
			}
			sum.Add(got)
		}
		if sum.Active != total.Active || sum.Inactive != total.Inactive || sum.Connections != total.Connections || sum.In != total.In || sum.Out != total.Out {
			return fmt.Errorf("%s: the endpoints have %+v, the frontend %+v", f.Key, sum, total)
		}
	}
	return nil
}

// After real traffic over every protocol and family, our statistics equal ipvsadm's, for the
// whole node and for single frontends, while connections are open and after they are closed.
// Services by mark and without destinations make no difference.
func TestStatisticsAreThoseOfIpvsadm(t *testing.T) {
	w := newTown(t)
	var all []*vip.Frontend
	for _, p := range []vip.Protocol{vip.TCP, vip.UDP} {
		for _, at := range []string{"10.96.0.1:80", "[fd96::1]:80"} {
			all = append(all, w.serve(t, at, p, 2))
		}
	}
	all = append(all, w.serve(t, "10.96.0.2:80", vip.TCP, 0))
	runWith(t, w.Director, "-A -f 5 -s rr\n-a -f 5 -r 10.77.1.2:80 -m -w 3\n", "ipvsadm", "-R")
	want := map[vip.FrontendKey]uint64{}
	for i, f := range all[:4] {
		for range 3 + i {
			must.Get(w.Client.Ask(f.Key.Protocol.String(), f.Key.AddrPort()))(t)
			want[f.Key]++
		}
	}
	// Keep two open.
	for range 2 {
		c := must.Get(w.Client.Dial("tcp", all[0].Key.AddrPort()))(t)
		must.Get(c.Ask())(t)
		want[all[0].Key]++
	}
	wait.For(t, "what was asked is counted", func() error {
		totals := must.Get(totalsAt(t, w.Director, w.Target, everyFrontend))(t)
		for key, n := range want {
			got := totals[key]
			if got.Connections != n || got.In.Packets < n || got.Out.Packets < n || got.In.Bytes < 28*n || got.Out.Bytes < 28*n {
				return fmt.Errorf("%s: %+v after %d connections", key, got, n)
			}
		}
		if got := totals[all[0].Key]; got.Active != 2 || got.Inactive != want[all[0].Key]-2 {
			return fmt.Errorf("%s: %d active, %d inactive", all[0].Key, got.Active, got.Inactive)
		}
		if got := totals[all[2].Key]; got.Active != want[all[2].Key] || got.Inactive != 0 {
			return fmt.Errorf("%s: %d active, %d inactive", all[2].Key, got.Active, got.Inactive)
		}
		return nil
	})
	wait.For(t, "as ipvsadm shows it", func() error { return w.compareShown(t, all) })

	if _, found, err := w.Breakdown(t.Context(), addrPortKey("10.96.0.9:80", vip.TCP)); err != nil || found {
		t.Errorf("a frontend that isn't there: %v, %v", found, err)
	}

	// A frontend keeps the counters of a removed backend. A frontend that is deleted and added
	// again starts at 0.
	before, _, err := w.Breakdown(t.Context(), all[0].Key)
	must.Succeed(t, err)
	fewer := with(all[0], func(f *vip.Frontend) { f.Backends = f.Backends[:1] })
	w.change(t, all[0], fewer)
	after, _, err := w.Breakdown(t.Context(), all[0].Key)
	if err != nil || len(after.Endpoints) != 1 || after.Connections != before.Connections || after.In.Bytes < before.In.Bytes {
		t.Errorf("%+v after a backend left, before %+v, %v", after, before, err)
	}
	w.remove(t, fewer)
	w.Create(t, fewer)
	if again, _, err := w.Breakdown(t.Context(), all[0].Key); err != nil || again.Connections != 0 || again.In.Bytes != 0 {
		t.Errorf("%+v, %v of a frontend that was added again", again, err)
	}
}

// While services are added and deleted, statistics are complete or an error. No counter is
// counted twice.
func TestStatisticsWhileServicesComeAndGo(t *testing.T) {
	w := newTown(t)
	f := w.serve(t, "10.96.200.1:80", vip.TCP, 2)
	for range 3 {
		c := must.Get(w.Client.Dial("tcp", f.Key.AddrPort()))(t)
		must.Get(c.Ask())(t)
	}
	ctx, stop := context.WithCancel(t.Context())
	readings, seen := 0, 0
	var reader sync.WaitGroup
	reader.Go(func() {
		for ; ctx.Err() == nil; readings++ {
			all, err := totalsAt(t, w.Director, w.Target, everyFrontend)
			if err != nil {
				t.Error(err)
				return
			}
			if got, ok := all[f.Key]; ok {
				seen++
				if got.Active != 3 || got.Inactive != 0 {
					t.Errorf("%d active and %d inactive of 3 connections", got.Active, got.Inactive)
				}
			}
		}
	})
	defer reader.Wait()
	defer stop()
	rest := many(300, 2)
	for range 4 {
		w.createAll(t, rest)
		var gone []updateOf
		for _, f := range rest {
			gone = append(gone, updateOf{Key: f.Key, Old: f})
		}
		w.Put(t, gone...)
	}
	stop()
	reader.Wait()
	t.Logf("%d readings, it was in %d", readings, seen)
	expect.AtLeast(t, seen, readings/2, "the frontend that stayed was in %d of %d readings", seen, readings)
}

// Services of another network namespace make the kernel leave some of ours out of its table.
// Totals reports them anyway.
func TestStatisticsBesideAnotherNamespace(t *testing.T) {
	lab, other := netlab.New(t), netlab.New(t)
	beside := newPlane(t, other.Director)
	beside.createAll(t, many(20, 1))
	p := newPlane(t, lab.Director)
	all := many(200, 3)
	p.createAll(t, all)
	wait.For(t, "totals of all", func() error {
		totals, err := totalsAt(t, lab.Director, p.Target, everyFrontend)
		if err != nil || len(totals) != len(all) {
			return fmt.Errorf("%d totals of %d frontends, %v", len(totals), len(all), err)
		}
		return nil
	})
}

// Totals doesn't read foreign services of our namespace one by one if the table lacks them. They
// cost only their place in the dump.
func TestStatisticsBesideForeignServices(t *testing.T) {
	lab, other := netlab.New(t), netlab.New(t)
	for _, node := range []*netlab.Node{lab.Director, other.Director} {
		// Linux 6.12 crashes in ip_vs_estimation_kthread with hundreds of services on a processor as slow as an emulated
		// one. This test reads no counters.
		if canStopCounters() {
			node.Sysctl("ipv4/vs/run_estimation", "0")
		}
	}
	newPlane(t, other.Director).createAll(t, many(250, 1)) // in nearly all of the 256 buckets that the kernel walks
	p := newPlane(t, lab.Director)
	ours := frontend("10.96.0.1:80", vip.TCP, addrPort("10.77.1.2:8080"))
	p.Create(t, ours)
	var foreign strings.Builder
	for i := range 300 {
		fmt.Fprintf(&foreign, "-A -t 192.0.2.%d:%d -s rr\n", i%250+1, 80+i/250)
	}
	runWith(t, lab.Director, foreign.String(), "ipvsadm", "-R")
	var table map[kernel.ServiceID]kernel.Live
	var err error
	lab.Director.Do(func() { table, err = p.statsReader.conns() })
	if err != nil || len(table) > 300 {
		t.Fatalf("the table has %d of 301 services, %v: this test needs one that lacks some", len(table), err)
	}
	before := p.Stats().DumpsSent
	all, err := totalsAt(t, lab.Director, p.Target, func(k vip.FrontendKey) bool { return k == ours.Key })
	if _, ok := all[ours.Key]; err != nil || !ok || len(all) != 1 {
		t.Errorf("%d services, %v, want ours alone", len(all), err)
	}
	if n := p.Stats().DumpsSent - before; n > 2 {
		t.Errorf("%d queries, want one of all and at most one of ours; the table has %d of 301 services", n, len(table))
	}
}

// needRunEstimation skips the test on a kernel whose counters can't be stopped.
func needRunEstimation(t *testing.T) {
	t.Helper()
	need.KernelFeature(t, linux.RunEstimation, canStopCounters())
}

func canStopCounters() bool {
	_, err := os.Stat(filepath.Join(host.ProcSysNet, estimationOff.Key))
	return err == nil
}
