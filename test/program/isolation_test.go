//go:build system

package program

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/ironvip/ironvip/internal/openfiles"
	"github.com/ironvip/ironvip/test/expect"
	"github.com/ironvip/ironvip/test/must"
	"github.com/ironvip/ironvip/test/wait"
)

// fewFiles is the limit of descriptors of the agents in these tests. Of it, 1824 are for traffic.
const fewFiles = 2048

// newTightHost creates a host with an agent that has few descriptors.
func newTightHost(t *testing.T) *host {
	h := newHost(t)
	h.limitFiles(fewFiles)
	return h
}

// limitFiles sets the agent's limit of descriptors, from its next start on.
func (h *host) limitFiles(n int) {
	h.adjust = func(cmd *exec.Cmd) {
		cmd.Args = append([]string{"sh", "-c", fmt.Sprintf(`ulimit -n %d; exec "$0" "$@"`, n)}, cmd.Args...)
		cmd.Args[3], cmd.Path = cmd.Path, "/bin/sh"
	}
}

// moreFiles raises the limit of descriptors of this process and the agent to n, if it may, until the
// end of the test. It returns the limit.
func moreFiles(t testing.TB, n int) int {
	t.Helper()
	var was unix.Rlimit
	must.Succeed(t, unix.Getrlimit(unix.RLIMIT_NOFILE, &was))
	if err := unix.Setrlimit(unix.RLIMIT_NOFILE, &unix.Rlimit{Cur: uint64(n), Max: max(uint64(n), was.Max)}); err != nil {
		t.Logf("a limit of %d descriptors: %v", n, err)
		return int(was.Cur)
	}
	t.Cleanup(func() { _ = unix.Setrlimit(unix.RLIMIT_NOFILE, &was) })
	return n
}

// files returns how many descriptors the agent has open.
func (h *host) files() int {
	h.t.Helper()
	entries := must.Get(os.ReadDir(fmt.Sprintf("/proc/%d/fd", h.cmd.Process.Pid)))(h.t)
	return len(entries)
}

// newHungBackend starts a server that accepts connections and never answers.
func newHungBackend(t *testing.T) *backend {
	t.Helper()
	port := mute(t)
	return &backend{name: "hung", addr: fmt.Sprintf("127.0.0.1:%d", port), port: port}
}

// send makes clients send a request to addr at a rate until ctx ends. Each waits for an answer for
// as long as it may. It returns when all have given up.
func send(ctx context.Context, addr string, every, patience time.Duration) {
	var clients sync.WaitGroup
	defer clients.Wait()
	tick := time.NewTicker(every)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
		clients.Go(func() {
			c, err := net.DialTimeout("tcp", addr, patience)
			if err != nil {
				return // refused
			}
			defer c.Close()
			fmt.Fprintln(c, "request")
			stop := context.AfterFunc(ctx, func() { c.Close() })
			defer stop()
			_ = c.SetDeadline(time.Now().Add(patience))
			_, _ = c.Read(make([]byte, 1))
		})
	}
}

// More event streams and silent connections than the agent has descriptors for its API affect neither the VIPs nor
// other callers of the API.
func TestCallersOfTheAPI(t *testing.T) {
	parallel(t)
	h := newTightHost(t)
	h.write("services.d/a.toml", service("well", "", newBackend(t, "w")))
	h.start()
	well := h.vip("well") + ":8080"
	before := h.files()
	call := func() net.Conn {
		t.Helper()
		c := must.Get(net.Dial("unix", filepath.Join(h.dir, "sock")))(t)
		t.Cleanup(func() { c.Close() })
		return c
	}
	for i := range 14 {
		c, want := call(), http.StatusOK
		if i >= 12 {
			want = http.StatusServiceUnavailable
		}
		fmt.Fprint(c, "GET /v1/events HTTP/1.1\r\nHost: x\r\nAccept: application/x-ndjson\r\n\r\n")
		_ = c.SetReadDeadline(time.Now().Add(wait.Timeout))
		if r, err := http.ReadResponse(bufio.NewReader(c), nil); err != nil || r.StatusCode != want {
			t.Fatalf("stream %d: %v, %v, want %d", i+1, r, err, want)
		}
	}
	for range 640 {
		call()
	}
	h.serves(well, "w")
	h.eventually("the status names the cause", func() error { // once connections without a request are replaced
		if r := h.cli("status"); !strings.Contains(r.stdout, "streams refused since the start: one client may have 12") {
			return fmt.Errorf("%s%s", r.stdout, r.stderr)
		}
		return nil
	})
	n := h.files()
	expect.AtMost(t, n, before+64, "%d descriptors, %d before the callers came", n, before)
	h.serves(h.put("more", newBackend(t, "m"))+":8080", "m") // a change through the API
}

// A service that is alone may use all descriptors for traffic. Then its clients are refused, the
// agent still answers, and the status fails with the cause.
//
// Slow: 1,800 clients come.
func TestDescriptorsUsedUp(t *testing.T) {
	parallel(t)
	h := newTightHost(t)
	h.write("services.d/a.toml", service("sick", "half_close_timeout = \"1s\"", newHungBackend(t)))
	h.start()
	sick := h.vip("sick") + ":8080"
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	var clients sync.WaitGroup
	defer clients.Wait()
	defer cancel()
	clients.Go(func() { send(ctx, sick, 2*time.Millisecond, time.Hour) })
	h.eventually("the status fails", func() error {
		r := h.cli("status")
		for _, want := range []string{"FAIL", "clients of any service are refused", "for service sick", "LimitNOFILE"} {
			if !strings.Contains(r.stdout, want) {
				return fmt.Errorf("status without %q: %s%s", want, r.stdout, r.stderr)
			}
		}
		return nil
	})
	if n := h.files(); n < openfiles.Divide(fewFiles).Traffic || n >= fewFiles {
		t.Errorf("%d of %d descriptors are open", n, fewFiles)
	}
	if text := h.scrape(); !strings.Contains(text, `ironvip_dataplane_refused_total{reason="descriptors"} 0`) {
		t.Error("the process had no descriptor left")
	}
	h.write("services.d/b.toml", service("well", "", newBackend(t, "w"))) // the agent can still read, write and listen
	well := h.vip("well") + ":8080"
	cancel() // all clients leave
	h.serves(well, "w")
}

// mute is a server at every address of the loopback that accepts connections and never answers.
func mute(t *testing.T) (port int) {
	t.Helper()
	l := must.Get(net.Listen("tcp4", "0.0.0.0:0"))(t)
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

// Probes of backends that don't answer use up the agent's share of few descriptors. The others wait,
// and the status names the cause and what to do.
//
// Slow: 300 probes wait for their timeouts.
func TestProbesWithFewDescriptors(t *testing.T) {
	parallel(t)
	const files = 256
	h := newHost(t)
	h.limitFiles(files)
	h.write("services.d/a.toml", silent(300, mute(t), `{ type = "http" }`)+service("well", "", newBackend(t, "w")))
	h.start()
	well := h.vip("well") + ":8080"
	h.serves(well, "w")
	h.eventually("the status names the cause", func() error {
		if text := h.cli("status").stdout; !strings.Contains(text, "of type http, https, grpc started late") || !strings.Contains(text, fmt.Sprintf("raise LimitNOFILE (now %d)", files)) {
			return fmt.Errorf("%s", text)
		}
		return nil
	})
	if n := h.files(); n >= files*3/4 {
		t.Errorf("%d of %d descriptors are in use", n, files)
	}
	h.serves(well, "w")
}
