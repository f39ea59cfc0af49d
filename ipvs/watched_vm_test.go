//go:build linux && vm

package ipvs

import (
	"context"
	"fmt"
	"net/netip"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/ironvip/ironvip/internal/event"
	"github.com/ironvip/ironvip/internal/kernelplane/filter"
	"github.com/ironvip/ironvip/internal/reconcile"
	"github.com/ironvip/ironvip/internal/table"
	"github.com/ironvip/ironvip/test/netlab"
	"github.com/ironvip/ironvip/test/wait"
	"github.com/ironvip/ironvip/vip"
)

// Without any resync, every change by another program that the kernel reports is repaired at once, each time. Own changes
// cause no reading.
func TestChangesByOthersAreRepairedAtOnce(t *testing.T) {
	lab := netlab.New(t)
	p := newPlane(t, lab.Director)
	desired, applied := table.New(&table.Clock{}, vip.KeyOfFrontend, nil), table.New(&table.Clock{}, reconcile.KeyOfApplied, nil)
	events := event.NewLog(1000, time.Now)
	r := reconcile.New(reconcile.Options[vip.FrontendKey, vip.Frontend]{Desired: desired, Target: p, Applied: applied, Resync: -1, Events: events})
	ready := desired.Initializer()
	all := []*vip.Frontend{
		frontend("10.96.0.1:80", vip.TCP, addrs("10.77.1.2:80")...), frontend("10.96.0.1:53", vip.UDP, addrs("10.77.1.2:53")...),
		frontend("[fd96::1]:80", vip.TCP, addrs("[fd77:1::2]:80")...), frontend("10.96.0.2:80", vip.TCP),
	}
	ready()
	var running sync.WaitGroup
	ctx, cancel := context.WithCancel(t.Context())
	running.Go(func() { _ = r.Run(ctx) })
	t.Cleanup(func() { cancel(); running.Wait() })
	whole := func(when string) {
		t.Helper()
		wait.For(t, when, func() error {
			var missing []string
			lab.Director.Do(func() {
				state, err := p.device.Read()
				if err != nil || state.Fault != "" {
					missing = append(missing, fmt.Sprint("device ", state.Fault, err))
				}
				rules, err := filter.New(p.opt.Table, p.opt.Mark, &p.stats.nftMessages).Read(t.Context())
				if err != nil || !rules.Intact {
					missing = append(missing, fmt.Sprint("table ", err))
				}
				for _, f := range all {
					if _, there := state.Addrs[f.Key.Addr]; !there {
						missing = append(missing, f.Key.Addr.String())
					}
					if !rules.Has(filter.AddrElement(filter.SetVIPs, f.Key.Addr)) {
						missing = append(missing, "element of "+f.Key.Addr.String())
					}
				}
			})
			if len(missing) > 0 {
				return fmt.Errorf("missing: %v", missing)
			}
			return nil
		})
	}
	for range 10 {
		for _, f := range all {
			desired.Set(*f)
		}
		whole("programmed")
		for _, f := range all {
			desired.Delete(f.Key)
		}
		wait.Until(t, "removed", func() bool { return applied.Len() == 0 })
	}
	for _, f := range all {
		desired.Set(*f)
	}
	whole("programmed")
	started := r.Stats()
	if started.DriftRepairs != 0 {
		t.Errorf("%d repairs of own changes", started.DriftRepairs)
	}
	for i := range 10 {
		for _, a := range []string{"10.96.0.1/32", "fd96::1/128"} {
			began := time.Now()
			lab.Director.DelAddr("ironvip0", netip.MustParsePrefix(a))
			whole(fmt.Sprintf("%s was removed %d times", a, i+1))
			t.Logf("%s returned after %v", a, time.Since(began))
		}
	}
	for _, command := range []string{
		"ip link set ironvip0 down", "ip link set ironvip0 arp on", "ip link del ironvip0", "ip addr flush dev ironvip0",
		"nft delete table inet ironvip", "nft flush ruleset", "nft flush chain inet ironvip unserved",
	} {
		began := time.Now()
		run(t, lab.Director, strings.Fields(command)...)
		whole(command)
		t.Logf("%s: repaired after %v", command, time.Since(began))
	}
	if s := r.Stats(); s.LastResync != started.LastResync {
		t.Error("everything was read")
	}
	found, _ := events.Since(0)
	var last event.Event
	for _, e := range found {
		if e.Kind == "drift_repaired" {
			last = e
		}
	}
	if !strings.Contains(last.Message, "nftables table inet ironvip is missing or not as it should be, repaired; changed by nft (pid ") {
		t.Errorf("event %+v", last)
	}
	run(t, lab.Director, strings.Fields("nft delete element inet ironvip vips4 { 10.96.0.2 }")...)
	whole("an element was deleted")
	if s := r.Stats(); s.LastResync == started.LastResync {
		t.Error("nothing was read")
	}
}
