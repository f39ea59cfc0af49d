//go:build system || vm

package program

import (
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/ironvip/ironvip/test/must"
	"github.com/ironvip/ironvip/test/need"
	"github.com/ironvip/ironvip/test/netlab"
	"github.com/ironvip/ironvip/test/wait"
)

const (
	failoverBefore = 4 * time.Second
	failoverAfter  = 26 * time.Second
)

// failoverRate returns the number of new connections per second.
func failoverRate() time.Duration {
	if mode == "ipvs" { // the machine is emulated
		return 20
	}
	return 400
}

// others are the balancers that BenchmarkFailover compares with.
func others() map[string]func(*failover) string {
	if mode == "ipvs" {
		return map[string]func(*failover) string{"keepalived": (*failover).keepalived}
	}
	return map[string]func(*failover) string{"haproxy": (*failover).haproxy}
}

// BenchmarkFailover fails one of three backends under a constant rate of new connections. It reports
// how many requests fail, and how long after the fault the last one does, for ironvip and for others
// with the same kind of check: HAProxy on the host, keepalived with IPVS in the VM.
// A backend refuses connections, is silent (its host answers nothing), is hung (it accepts and never
// answers), is slow (it answers after slowAnswer), or its process is stopped (its kernel accepts) and
// the check only connects. A client gives up after one second.
func BenchmarkFailover(b *testing.B) {
	need.Root(b)
	for _, fault := range []string{"refusing", "silent", "hung", "slow", "stopped"} {
		b.Run(fault, func(b *testing.B) {
			for range b.N {
				ours := newFailover(b, fault).measure(fault, (*failover).ironvip)
				b.ReportMetric(float64(ours.asked), "asked")
				b.ReportMetric(float64(ours.failed), "failed")
				b.ReportMetric(ours.last.Seconds(), "last-s")
				for name, start := range others() {
					theirs := newFailover(b, fault).measure(fault, start)
					b.ReportMetric(float64(theirs.failed), name+"-failed")
					b.ReportMetric(theirs.last.Seconds(), name+"-last-s")
				}
			}
		})
	}
}

// failover is a network with three HTTP backends.
type failover struct {
	b     *testing.B
	host  *host
	lab   *netlab.Lab
	web   []*webServer
	check string    // the type of the health check
	first *exec.Cmd // the first backend, if it is a process
}

// webServer answers with 200, after a delay if there is one.
type webServer struct {
	http.Server
	delay atomic.Int64 // in nanoseconds
}

const webPort = 8080

// slowAnswer is the delay of a slow backend: longer than clients and the checks of ironvip wait.
const slowAnswer = 1500 * time.Millisecond

func newFailover(b *testing.B, fault string) *failover {
	h, lab := newLab(b)
	f := &failover{b: b, host: h, lab: lab, check: "http"}
	lab.AddBackend()
	for i, n := range lab.Backends {
		if i == 0 && fault == "stopped" {
			f.check, f.first = "tcp", f.process(n)
			continue
		}
		w := &webServer{}
		w.Handler = http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
			if d := w.delay.Load(); d > 0 {
				select {
				case <-r.Context().Done():
				case <-time.After(time.Duration(d)):
				}
			}
		})
		l := n.Listen(netip.AddrPortFrom(n.Addr4, webPort))
		done := make(chan struct{})
		go func() { defer close(done); w.Serve(l) }()
		b.Cleanup(func() { w.Close(); <-done })
		f.web = append(f.web, w)
	}
	return f
}

// process starts an HTTP server as a process of its own.
func (f *failover) process(n *netlab.Node) *exec.Cmd {
	return f.run(n, "haproxy", "-db", "-q", "-f", f.file("backend.cfg", fmt.Sprintf(`defaults
  mode http
  timeout client 1h
listen web
  bind %s
  http-request return status 200
`, netip.AddrPortFrom(n.Addr4, webPort))))
}

// ironvip starts the agent with its default times, and returns the address of the service.
func (f *failover) ironvip() string {
	var list []string
	for _, n := range f.lab.Backends {
		list = append(list, fmt.Sprintf("{ address = %q }", n.Addr4))
	}
	f.host.write("services.d/web.toml", fmt.Sprintf(`[[service]]
name = "web"
scheduler = "rr"
ports = [ { port = 80, target_port = %d } ]
backends = [ %s ]
health = { type = %q }
`, webPort, strings.Join(list, ", "), f.check))
	if mode == "proxy" {
		f.lab.Director.Holds(netip.MustParsePrefix(f.host.pool + ".0/24")) // this kernel may have no dummy device
	}
	f.host.start()
	return netip.AddrPortFrom(netip.MustParseAddr(f.host.vip("web")), 80).String()
}

// run starts a program in a namespace. It ends with the benchmark.
func (f *failover) run(n *netlab.Node, name string, args ...string) *exec.Cmd {
	cmd := exec.Command(need.Program(f.b, name), args...)
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	var err error
	n.Do(func() { err = cmd.Start() })
	must.Succeed(f.b, err)
	f.b.Cleanup(func() { cmd.Process.Kill(); cmd.Wait() })
	return cmd
}

