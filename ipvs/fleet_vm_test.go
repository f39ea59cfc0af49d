//go:build linux && vm

package ipvs

import (
	"fmt"
	"os"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/ironvip/ironvip/internal/netlink"
	"github.com/ironvip/ironvip/plane/kernel/host"
	"github.com/ironvip/ironvip/test/must"
	"github.com/ironvip/ironvip/test/netlab"
	"github.com/ironvip/ironvip/test/scope"
	"github.com/ironvip/ironvip/vip"
)

// BenchmarkFleet programs a whole fleet into an empty kernel, and sets what that
// takes, and what reading it back takes, against a bare loop that sends the very
// same messages; and against ipvsadm -R for the services alone. Everything is of
// one boot, and the medians of the rounds are reported.
//
// A way must not pay for the state of the way before: namespaces share the hash tables of services,
// of addresses and of routes by device, the estimators' time, and the processor on which they are
// taken down. So each way has a namespace of its own, which is gone before the next begins, with
// the processor idle and our own garbage collected; and the ways change places from round to round.
func BenchmarkFleet(b *testing.B) {
	for _, services := range []int{1000, 5000} {
		b.Run(fmt.Sprintf("%dx10", services), func(b *testing.B) {
			f := recordFleet(b, many(services, 10))
			rounds := map[string][]float64{}
			for n := 0; b.Loop(); n++ {
				f.measure(b, n, func(name string, value float64) { rounds[name] = append(rounds[name], value) })
			}
			for name, values := range rounds {
				b.ReportMetric(middle(values), name)
			}
			b.ReportMetric(float64(f.made.count()), "messages")
			b.ReportMetric(float64(len(f.made)), "sends")
			b.ReportMetric(0, "ns/op")
		})
	}
}

// recorded is what is programmed, and what is sent for that and for reading it.
type recorded struct {
	all        []*vip.Frontend
	made, read wire
}

func recordFleet(b *testing.B, all []*vip.Frontend) *recorded {
	f := &recorded{all: all}
	alone(b, func(t testing.TB, lab *netlab.Lab) {
		makeDevice(t, lab)
		p := newPlane(t, lab.Director)
		p.Read(t) // nothing, as an agent that starts
		f.made = tap(t, lab.Director, func() { p.createAll(t, all) }).changes()
		f.read = tap(t, lab.Director, func() { p.Read(t) }).queries()
	})
	return f
}

// measure is one round.
func (f *recorded) measure(b *testing.B, round int, report func(name string, value float64)) {
	var ours, addresses, whole, ipvsadm, read, bareRead time.Duration
	var parts map[int]time.Duration
	ways := []func(t testing.TB, lab *netlab.Lab){
		func(t testing.TB, lab *netlab.Lab) {
			makeDevice(t, lab)
			p := newPlane(t, lab.Director)
			p.Read(t)
			p.Faults = func(b []byte, write bool, send func([]byte) error) error {
				start := time.Now()
				err := send(b)
				if h, _, _, _ := netlink.NextMessage(b); write && h.Type == unix.RTM_NEWROUTE {
					addresses += time.Since(start)
				}
				return err
			}
			settle(t)
			start := time.Now()
			p.createAll(t, f.all)
			ours = time.Since(start)

			for i := range 2 { // who is first doesn't always have the colder caches
				settle(t)
				if (round+i)%2 == 0 {
					start := time.Now()
					must.Equal(t, p.observe(t), len(f.all), "frontends that were read")
					read = time.Since(start)
					continue
				}
				var r plainly
				bareRead, _ = replay(t, lab.Director, f.read, r.keep)
				if len(r.services) != len(f.all) || len(r.dests) != 10*len(f.all) || len(r.addresses) < len(f.all) || len(r.elements) < 3*len(f.all) || len(r.rules) == 0 {
					t.Fatalf("read plainly: %d services, %d destinations, %d addresses, %d elements, %d rules", len(r.services), len(r.dests), len(r.addresses), len(r.elements), len(r.rules))
				}
			}
		},
		func(t testing.TB, lab *netlab.Lab) {
			makeDevice(t, lab)
			newPlane(t, lab.Director)
			settle(t)
			whole, parts = replay(t, lab.Director, f.made, nil)
		},
		func(t testing.TB, lab *netlab.Lab) {
			makeDevice(t, lab)
			newPlane(t, lab.Director)
			rules := asRules(f.all)
			settle(t)
			start := time.Now()
			runWith(t, lab.Director, rules, "ipvsadm", "-R")
			ipvsadm = time.Since(start)
		},
	}
	for i := range ways {
		alone(b, ways[(i+round)%len(ways)])
	}
	b.Logf("round %d: ours %v with %v of addresses, bare %v, by protocol %v, ipvsadm %v, read %v, bare %v",
		round, ours, addresses, whole, parts, ipvsadm, read, bareRead)

	ratio := func(name string, a, b time.Duration) { report(name, float64(a)/float64(b)) }
	ratio("ours/bare", ours, whole)
	ratio("ours/bare-addresses", ours-addresses, whole-parts[unix.NETLINK_ROUTE])
	ratio("ipvsadm/bare", ipvsadm, whole)
	ratio("ipvsadm/ours", ipvsadm, ours)
	ratio("ipvsadm/ours-addresses", ipvsadm, ours-addresses)
	ratio("ipvsadm/bare-addresses", ipvsadm, whole-parts[unix.NETLINK_ROUTE])
	ratio("addresses/bare", parts[unix.NETLINK_ROUTE], whole)
	ratio("filters/bare", parts[unix.NETLINK_NETFILTER], whole)
	ratio("read/bare", read, bareRead)
	report("s", ours.Seconds())
}

