//go:build system

package program

import (
	"bytes"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/ironvip/ironvip/test/accept"
	"github.com/ironvip/ironvip/test/must"
	"github.com/ironvip/ironvip/test/need"
	"github.com/ironvip/ironvip/test/wait"
)

// filesServices is the number of services of BenchmarkFiles, of four backends each.
const filesServices = 10_000

// BenchmarkFiles starts an agent and HAProxy with 10,000 services of four backends in one file, and
// changes the port of one service in the file. It reports the medians of the wall-clock time and of
// the processor time until a sample of the services, or the changed one, serves a client. "First" is a
// start without the state of an earlier run. Ratios are to HAProxy.
func BenchmarkFiles(b *testing.B) {
	moreFiles(b, 20_000)
	all := map[string][]float64{}
	for range b.N {
		for _, run := range []func(*testing.B) map[string]usage{filesOfHAProxy, filesOfIronvip} {
			for name, u := range run(b) {
				all[name+"-ms"] = append(all[name+"-ms"], ms(u.wall))
				all[name+"-cpu-ms"] = append(all[name+"-cpu-ms"], ms(u.cpu))
			}
		}
	}
	median := func(name string) float64 {
		slices.Sort(all[name])
		return all[name][len(all[name])/2]
	}
	for name := range all {
		b.ReportMetric(median(name), name)
	}
	for _, unit := range []string{"-ms", "-cpu-ms"} {
		ratio := strings.TrimSuffix(unit, "ms") + "x"
		b.ReportMetric(median("first"+unit)/median("haproxy-start"+unit), "first"+ratio)
		b.ReportMetric(median("start"+unit)/median("haproxy-start"+unit), "start"+ratio)
		b.ReportMetric(median("change"+unit)/median("haproxy-change"+unit), "change"+ratio)
	}
}

func ms(d time.Duration) float64 { return float64(d.Microseconds()) / 1000 }

// usage is the wall-clock time and the processor time of something.
type usage struct{ wall, cpu time.Duration }

// filesVIP is the address of a service. The network has no other use on this host.
func filesVIP(i int) string { return fmt.Sprintf("%s.%d.%d", poolBase, 128+i/250, 1+i%250) }

// filesChanged is the service that the benchmark changes.
const filesChanged = filesServices / 2

// filesText joins the text of every service. Changed moves one service to port 8081.
func filesText(changed bool, each func(i, port int) string) string {
	var out strings.Builder
	for i := range filesServices {
		port := 8080
		if changed && i == filesChanged {
			port = 8081
		}
		out.WriteString(each(i, port))
	}
	return out.String()
}

// filesBackend starts a server on all addresses of the loopback, and returns its port.
func filesBackend(b *testing.B) int {
	l := must.Get(net.Listen("tcp4", "0.0.0.0:0"))(b)
	b.Cleanup(func() { l.Close() })
	accept.Each(l, func(c net.Conn) {
		c.Write([]byte("x"))
	})
	return l.Addr().(*net.TCPAddr).Port
}

// filesServed waits until a sample of the services answers, with the changed one at this port.
func filesServed(b *testing.B, p *exec.Cmd, changed int) {
	for i := 0; i < filesServices; i += filesServices / 200 {
		port := 8080
		if i == filesChanged {
			port = changed
		}
		filesAnswers(b, p, i, port)
	}
	filesAnswers(b, p, filesServices-1, 8080)
}

// filesAnswers waits until a service answers at a port.
func filesAnswers(b *testing.B, p *exec.Cmd, i, port int) {
	at := net.JoinHostPort(filesVIP(i), strconv.Itoa(port))
	wait.For(b, at+" answers", func() error {
		must.Succeed(b, p.Process.Signal(syscall.Signal(0)))
		c, err := net.DialTimeout("tcp", at, time.Second)
		if err != nil {
			return err
		}
		defer c.Close()
		c.SetDeadline(time.Now().Add(10 * time.Second))
		if text, err := io.ReadAll(c); string(text) != "x" {
			return fmt.Errorf("has %q: %v", text, err)
		}
		return nil
	})
}

// measureGroup returns what a program and its children use while f runs. P returns the program, or nil
// if f starts it.
func measureGroup(b *testing.B, p func() *exec.Cmd, f func()) usage {
	var cpu time.Duration
	if cmd := p(); cmd != nil {
		cpu = groupCPU(b, cmd.Process.Pid)
	}
	start := time.Now()
	f()
	wall := time.Since(start)
	return usage{wall, groupCPU(b, p().Process.Pid) - cpu}
}

