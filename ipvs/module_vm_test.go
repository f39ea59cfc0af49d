//go:build linux && vm

package ipvs

import (
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/ironvip/ironvip/nft"
	"github.com/ironvip/ironvip/plane/kernel/filter"
	"github.com/ironvip/ironvip/plane/kernel/host"
	"github.com/ironvip/ironvip/test/expect"
	"github.com/ironvip/ironvip/test/must"
	"github.com/ironvip/ironvip/test/netlab"
	"github.com/ironvip/ironvip/test/wait"
	"github.com/ironvip/ironvip/vip"
)

// This file must come after the files that use moby/ipvs. The package moby/ipvs looks up the number
// of the kernel's IPVS family once per process, and the number changes when the module is unloaded
// and loaded again.

// module is a kernel module's file.
func module(t *testing.T, name string) string {
	t.Helper()
	var found string
	filepath.WalkDir("/lib/modules", func(path string, _ fs.DirEntry, _ error) error {
		if strings.TrimSuffix(filepath.Base(path), ".ko") == name {
			found = path
		}
		return nil
	})
	must.True(t, found != "", "no file of module %s", name)
	return found
}

func insertModule(t *testing.T, name string) {
	t.Helper()
	f := must.Get(os.Open(module(t, name)))(t)
	defer f.Close()
	if err := unix.FinitModule(int(f.Fd()), "", 0); err != nil && err != unix.EEXIST {
		t.Fatalf("insert %s: %v", name, err)
	}
}

// removeModule unloads a module. It waits for users of the module: the kernel removes the
// namespaces of earlier tests, with thousands of services, with a delay.
func removeModule(t *testing.T, name string) {
	t.Helper()
	insertable := module(t, name)
	wait.For(t, fmt.Sprintf("remove %s (%s)", name, insertable), func() error { return unix.DeleteModule(name, unix.O_NONBLOCK) })
}

// A scheduler that isn't loaded is reported, and only its service is missing. An existing service
// remains. Once the scheduler is loaded, everything is applied.
func TestSchedulerNotLoaded(t *testing.T) {
	lab := netlab.New(t)
	p := newPlane(t, lab.Director)
	t.Cleanup(func() { insertModule(t, "ip_vs_lc") })
	removeModule(t, "ip_vs_lc")
	l := newLoop(t, p, -1)
	all := aFew()
	l.Set(all[0])
	l.waitApplied()
	lacks := func(f *vip.Frontend) { f.Scheduler = vip.LeastConnection }
	l.Set(with(all[0], lacks), all[1], with(all[3], lacks))
	for _, f := range []*vip.Frontend{all[0], all[3]} {
		l.WaitReported(f.Key, "the kernel has no scheduler \"lc\"")
		l.WaitReported(f.Key, "modprobe ip_vs_lc")
	}
	l.witness(*all[0], *all[1])
	insertModule(t, "ip_vs_lc")
	l.waitApplied()
}

// ip_vs is unloaded under a running agent, with all of its state, and loaded again. Meanwhile the
// status reports it, and afterwards everything is applied.
func TestModuleGoesAndComesBack(t *testing.T) {
	lab := netlab.New(t)
	p := newPlane(t, lab.Director)
	services := hook(&p.kernel.Socket)
	l := newLoop(t, p, 200*time.Millisecond)
	all := aFew()
	l.Set(all...)
	l.waitApplied()

	loaded := must.Get(os.ReadFile("/proc/modules"))(t)
	var schedulers []string
	for line := range strings.Lines(string(loaded)) {
		if name := strings.Fields(line)[0]; strings.HasPrefix(name, "ip_vs_") {
			schedulers = append(schedulers, name)
		}
	}
	comeBack := func() {
		insertModule(t, "ip_vs")
		for _, s := range schedulers {
			insertModule(t, s)
		}
	}
	t.Cleanup(comeBack)
	// The agent would put the services back, and they keep the module.
	hold, stopped := make(chan struct{}), make(chan struct{})
	goOn := sync.OnceFunc(func() { close(hold) })
	defer goOn()
	wait := func() { close(stopped); <-hold }
	services.before.Store(&wait)
	l.Set(with(all[0], func(f *vip.Frontend) { f.Backends[0].Weight = 9 }))
	<-stopped
	run(t, lab.Director, "ipvsadm", "-C")
	for _, s := range schedulers {
		removeModule(t, s)
	}
	removeModule(t, "ip_vs")
	goOn()
	l.WaitReported(all[0].Key, "modprobe ip_vs")
	l.Set(with(all[1], func(f *vip.Frontend) { f.Backends[0].Weight = 9 }))
	l.WaitReported(all[1].Key, "IPVS")
	comeBack()
	l.waitApplied()
}

// findingOf returns the finding of a name among those of a check in a node.
func findingOf(t *testing.T, check func() []host.Finding, node *netlab.Node, name string) (f host.Finding, all []host.Finding) {
	t.Helper()
	node.Do(func() { all = check() })
	i := slices.IndexFunc(all, func(f host.Finding) bool { return f.Name == name })
	must.AtLeast(t, i, 0, "no finding %q: %+v", name, all)
	return all[i], all
}

