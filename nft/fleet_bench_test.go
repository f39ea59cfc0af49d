package nft

import (
	"context"
	"fmt"
	"math"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"runtime"
	"slices"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/ironvip/ironvip/test/expect"
	"github.com/ironvip/ironvip/test/must"
	"github.com/ironvip/ironvip/test/need"
	"github.com/ironvip/ironvip/test/netlab"
	"github.com/ironvip/ironvip/test/scope"
	"github.com/ironvip/ironvip/vip"
)

// BenchmarkFleet measures the table of a whole fleet, in CPU time of this process, which includes what the
// kernel does in its calls: programming it, changing one backend, reading it back at a restart, and the
// kernel's memory. Up to 5,000 services it also programs the layout of kube-proxy's nftables mode, with chains
// for each service and backend, by the nft program. Medians of the rounds are reported. The memory is
// meaningful on a quiet machine only: it is the growth of what the whole kernel has.
func BenchmarkFleet(b *testing.B) {
	for _, services := range []int{10, 1000, 5000, 40000} {
		b.Run(fmt.Sprintf("%dx%d", services, fleetBackends), func(b *testing.B) {
			rounds := map[string][]float64{}
			for b.Loop() {
				fleetRound(b, services, func(name string, value float64) { rounds[name] = append(rounds[name], value) })
			}
			for name, values := range rounds {
				b.ReportMetric(median(values), name)
			}
			b.ReportMetric(0, "ns/op")
		})
	}
}

// BenchmarkOneOfFleet removes and adds one backend, among 10 services and among 40,000 in turns. A ratio is
// the median time among 40,000 in units of that among 10. The connections with the removed backend end
// once for 20 changes, which is measured by itself.
func BenchmarkOneOfFleet(b *testing.B) {
	type side struct {
		p     *planeIn
		f, g  *vip.Frontend
		times []float64
		clean []float64
	}
	var sides []*side
	for _, n := range []int{10, 40000} {
		p, all := newPlane(b, netlab.New(b).Director), fleet(n)
		programFleet(b, p, all)
		f := all[7].New
		g := *f
		g.Backends = g.Backends[1:]
		s := &side{p: p, f: f, g: &g}
		p.Put(b, updateOf{Key: f.Key, Old: s.f, New: s.g}) // adds the class of nine backends
		s.f, s.g = s.g, s.f
		sides = append(sides, s)
	}
	runtime.GC()
	for b.Loop() {
		for range 10 {
			for _, s := range sides {
				before, start := s.p.Stats().NFTMessages, time.Now()
				for range 20 {
					batch := []updateOf{{Key: s.f.Key, Old: s.f, New: s.g}}
					if err := s.p.Apply(b.Context(), batch); err != nil || batch[0].Err != nil {
						b.Fatal(err, batch[0].Err)
					}
					s.f, s.g = s.g, s.f
				}
				s.times = append(s.times, float64(time.Since(start)))
				start = time.Now()
				must.Succeed(b, s.p.Clean(b.Context()))
				s.clean = append(s.clean, float64(time.Since(start)))
				must.AtMost(b, s.p.Stats().NFTMessages-before, 6*20, "messages for 20 changes")
			}
		}
	}
	b.ReportMetric(median(sides[1].times)/median(sides[0].times), "ratio")
	b.ReportMetric(median(sides[1].times)/20/1e3, "us/change")
	b.ReportMetric(median(sides[1].clean)/1e3, "us/clean")
	b.ReportMetric(0, "ns/op")
}

const fleetBackends = 10

// fleet returns services, 256 at each address.
func fleet(services int) (all []updateOf) {
	for i := range services {
		f := frontend(netip.AddrFrom4([4]byte{10, 96, 0, byte(i >> 8)}).String(), 80+uint16(i&255), vip.TCP)
		for j := range fleetBackends {
			f.Backends = append(f.Backends, vip.Endpoint{Addr: netip.AddrPortFrom(netip.AddrFrom4([4]byte{172, byte(16 + j), byte(i >> 8), byte(i)}), 8080), Weight: 1})
		}
		all = append(all, updateOf{Key: f.Key, New: &f})
	}
	return all
}

