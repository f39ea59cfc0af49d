//go:build system

package resolvers

import (
	"fmt"
	"math/rand/v2"
	"net/netip"
	"os"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/miekg/dns"

	"github.com/ironvip/ironvip/test/must"
	"github.com/ironvip/ironvip/test/need"
	"github.com/ironvip/ironvip/test/netlab"
	"github.com/ironvip/ironvip/test/process"
	"github.com/ironvip/ironvip/test/wait"
)

// The two processors of a benchmark: one for the server, one for dnsperf.
const serverCPU, clientCPU = "1", "0"

// loads are what dnsperf asks a server for in one round, each for loadTime.
var loads = []struct {
	name string
	args []string
}{
	{"paced", []string{"-Q", "100000"}},
	{"saturation", nil},
}

const loadTime = 4 * time.Second

// benchPort is where the servers of the benchmark listen.
const benchPort = "5300"

// competitors start a DNS server with the names, which answers for them from its memory.
var competitors = []struct {
	name  string
	start func(b *bench) *process.Process
}{
	{"ironvip", func(b *bench) *process.Process {
		return b.start("ironvip", "/usr/bin/env", servedVariable+"="+strconv.Itoa(b.names), os.Args[0])
	}},
	{"knot", func(b *bench) *process.Process {
		conf := b.write("knot.conf", fmt.Sprintf("server:\n    rundir: %[1]q\n    listen: 127.0.0.1@%[2]s\n    udp-workers: 1\n    tcp-workers: 1\n    background-workers: 1\ndatabase:\n    storage: %[1]q\nlog:\n  - target: stderr\n    any: warning\nzone:\n  - domain: vip.internal\n    file: %[3]q\n", b.dir, benchPort, b.zone))
		return b.start("knot", need.Daemon(b.t, "knotd"), "--config", conf)
	}},
	{"unbound", func(b *bench) *process.Process {
		conf := b.write("unbound.conf", fmt.Sprintf("server:\n    interface: 127.0.0.1\n    port: %s\n    chroot: \"\"\n    username: \"\"\n    directory: %q\n    pidfile: \"\"\n    use-syslog: no\n    do-daemonize: no\n    num-threads: 1\n    local-zone: \"vip.internal.\" static\n%s", benchPort, b.dir,
			b.lines("    local-data: \"%s 30 IN A %s\"\n")))
		return b.start("unbound", need.Daemon(b.t, "unbound"), "-d", "-c", conf)
	}},
	{"dnsmasq", func(b *bench) *process.Process {
		conf := b.write("dnsmasq.conf", fmt.Sprintf("no-resolv\nno-hosts\nlisten-address=127.0.0.1\nport=%s\nbind-interfaces\nuser=root\npid-file=\nlocal=/vip.internal/\nlocal-ttl=30\naddn-hosts=%s\n", benchPort, b.hosts))
		return b.start("dnsmasq", need.Daemon(b.t, "dnsmasq"), "--keep-in-foreground", "--log-facility=-", "--conf-file="+conf)
	}},
	{"coredns-file", func(b *bench) *process.Process {
		conf := b.write("Corefile.file", fmt.Sprintf("vip.internal:%s {\n  file %s\n}\n", benchPort, b.zone))
		return b.start("coredns-file", need.Server(b.t, "coredns"), "-conf", conf)
	}},
	{"coredns-hosts", func(b *bench) *process.Process {
		conf := b.write("Corefile.hosts", fmt.Sprintf("vip.internal:%s {\n  hosts %s\n}\n", benchPort, b.hosts))
		return b.start("coredns-hosts", need.Server(b.t, "coredns"), "-conf", conf)
	}},
}

// bench is one number of names, and the files that have them.
type bench struct {
	load
	t     *testing.B
	names int
	dir   string
	zone  string // master file
	hosts string // as /etc/hosts
}

// sample is what one round measures of a server.
type sample struct {
	cost  []float64 // of each load: microseconds of CPU time per query
	rate  []float64 // of each load: answers per second
	mib   float64   // resident memory before the load, without the tables of services
	above float64   // the same, above that of the process without names; 0: not known
}