// groupCPU returns the processor time of the processes of a group and of their children that ended.
func groupCPU(b *testing.B, group int) (sum time.Duration) {
	paths := must.Get(filepath.Glob("/proc/[0-9]*/stat"))(b)
	for _, path := range paths {
		text, err := os.ReadFile(path)
		if err != nil {
			continue // it has ended
		}
		_, text, _ = bytes.Cut(text, []byte(") "))
		var state string
		var parent, pgrp, skip, user, system, childrenUser, childrenSystem int64
		if _, err := fmt.Sscan(string(text), &state, &parent, &pgrp, &skip, &skip, &skip, &skip, &skip, &skip, &skip, &skip,
			&user, &system, &childrenUser, &childrenSystem); err != nil {
			b.Fatal(path, err)
		}
		if pgrp == int64(group) {
			sum += time.Duration(user+system+childrenUser+childrenSystem) * (time.Second / 100)
		}
	}
	return sum
}

// filesOfHAProxy measures HAProxy. Its master process reloads the file.
func filesOfHAProxy(b *testing.B) map[string]usage {
	port := filesBackend(b)
	text := func(changed bool) string {
		return "global\n maxconn 2000\ndefaults\n mode tcp\n timeout connect 3s\n timeout client 1m\n timeout server 1m\n" +
			filesText(changed, func(i, at int) string {
				s := fmt.Sprintf("listen s%d\n bind %s:%d\n balance roundrobin\n", i, filesVIP(i), at)
				for n := range 4 {
					s += fmt.Sprintf(" server b%d 127.0.0.%d:%d\n", n, n+1, port)
				}
				return s
			})
	}
	path := filepath.Join(b.TempDir(), "haproxy.cfg")
	write := func(changed bool) {
		must.Succeed(b, os.WriteFile(path, []byte(text(changed)), 0o644))
	}
	write(false)
	cmd := exec.Command(need.Program(b, "haproxy"), "-W", "-db", "-q", "-f", path)
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL, Setpgid: true}
	var started *exec.Cmd
	program := func() *exec.Cmd { return started }
	out := map[string]usage{}
	out["haproxy-start"] = measureGroup(b, program, func() {
		must.Succeed(b, cmd.Start())
		started = cmd
		filesServed(b, cmd, 8080)
	})
	time.Sleep(time.Second)
	out["haproxy-change"] = measureGroup(b, program, func() {
		write(true)
		cmd.Process.Signal(syscall.SIGUSR2)
		filesAnswers(b, cmd, filesChanged, 8081)
	})
	cmd.Process.Signal(syscall.SIGTERM)
	cmd.Wait()
	return out
}

// filesOfIronvip measures the agent.
func filesOfIronvip(b *testing.B) map[string]usage {
	port := filesBackend(b)
	h := newHost(b)
	h.config(fmt.Sprintf("[[pool]]\nname = \"files\"\ncidrs = [\"%s.128.0/17\"]\n", poolBase))
	h.adjust = func(cmd *exec.Cmd) { cmd.SysProcAttr.Setpgid = true }
	write := func(changed bool) {
		h.write("services.d/a.toml", filesText(changed, func(i, at int) string {
			s := fmt.Sprintf("[[service]]\nname = \"s%d\"\nvips = [\"%s\"]\nports = [ { port = %d, target_port = %d } ]\nscheduler = \"rr\"\nhealth = { type = \"none\" }\nbackends = [\n", i, filesVIP(i), at, port)
			for n := range 4 {
				s += fmt.Sprintf("  { address = \"127.0.0.%d\" },\n", n+1)
			}
			return s + "]\n"
		}))
	}
	write(false)
	program := func() *exec.Cmd { return h.cmd }
	out := map[string]usage{}
	out["first"] = measureGroup(b, program, func() {
		h.launch()
		filesServed(b, h.cmd, 8080)
	})
	h.ready()
	time.Sleep(2 * time.Second) // the last good services are stored
	out["change"] = measureGroup(b, program, func() {
		write(true)
		filesAnswers(b, h.cmd, filesChanged, 8081)
	})
	time.Sleep(2 * time.Second)
	h.stop()
	out["start"] = measureGroup(b, program, func() {
		h.launch()
		filesServed(b, h.cmd, 8081)
	})
	h.ready()
	h.stop()
	return out
}