// programFleet applies batches of the size that the reconciler has.
func programFleet(b *testing.B, p *planeIn, all []updateOf) {
	for chunk := range slices.Chunk(all, 512) {
		p.Put(b, slices.Clone(chunk)...)
	}
}

func fleetRound(b *testing.B, services int, report func(name string, value float64)) {
	lab := netlab.New(b)
	ours := fleetProgrammed(b, lab, services, report)

	again := newPlane(b, lab.Director)
	runtime.GC()
	cpu := cpuTime(b, unix.RUSAGE_SELF)
	readFleet(b, again, services)
	report("restart-cpu-ms", float64((cpuTime(b, unix.RUSAGE_SELF)-cpu).Microseconds())/1e3)
	report("restart-writes", float64(again.writes()))

	if services > 5000 {
		return
	}
	rules := perServiceChains(fleet(services))
	cpu = cpuTime(b, unix.RUSAGE_CHILDREN)
	lab.Backends[0].Do(func() {
		cmd := exec.Command("nft", "-f", "-")
		cmd.Stdin = strings.NewReader(rules)
		if out, err := cmd.CombinedOutput(); err != nil {
			b.Fatalf("%v: %.500s", err, out)
		}
	})
	report("chains/ours", float64(cpuTime(b, unix.RUSAGE_CHILDREN)-cpu)/float64(ours))
}

// fleetProgrammed returns the CPU time for programming the services. Nothing of it is in memory at the restart.
func fleetProgrammed(b *testing.B, lab *netlab.Lab, services int, report func(name string, value float64)) (took time.Duration) {
	scope.Run(b, func(t testing.TB) {
		p, all := newPlane(t, lab.Director), fleet(services)
		readFleet(b, p, 0)
		runtime.GC()
		memory, cpu := kernelMemory(b), cpuTime(b, unix.RUSAGE_SELF)
		programFleet(b, p, all)
		took = cpuTime(b, unix.RUSAGE_SELF) - cpu
		report("program-cpu-ms", float64(took.Microseconds())/1e3)
		report("kernel-B/backend", float64(kernelMemory(b)-memory)/float64(services*fleetBackends))
		report("messages", float64(p.Stats().NFTMessages))
	})
	return took
}

// readFleet is the start of an agent that finds n services as they should be. It asks the Target itself: a Plane would collect
// what it returns.
func readFleet(b *testing.B, p *planeIn, n int) {
	p.Node.Do(func() {
		for _, err := range p.Target.Actual(b.Context()) {
			expect.Succeed(b, err)
			n--
		}
	})
	must.Equal(b, n, 0, "services are missing")
}

// perServiceChains is a ruleset with the layout of kube-proxy: a map of verdicts leads to a chain for each
// service, and its map of verdicts to a chain for each backend.
func perServiceChains(all []updateOf) string {
	var t strings.Builder
	t.WriteString("table ip chains {\n map services {\n  type ipv4_addr . inet_proto . inet_service : verdict\n }\n chain mark-for-masquerade {\n  meta mark set meta mark or 0x4000\n }\n")
	for i, u := range all {
		var choices []string
		for j, e := range u.New.Backends {
			name := fmt.Sprintf("endpoint-%d-%d", i, j)
			fmt.Fprintf(&t, " chain %s {\n  ip saddr %s jump mark-for-masquerade\n  meta l4proto tcp dnat to %s\n }\n", name, e.Addr.Addr(), e.Addr)
			choices = append(choices, fmt.Sprintf("%d : goto %s", j, name))
		}
		fmt.Fprintf(&t, " chain service-%d {\n  ip daddr %s tcp dport %d ip saddr != 10.0.0.0/8 jump mark-for-masquerade\n  numgen random mod %d vmap { %s }\n }\n",
			i, u.Key.Addr, u.Key.Port, len(choices), strings.Join(choices, ", "))
	}
	t.WriteString(" chain prerouting {\n  type nat hook prerouting priority dstnat; policy accept;\n  ip daddr . meta l4proto . th dport vmap @services\n }\n}\n")
	for i, u := range all {
		fmt.Fprintf(&t, "add element ip chains services { %s . tcp . %d : goto service-%d }\n", u.Key.Addr, u.Key.Port, i)
	}
	return t.String()
}