// BenchmarkServers measures the CPU time per query, and the memory, of this project's DNS server and of
// others with the same names. Of the queries, 80% have an answer, 10% ask for a type that the name
// doesn't have, and 10% for a name that doesn't exist. Each server has one processor, dnsperf the other
// one, in a network namespace. An iteration is one round of all servers. The metrics are medians, and
// ratios those of the lowest costs: what else the machine does only adds to them.
//
// The servers are compared at the same rate: who wakes a client that sleeps pays for it, and the slower
// server has the client that never sleeps.
func BenchmarkServers(b *testing.B) {
	need.Root(b)
	for _, names := range []int{10_000, 100_000} {
		b.Run(strconv.Itoa(names), func(b *testing.B) {
			s := newBench(b, names)
			rounds := map[string][]sample{}
			for b.Loop() {
				for _, c := range competitors {
					rounds[c.name] = append(rounds[c.name], s.measure(c.start(s)))
				}
			}
			of := func(name string, share float64, f func(sample) float64) float64 {
				var all []float64
				for _, r := range rounds[name] {
					all = append(all, f(r))
				}
				return quantile(all, share)
			}
			for _, c := range competitors { // a line for each: a benchmark may log only ten
				mib := of(c.name, 0.5, func(s sample) float64 { return s.mib })
				b.ReportMetric(mib, c.name+"-MiB")
				line := fmt.Sprintf("%-13s %.0f MiB, %.0f for names", c.name, mib, of(c.name, 0.5, func(s sample) float64 { return s.above }))
				for i, l := range loads {
					cost := func(s sample) float64 { return s.cost[i] }
					us, least, most := of(c.name, 0.5, cost), of(c.name, 0, cost), of(c.name, 1, cost)
					b.ReportMetric(us, c.name+"-"+l.name+"-us/query")
					line += fmt.Sprintf("; %s: %.1f us/query (%.1f to %.1f), %.2f x Knot, %.0f answers/s", l.name, us, least, most, least/of("knot", 0, cost),
						of(c.name, 0.5, func(s sample) float64 { return s.rate[i] }))
				}
				b.Log(line)
			}
		})
	}
}

func newBench(b *testing.B, names int) *bench {
	b.Helper()
	s := &bench{t: b, names: names, dir: folder(b)}
	s.zone = s.write("zone", "$ORIGIN vip.internal.\n$TTL 30\n@ SOA ns.dns hostmaster.dns 1 7200 1800 86400 1\n@ NS ns.dns\nns.dns A 127.0.0.1\n"+s.lines("%s. A %s\n"))
	var hosts, asked strings.Builder
	random := rand.New(rand.NewPCG(1, 2))
	for i := range names {
		fmt.Fprintf(&hosts, "%s %s\n", address(i), nameOf(i))
	}
	for range 100_000 {
		name, kind := nameOf(random.IntN(names)), "A"
		switch p := random.IntN(10); p {
		case 0:
			kind = "AAAA"
		case 1:
			name = "x" + name
		}
		fmt.Fprintf(&asked, "%s %s\n", name, kind)
	}
	s.hosts = s.write("hosts", hosts.String())
	s.load = newLoad(b, netlab.NewLAN(b, "host").Nodes[0], benchPort, s.dir, asked.String())
	return s
}

// nameOf is the name of service i, and address its VIP.
func nameOf(i int) string { return fmt.Sprintf("web%d.prod.svc.%s", i, zone) }
func address(i int) netip.Addr {
	return netip.AddrFrom4([4]byte{10, byte(96 + i>>16), byte(i >> 8), byte(i)})
}

func (b *bench) write(name, text string) string {
	b.t.Helper()
	return write(b.t, filepath.Join(b.dir, name), text)
}

// lines has a line for each name, with the name and its address.
func (b *bench) lines(format string) string {
	var s strings.Builder
	for i := range b.names {
		fmt.Fprintf(&s, format, nameOf(i), address(i))
	}
	return s.String()
}

// start starts a server on its processor.
func (b *bench) start(name, bin string, args ...string) *process.Process {
	b.t.Helper()
	p := process.New(need.Program(b.t, "taskset"), filepath.Join(b.dir, name+".log"), b.node, append([]string{"--cpu-list", serverCPU, bin}, args...)...)
	b.t.Cleanup(func() {
		if b.t.Failed() {
			b.t.Logf("the end of the log of %s:\n%s", name, p.LogEnd(2000))
		}
	})
	must.Succeed(b.t, p.Start())
	return p
}

// measure asks a server with each load, and ends it.
func (b *bench) measure(p *process.Process) (s sample) {
	b.t.Helper()
	defer p.Kill()
	h := &host{Node: b.node, t: b.t}
	for _, name := range []string{nameOf(0), nameOf(b.names - 1)} {
		wait.For(b.t, "the server answers for "+name, func() error {
			r, err := h.ask("127.0.0.1:"+benchPort, name, dns.TypeA)
			if err == nil && len(data(r)) != 1 {
				err = fmt.Errorf("the answer is %v", r)
			}
			return err
		})
	}
	s.mib = memory(read(b.t, fmt.Sprintf("/proc/%d/status", p.Pid())))
	if all := ownMemory.FindAllStringSubmatch(p.LogEnd(1000), -1); all != nil {
		bare, _ := strconv.ParseFloat(all[len(all)-1][1], 64)
		tables, _ := strconv.ParseFloat(all[len(all)-1][2], 64)
		s.mib -= tables
		s.above = s.mib - bare
	}
	for _, l := range loads {
		before := process.CPUTime(b.t, p.Pid())
		done, err := b.run(loadTime, []string{"taskset", "--cpu-list", clientCPU}, append([]string{"-q", "200", "-c", "4"}, l.args...)...)
		used := process.CPUTime(b.t, p.Pid()) - before
		must.Succeed(b.t, err)
		s.cost = append(s.cost, used.Seconds()*1e6/float64(done))
		s.rate = append(s.rate, float64(done)/loadTime.Seconds())
	}
	return s
}

// ownMemory finds how much of this project's server is not for names.
var ownMemory = regexp.MustCompile(`without names: (\S+) MiB, tables: (\S+) MiB`)
