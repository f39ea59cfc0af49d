//go:build system && !vm

package program

import (
	"context"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"net/http"
	"os/exec"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"
)

// mute is a server at every address of the loopback that accepts connections and never answers.
func mute(t *testing.T) (port int) {
	t.Helper()
	l, err := net.Listen("tcp4", "0.0.0.0:0")
	if err != nil {
		t.Fatal(err)
	}
	var all sync.WaitGroup
	ctx, cancel := context.WithCancel(t.Context())
	all.Go(func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			all.Go(func() {
				defer c.Close()
				defer context.AfterFunc(ctx, func() { c.SetDeadline(time.Now()) })()
				io.Copy(io.Discard, c) // until the probe resets it
			})
		}
	})
	t.Cleanup(func() { l.Close(); cancel(); all.Wait() })
	return l.Addr().(*net.TCPAddr).Port
}

// silent is a service with n backends at that port, each probed by the check.
func silent(n, port int, check string) string {
	list := make([]string, n)
	for i := range list {
		list[i] = fmt.Sprintf("{ address = \"127.200.%d.%d\", port = %d }", i/250, 1+i%250, port)
	}
	return fmt.Sprintf("[[service]]\nname = \"silent\"\nports = [ { port = 8080 } ]\nhealth = %s\nbackends = [ %s ]\n", check, strings.Join(list, ",\n"))
}

// undisturbed reports requests to addr that fail while f runs.
func undisturbed(t *testing.T, addr string, f func()) {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	var requests int
	var errs []error
	var asking sync.WaitGroup
	asking.Go(func() { requests, errs = steadily(ctx, addr) })
	f()
	cancel()
	asking.Wait()
	if len(errs) > 0 || requests == 0 {
		t.Errorf("%d of %d requests to the other service fail, such as %v", len(errs), requests, errs)
	}
}

// Probes of backends that don't answer use up the agent's share of few descriptors. The others wait,
// the status names the cause and what to do, a counter increases, and clients notice nothing.
func TestProbesWithFewDescriptors(t *testing.T) {
	parallel(t)
	const files = 256
	h := newHost(t)
	h.adjust = func(cmd *exec.Cmd) {
		cmd.Args = append([]string{"sh", "-c", fmt.Sprintf(`ulimit -n %d; exec "$0" "$@"`, files)}, cmd.Args...)
		cmd.Path = "/bin/sh"
	}
	h.write("services.d/a.toml", silent(300, mute(t), `{ type = "http" }`)+service("well", "", newBackend(t, "w")))
	h.start()
	well := h.vip("well") + ":8080"
	h.serves(well, "w")
	undisturbed(t, well, func() {
		h.eventually("the status names the cause", func() error {
			if text := h.cli("status").stdout; !strings.Contains(text, "of type http, https, grpc started late") || !strings.Contains(text, fmt.Sprintf("raise LimitNOFILE (now %d)", files)) {
				return fmt.Errorf("%s", text)
			}
			return nil
		})
		if n := h.files(); n >= files*3/4 {
			t.Errorf("%d of %d descriptors are in use", n, files)
		}
		h.eventually("they are counted", func() error {
			for line := range strings.Lines(h.scrape()) {
				if n, is := strings.CutPrefix(line, "ironvip_health_checks_late_total "); is && strings.TrimSpace(n) != "0" {
					return nil
				}
			}
			return fmt.Errorf("ironvip_health_checks_late_total is 0")
		})
	})
}

// 5,000 probes time out at the same time, or as many as the limit of descriptors allows, and then the
// others. All of these backends become unhealthy, the status fails and says what to do, and clients of another service notice nothing.
func TestManyTimeouts(t *testing.T) {
	const n = 5000
	moreFiles(t, 1<<19)
	h := newHost(t)
	h.write("services.d/a.toml", silent(n, mute(t), `{ type = "tcp", send = "PING", expect = "PONG" }`)+service("well", "", newBackend(t, "w")))
	h.start()
	well := h.vip("well") + ":8080"
	h.serves(well, "w")
	undisturbed(t, well, func() {
		h.eventually("all are unhealthy", func() error {
			if text := h.cli("status").stdout; !strings.Contains(text, fmt.Sprintf("%d of %d backends unhealthy", n, n+1)) || !strings.Contains(text, "FAIL  services") {
				return fmt.Errorf("%s", text)
			}
			return nil
		})
	})
	for line := range strings.Lines(h.scrape()) {
		var batches int
		if _, err := fmt.Sscanf(line, "ironvip_health_batches_total %d", &batches); err == nil && batches > n/50 {
			t.Errorf("%d changes reached the pipeline in %d batches", n, batches)
		}
	}
}

