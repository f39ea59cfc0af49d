//go:build linux && vm

package ipvs

import (
	"encoding/hex"
	"fmt"
	"maps"
	"math/rand/v2"
	"net"
	"net/netip"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/ironvip/ironvip/ipvs/internal/kernel"
	"github.com/ironvip/ironvip/test/expect"
	"github.com/ironvip/ironvip/test/must"
	"github.com/ironvip/ironvip/test/netlab"
	"github.com/ironvip/ironvip/test/seed"
	"github.com/ironvip/ironvip/test/wait"
	"github.com/ironvip/ironvip/vip"
)

// crowd has the addresses of clients without a device of their own.
var crowd = netip.MustParsePrefix("10.200.0.0/16")

// choices sends a datagram from each of n clients to at. It returns the backend that the director
// chose for each.
func choices(t *testing.T, lab *netlab.Lab, at netip.AddrPort, n int) map[netip.Addr]netip.AddrPort {
	t.Helper()
	run(t, lab.Client, "ip", "route", "replace", "local", crowd.String(), "dev", "lo")
	lab.Client.Do(func() {
		for i := range n {
			d := net.Dialer{LocalAddr: &net.UDPAddr{IP: nth(crowd, i+1).AsSlice()}}
			c := must.Get(d.Dial("udp", at.String()))(t)
			c.Write([]byte("?\n")) // the answer doesn't matter
			c.Close()
		}
	})
	all := map[netip.Addr]netip.AddrPort{}
	wait.Until(t, "all clients are scheduled", func() bool {
		clear(all)
		var table []byte
		var err error
		lab.Director.Do(func() { table, err = os.ReadFile("/proc/thread-self/net/ip_vs_conn") })
		must.Succeed(t, err)
		for line := range strings.Lines(string(table)) {
			f := strings.Fields(line) // protocol, client, its port, ours, its port, backend, its port, ...
			if len(f) < 7 || f[0] != "UDP" || hexAddr(t, f[3]) != at.Addr() {
				continue
			}
			var port uint16
			fmt.Sscanf(f[6], "%X", &port)
			all[hexAddr(t, f[1])] = netip.AddrPortFrom(hexAddr(t, f[5]), port)
		}
		return len(all) == n
	})
	return all
}

func hexAddr(t *testing.T, s string) netip.Addr {
	t.Helper()
	b, err := hex.DecodeString(s)
	a, ok := netip.AddrFromSlice(b)
	if err != nil || !ok {
		t.Fatalf("%q is not an address", s)
	}
	return a
}

// differences counts the clients with different backends.
func differences(a, b map[netip.Addr]netip.AddrPort) (n int) {
	for c, to := range a {
		if b[c] != to {
			n++
		}
	}
	return n
}

// fleet returns n addresses of backends that are routed to backend1. None of them answers.
func fleet(n int) []netip.AddrPort {
	var all []netip.AddrPort
	for i := range n {
		all = append(all, netip.AddrPortFrom(netip.AddrFrom4([4]byte{10, 77, 1, byte(10 + i)}), 8080))
	}
	return all
}

// The kernel sends some clients to other backends if the same destinations were added in another
// order. So the order of additions matters.
func TestOrderOfAddingMatters(t *testing.T) {
	const clients = 300
	for _, sched := range []string{"mh", "sh"} {
		chosen := func(backends []netip.AddrPort) map[netip.Addr]netip.AddrPort {
			lab := netlab.New(t)
			lab.Director.AddAddr("lo", netip.MustParsePrefix("10.96.0.1/32"))
			rules := "-A -u 10.96.0.1:53 -s " + sched + "\n"
			for _, b := range backends {
				rules += fmt.Sprintf("-a -u 10.96.0.1:53 -r %s -m -w %d\n", b, 1+b.Addr().As4()[3]%2)
			}
			runWith(t, lab.Director, rules, "ipvsadm", "-R")
			return choices(t, lab, netip.MustParseAddrPort("10.96.0.1:53"), clients)
		}
		up := fleet(10)
		down := slices.Clone(up)
		slices.Reverse(down)
		a, b, again := chosen(up), chosen(down), chosen(up)
		t.Logf("%s: another order of adding: %d of %d clients go elsewhere", sched, differences(a, b), clients)
		expect.True(t, differences(a, b) != 0, "%s: the order doesn't matter", sched)
		expect.Equal(t, differences(a, again), 0, "%s: clients that go elsewhere with the same order", sched)
	}
}