// observe reads everything and keeps nothing of it, as a reconciler that finds no
// change.
func (p *planeIn) observe(t testing.TB) (n int) {
	p.Node.Do(func() {
		for _, err := range p.VIPs.Actual(t.Context()) {
			must.Succeed(t, err)
			n++
		}
	})
	return n
}

// makeDevice makes the device before anything is measured.
func makeDevice(t testing.TB, lab *netlab.Lab) {
	lab.Director.Do(func() {
		d := must.Get(host.OpenDevice(DefaultDevice, new(atomic.Uint64)))(t)
		defer d.Close()
		must.Get(d.Ensure())(t)
	})
}

// alone runs do with a lab of its own, all of which is gone afterwards: what
// it programmed by name, the namespaces with the rest of it, and the kernel's
// work of that.
func alone(b *testing.B, do func(t testing.TB, lab *netlab.Lab)) {
	defer settle(b)
	scope.Run(b, func(t testing.TB) {
		lab := netlab.New(t)
		do(t, lab)
		run(b, lab.Director, "ipvsadm", "-C")
		link, err := lab.Director.Netlink.LinkByName(DefaultDevice)
		if err == nil {
			err = lab.Director.Netlink.LinkDel(link)
		}
		must.Succeed(b, err)
	})
}

// settle collects our garbage and waits until the kernel is idle.
func settle(t testing.TB) {
	runtime.GC()
	idle, ticks := idleTicks(t)
	for range 600 { // at most a minute: afterwards it is as it is
		time.Sleep(100 * time.Millisecond)
		nowIdle, now := idleTicks(t)
		if all := now - ticks; all > 0 && nowIdle-idle >= all-all/10 {
			return
		}
		idle, ticks = nowIdle, now
	}
	t.Log("the kernel never came to rest")
}

// idleTicks returns how many of the ticks of all processors so far were idle.
func idleTicks(t testing.TB) (idle, all int) {
	data := must.Get(os.ReadFile("/proc/stat"))(t)
	line, _, _ := strings.Cut(string(data), "\n")
	for i, field := range strings.Fields(line)[1:] {
		n, err := strconv.Atoi(field)
		must.Succeed(t, err, "%q", line)
		if all += n; i == 3 {
			idle = n
		}
	}
	return idle, all
}

// middle returns the median.
func middle(all []float64) float64 {
	slices.Sort(all)
	return all[len(all)/2]
}

// BenchmarkOneOfFleet changes one weight among 10 services and among 5,000, in
// turns, through Apply.
func BenchmarkOneOfFleet(b *testing.B) {
	type side struct {
		p    *planeIn
		f, g *vip.Frontend
		took []float64
	}
	var sides []*side
	for _, n := range []int{10, 5000} {
		p := newPlane(b, netlab.New(b).Director)
		all := many(n, 10)
		p.createAll(b, all)
		sides = append(sides, &side{p: p, f: all[5], g: with(all[5], func(f *vip.Frontend) { f.Backends[1].Weight = 7 })})
	}
	for b.Loop() {
		for range 40 {
			for _, s := range sides {
				start := time.Now()
				for range 50 {
					s.p.change(b, s.f, s.g)
					s.f, s.g = s.g, s.f
				}
				s.took = append(s.took, float64(time.Since(start)))
			}
		}
	}
	b.ReportMetric(middle(sides[1].took)/middle(sides[0].took), "ratio")
	b.ReportMetric(0, "ns/op")
}