// file writes a file that ends with the benchmark, and returns its path.
func (f *failover) file(name, text string) string {
	path := filepath.Join(f.b.TempDir(), name)
	must.Succeed(f.b, os.WriteFile(path, []byte(text), 0o644))
	return path
}

// outcome is what the clients saw.
type outcome struct {
	asked, failed int
	last          time.Duration // from the fault to the end of the last failed request
}

// measure sends requests at a constant rate, and fails the first backend meanwhile.
func (f *failover) measure(fault string, start func(*failover) string) outcome {
	at := start(f)
	wait.For(f.b, "the service answers", func() error { return f.request(at) })
	time.Sleep(5 * time.Second) // the balancer knows the health of all backends
	var mu sync.Mutex
	var out outcome
	var done sync.WaitGroup
	began := time.Now()
	broken := began.Add(failoverBefore)
	var broke sync.Once
	for next := began; next.Sub(began) < failoverBefore+failoverAfter; next = next.Add(time.Second / failoverRate()) {
		time.Sleep(time.Until(next))
		if next.After(broken) {
			broke.Do(func() { f.fail(fault) })
		}
		done.Go(func() {
			err := f.request(at)
			mu.Lock()
			defer mu.Unlock()
			out.asked++
			if err != nil {
				out.failed++
				out.last = max(out.last, time.Since(broken))
			}
		})
	}
	done.Wait()
	return out
}

// request is one request with a connection of its own, by a client with a timeout of one second.
func (f *failover) request(at string) error {
	ctx, cancel := context.WithTimeout(f.b.Context(), time.Second)
	defer cancel()
	c := http.Client{Transport: &http.Transport{DialContext: f.lab.Client.DialContext, DisableKeepAlives: true}}
	q, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://"+at+"/", nil)
	if err != nil {
		return err
	}
	answer, err := c.Do(q)
	if err != nil {
		return err
	}
	defer answer.Body.Close()
	_, err = io.Copy(io.Discard, answer.Body)
	return err
}

// fail breaks the first backend.
func (f *failover) fail(fault string) {
	switch n := f.lab.Backends[0]; fault {
	case "refusing":
		f.web[0].Close()
	case "hung":
		f.web[0].delay.Store(int64(time.Hour))
	case "stopped":
		must.Succeed(f.b, f.first.Process.Signal(syscall.SIGSTOP))
	case "slow":
		f.web[0].delay.Store(int64(slowAnswer))
	case "silent": // it sends nothing to the director and the client any more
		for _, to := range []netip.Addr{n.Addr4.Prev(), f.lab.Client.Addr4} {
			route := &netlink.Route{Dst: &net.IPNet{IP: to.AsSlice(), Mask: net.CIDRMask(32, 32)}, Type: unix.RTN_BLACKHOLE}
			must.Succeed(f.b, n.Netlink.RouteAdd(route))
		}
	}
}

// haproxy starts HAProxy with its default times, and returns the address of the service.
func (f *failover) haproxy() string {
	at := netip.AddrPortFrom(f.lab.Director.Addr4, 8000).String()
	var servers string
	for _, n := range f.lab.Backends {
		servers += fmt.Sprintf("  server %s %s:%d check\n", n.Name, n.Addr4, webPort)
	}
	check := ""
	if f.check == "http" {
		check = "option httpchk GET /"
	}
	f.run(f.lab.Director, "haproxy", "-db", "-q", "-f", f.file("haproxy.cfg", fmt.Sprintf(`defaults
  mode tcp
  timeout connect 3s
  timeout client 1h
  timeout server 1h
  option redispatch
listen web
  bind %s
  balance roundrobin
  %s
%s`, at, check, servers)))
	return at
}

// keepalived starts keepalived's checker with the same times as ironvip's defaults, and returns the
// address of the service. Its own default is one check a minute.
func (f *failover) keepalived() string {
	at := netip.MustParseAddr(f.host.pool + ".1")
	f.lab.Director.AddAddr("lo", netip.PrefixFrom(at, 32))
	f.lab.Director.Sysctl("ipv4/vs/conntrack", "1")
	text := fmt.Sprintf(`virtual_server %s 80 {
  delay_loop 2
  lb_algo rr
  lb_kind NAT
  protocol TCP
`, at)
	for _, n := range f.lab.Backends {
		text += fmt.Sprintf(`  real_server %s %d {
    weight 1
    HTTP_GET {
      url {
        path /
        status_code 200
      }
      connect_timeout 1
      retry 2
      delay_before_retry 0.5
    }
  }
`, n.Addr4, webPort)
	}
	dir := f.b.TempDir()
	f.run(f.lab.Director, "keepalived", "--dont-fork", "--check", "--log-console", "--use-file", f.file("keepalived.conf", text+"}\n"),
		"--pid", filepath.Join(dir, "main.pid"), "--checkers_pid", filepath.Join(dir, "checkers.pid"))
	return netip.AddrPortFrom(at, 80).String()
}