// The checks of both dataplanes in the kernel report each missing module with the command that loads it,
// and no problem once it is loaded. They leave nothing behind.
func TestCheckNamesMissingModules(t *testing.T) {
	lab := netlab.New(t)
	rules, links := run(t, lab.Director, "nft", "list ruleset"), run(t, lab.Director, "ip", "-br", "link")
	type check func() []host.Finding
	ours, nfts := check(func() []host.Finding { return Check(false) }), check(nft.Check)
	once := func() (all []host.Finding) { // for the services that need it
		for _, trial := range filter.LimitTrials(&vip.Frontend{SynProxy: true, SourceLimits: vip.SourceLimits{MaxConnectionsPerSource: 1, MaxRatePerSource: 1}}) {
			all = append(all, trial.Try(t.Context()))
		}
		return all
	}
	for _, c := range []struct {
		module   string
		required bool
		checks   []check
	}{
		{"nft_ct", true, []check{ours, nfts}}, {"nft_fib_inet", true, []check{ours, nfts}}, {"nft_masq", true, []check{ours, nfts}},
		{"nft_reject_inet", true, []check{ours, nfts}}, {"nft_chain_nat", true, []check{ours, nfts}},
		{"nft_nat", true, []check{nfts}}, {"nft_numgen", true, []check{nfts}}, {"nft_hash", true, []check{nfts}},
		{"nft_connlimit", true, []check{once}}, {"nft_limit", true, []check{once}}, {"nft_synproxy", true, []check{once}},
		{"nf_conntrack_netlink", false, []check{ours, nfts}},
	} {
		module, required := c.module, c.required
		t.Run(module, func(t *testing.T) {
			t.Cleanup(func() { insertModule(t, module) })
			removeModule(t, module)
			for _, check := range c.checks {
				f, all := findingOf(t, check, lab.Director, "kernel module "+module)
				if f.OK || f.Unknown || f.Required != required || f.Remedy != "modprobe "+module || f.Detail == "" {
					t.Errorf("without it: %+v", f)
				}
				if err := host.Err(all); (err != nil) != required || required && !strings.Contains(err.Error(), "the dataplane needs kernel module "+module+": ") {
					t.Errorf("without it: %v", err)
				}
				for _, f := range all {
					if f.Required && !f.OK && f.Name != "kernel module "+module {
						t.Errorf("without %s: %+v", module, f)
					}
				}
			}
			insertModule(t, module)
			for _, check := range c.checks {
				if f, all := findingOf(t, check, lab.Director, "kernel module "+module); !f.OK || f.Remedy != "" || host.Err(all) != nil {
					t.Errorf("with it: %+v, %v", f, host.Err(all))
				}
			}
		})
	}
	expect.Equal(t, run(t, lab.Director, "nft", "list ruleset"), rules, "the rules")
	expect.Equal(t, run(t, lab.Director, "ip", "-br", "link"), links, "the devices")
}

// A running agent that must rebuild its table without a module reports the module until it is
// loaded, and then serves.
func TestTableNeedsAModule(t *testing.T) {
	for _, name := range []string{"nft_fib_inet", "nft_masq", "nft_ct", "nft_reject_inet", "nft_chain_nat"} {
		t.Run(name, func(t *testing.T) {
			lab := netlab.New(t)
			t.Cleanup(func() { insertModule(t, name) })
			removeModule(t, name)
			p := newPlane(t, lab.Director) // afterwards, it holds connections with some of the modules
			l := newLoop(t, p, 200*time.Millisecond)
			all := aFew()
			l.Set(all...)
			for _, f := range all {
				l.WaitReported(f.Key, "the dataplane needs kernel module "+name)
			}
			for range 5 {
				got := l.Stats().TargetError
				must.True(t, strings.Contains(got, name), "the dataplane's error is %q, but nothing was loaded", got)
				time.Sleep(50 * time.Millisecond)
			}
			insertModule(t, name)
			l.waitApplied()
		})
	}
}

// Without ctnetlink a frontend is served, and a finding reports the module while it is missing.
func TestConntrackNetlinkMissing(t *testing.T) {
	lab := netlab.New(t)
	t.Cleanup(func() { insertModule(t, "nf_conntrack_netlink") })
	removeModule(t, "nf_conntrack_netlink")
	p := newPlane(t, lab.Director)
	bad := func() string {
		for _, f := range p.Findings() {
			if !f.OK && f.Name == "kernel module nf_conntrack_netlink" {
				return f.Remedy
			}
		}
		return ""
	}
	expect.Equal(t, bad(), "modprobe nf_conntrack_netlink", "the remedy at the start")
	f := frontend("10.96.0.1:53", vip.UDP, addrs("10.77.1.2:53", "10.77.2.2:53")...)
	p.Create(t, f)
	fewer := with(f, func(f *vip.Frontend) { f.Backends = f.Backends[:1] })
	p.change(t, f, fewer)
	expect.True(t, bad() != "", "no finding after a backend was removed")
	insertModule(t, "nf_conntrack_netlink")
	p.change(t, fewer, f)
	p.change(t, f, fewer)
	expect.Equal(t, bad(), "", "the remedy with the module")
}