// cpuTime returns the CPU time that this process, or its ended children, have used.
func cpuTime(b *testing.B, who int) time.Duration {
	var u unix.Rusage
	must.Succeed(b, unix.Getrusage(who, &u))
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}

// kernelMemory returns the bytes that the kernel has allocated for its own objects.
func kernelMemory(b *testing.B) (bytes int64) {
	data := must.Get(os.ReadFile("/proc/meminfo"))(b)
	for line := range strings.Lines(string(data)) {
		var name string
		var kib int64
		if n, _ := fmt.Sscan(line, &name, &kib); n == 2 && slices.Contains([]string{"SUnreclaim:", "VmallocUsed:"}, name) {
			bytes += kib << 10
		}
	}
	return bytes
}

func median(values []float64) float64 {
	slices.Sort(values)
	return values[len(values)/2]
}

// BenchmarkCounting measures the path of a packet of an open connection from its client to its backend, with and
// without the rules that count: of a service, of one with a range of ports, and of a connection that is none of
// ours. The figures are minima of rounds that take turns. Each operation is a round.
func BenchmarkCounting(b *testing.B) {
	need.Root(b)
	lab := netlab.New(b)
	p := newPlane(b, lab.Director)
	at := lab.Backends[0].ListenPacket(netip.AddrPortFrom(lab.Backends[0].Addr4, 90)).LocalAddr().(*net.UDPAddr).AddrPort()
	single, ranged := frontend("10.96.0.1", 90, vip.UDP, vip.Endpoint{Addr: at, Weight: 1}), frontend("10.96.0.2", 80, vip.UDP, vip.Endpoint{Addr: netip.AddrPortFrom(at.Addr(), 0), Weight: 1})
	ranged.Key.LastPort = 180
	p.Put(b, updateOf{Key: single.Key, New: &single}, updateOf{Key: ranged.Key, New: &ranged})
	paths := []struct {
		name string
		to   netip.AddrPort
		conn net.Conn
	}{{name: "service", to: single.Key.AddrPort()}, {name: "range", to: netip.AddrPortFrom(ranged.Key.Addr, 90)}, {name: "other", to: at}}
	for i := range paths {
		c := must.Get(lab.Client.DialContext(context.Background(), "udp", paths[i].to.String()))(b)
		defer c.Close()
		paths[i].conn = c
	}
	best := map[string]float64{}
	round := func(counted string) {
		for _, x := range paths {
			const packets = 20000
			began := time.Now()
			for range packets {
				x.conn.Write([]byte("?"))
			}
			name := x.name + "-" + counted + "-ns"
			if best[name] == 0 {
				best[name] = math.Inf(1)
			}
			best[name] = min(best[name], float64(time.Since(began).Nanoseconds())/packets)
		}
	}
	for b.Loop() {
		lab.Director.Do(func() {
			must.Succeed(b, p.rebuild(b.Context()))
		})
		round("counted")
		for _, chain := range []string{chainLeaving, chainLocal} {
			lab.Director.Do(func() {
				for _, change := range []string{"flush", "delete"} {
					if out, err := exec.Command("nft", change, "chain", "inet", "ironvip", chain).CombinedOutput(); err != nil {
						b.Fatalf("%v: %s", err, out)
					}
				}
			})
		}
		round("uncounted")
	}
	for name, ns := range best {
		b.ReportMetric(ns, name)
	}
	for _, x := range paths {
		b.ReportMetric(best[x.name+"-counted-ns"]/best[x.name+"-uncounted-ns"], x.name+"-ratio")
	}
}