// An agent that is stopped again and again, as in a throttled control group, sees probes time out
// whose answers came. It keeps the health of the backends, counts the probes and says so. A backend
// that really hangs is unhealthy soon after.
func TestStoppedAgentKeepsHealth(t *testing.T) {
	parallel(t)
	h := newHost(t)
	var hung atomic.Bool
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	server := &http.Server{Handler: http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		wait := 50 * time.Millisecond // some probes are in progress at any time
		if hung.Load() {
			wait = time.Hour
		}
		select {
		case <-time.After(wait):
		case <-r.Context().Done():
		}
	})}
	go server.Serve(l)
	t.Cleanup(func() { server.Close() })
	a := &backend{name: "a", addr: l.Addr().String(), port: l.Addr().(*net.TCPAddr).Port}
	h.write("services.d/a.toml", service("web", `health = { type = "http", interval = "100ms", timeout = "400ms", fall = 1 }`, a))
	h.start()
	h.vip("web")
	state := func(want string) {
		t.Helper()
		h.eventually("the backend is "+want, func() error {
			if text := h.ok("backend", "list", "web"); !strings.Contains(text, "http "+want) {
				return fmt.Errorf("%s", text)
			}
			return nil
		})
	}
	state("healthy")
	for range 30 {
		h.signalOnly(syscall.SIGSTOP)
		time.Sleep(450 * time.Millisecond) // less than the stall that the engine also notices by itself
		h.signalOnly(syscall.SIGCONT)
		time.Sleep(100 * time.Millisecond)
	}
	if text := h.ok("events"); strings.Contains(text, "backend_unhealthy") {
		t.Errorf("%s", text)
	}
	if text := h.scrape(); !strings.Contains(text, `ironvip_health_checks_total{outcome="starved",type="http"}`) {
		t.Errorf("no probe is counted as starved")
	}
	if text := h.cli("status").stdout; !strings.Contains(text, "WARN  probes") || !strings.Contains(text, "reduce the load of this host") {
		t.Errorf("%s", text)
	}
	state("healthy")
	hung.Store(true)
	state("unhealthy")
}

// An agent that is killed at any time after a backend has failed, also between the result of a probe
// and its effect, ends up with the same state: the backend is unhealthy, and healthy when it is back.
func TestKilledBetweenProbeAndEffect(t *testing.T) {
	parallel(t)
	h := newHost(t)
	a, b := newBackend(t, "a"), newBackend(t, "b")
	h.write("services.d/a.toml", service("web", `health = { type = "tcp", interval = "100ms", timeout = "100ms", fall = 1, rise = 1 }`, a, b))
	h.start()
	web := h.vip("web") + ":8080"
	h.serves(web, "a", "b")
	for range 8 {
		if err := a.refuse(); err != nil {
			t.Fatal(err)
		}
		time.Sleep(rand.N(400 * time.Millisecond)) // a result within 100 ms, then a batch, then a write
		h.kill()
		h.start()
		h.serves(web, "b")
		h.eventually("the backend is unhealthy", func() error {
			if text := h.ok("backend", "list", "web"); strings.Count(text, "tcp unhealthy") != 1 {
				return fmt.Errorf("%s", text)
			}
			return nil
		})
		if err := a.accept(); err != nil {
			t.Fatal(err)
		}
		time.Sleep(rand.N(400 * time.Millisecond))
		h.kill()
		h.start()
		h.serves(web, "a", "b")
		h.eventually("both are healthy", func() error {
			if text := h.ok("backend", "list", "web"); strings.Count(text, "tcp healthy") != 2 {
				return fmt.Errorf("%s", text)
			}
			return nil
		})
	}
}