// Directors with the same backends choose the same backend for every client, in whatever steps
// they got the backends.
func TestDirectorsAgree(t *testing.T) {
	const clients = 300
	for _, sched := range []vip.Scheduler{vip.MaglevHash, vip.SourceHash} {
		t.Run(sched.String(), func(t *testing.T) {
			final := frontend("10.96.0.1:53", vip.UDP, fleet(10)...)
			final.Scheduler, final.SchedulerFallback = sched, true
			for i := range final.Backends {
				final.Backends[i].Weight = uint16(i % 3)
			}
			subset := func(r *rand.Rand) *vip.Frontend {
				return with(final, func(f *vip.Frontend) {
					f.Backends = slices.DeleteFunc(f.Backends, func(vip.Endpoint) bool { return r.IntN(2) == 0 })
					for i := range f.Backends {
						f.Backends[i].Weight = uint16(r.Uint32N(3))
					}
				})
			}
			histories := map[string]func(p *planeIn){
				"made at once": func(p *planeIn) { p.Create(t, final) },
				"from another scheduler": func(p *planeIn) {
					r := rand.New(rand.NewPCG(7, 7))
					old := with(final, func(f *vip.Frontend) { f.Scheduler, f.Backends = vip.RoundRobin, nil })
					p.Create(t, old)
					for _, i := range r.Perm(len(final.Backends)) {
						next := with(old, func(f *vip.Frontend) {
							f.Backends = append(f.Backends, final.Backends[i])
							slices.SortFunc(f.Backends, vip.CompareEndpoints)
						})
						p.change(t, old, next)
						old = next
					}
					p.change(t, old, final)
				},
				"shuffled by hand while no agent ran": func(p *planeIn) {
					rules := "-A -u 10.96.0.1:53 -s " + sched.String() + " -b " + sched.String() + "-fallback\n"
					for _, i := range rand.New(rand.NewPCG(3, 3)).Perm(len(final.Backends)) {
						b := final.Backends[i]
						rules += fmt.Sprintf("-a -u 10.96.0.1:53 -r %s -m -w %d\n", b.Addr, b.Weight)
					}
					runWith(t, p.Node, rules, "ipvsadm", "-R")
					damage := p.Read(t)[final.Key].Damage
					if !slices.ContainsFunc(damage, func(s string) bool { return strings.Contains(s, "another order") }) {
						t.Errorf("the order is not seen as damage: %q", damage)
					}
					p.Put(t, repairOf(final))
				},
			}
			histories["random"] = func(p *planeIn) {
				r := rand.New(rand.NewPCG(seed.Of(t), 1))
				old := subset(r)
				p.Create(t, old)
				for range 8 {
					next := subset(r)
					p.change(t, old, next)
					old = next
				}
				p.change(t, old, final)
			}
			var want map[netip.Addr]netip.AddrPort
			for _, name := range slices.Sorted(maps.Keys(histories)) {
				lab := netlab.New(t)
				p := newPlane(t, lab.Director)
				histories[name](p)
				p.Wants(t, final)
				lab.Director.Do(func() {
					if f := p.Target.sysctl.Check(expireConnections); !f.OK {
						t.Errorf("%s: %v", name, f)
					}
				})
				got := choices(t, lab, final.Key.AddrPort(), clients)
				if want == nil {
					want = got
				}
				expect.Equal(t, differences(want, got), 0, "%s: those of %d clients that go elsewhere", name, clients)
			}
		})
	}
}

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
