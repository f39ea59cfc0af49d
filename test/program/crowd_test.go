//go:build system && !vm

package program

import (
	"bytes"
	"context"
	"fmt"
	"net"
	"os"
	"strings"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/ironvip/ironvip/internal/openfiles"
)

// Many clients are connected at once and stay silent: 50,000, or as many as the limit of descriptors
// allows. Clients of another service notice nothing, and all descriptors return.
func TestManyConnections(t *testing.T) {
	clients, servers := 50_000, 4
	clients = min(clients, moreFiles(t, 4*clients)/4) // two each; a service leaves a quarter to others
	h := newHost(t)
	var backends []*backend
	for range servers { // each can have as many connections from one address as there are ports
		backends = append(backends, newHungBackend(t))
	}
	h.write("services.d/a.toml", service("crowded", `half_close_timeout = "1s"`, backends...)+service("well", "", newBackend(t, "w")))
	h.start()
	crowded, well := h.vip("crowded")+":8080", h.vip("well")+":8080"
	h.serves(well, "w")
	before, idle := h.files(), h.memory()

	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	var others sync.WaitGroup
	defer others.Wait()
	defer cancel()
	var requests int
	var errs []error
	others.Go(func() { requests, errs = steadily(ctx, well) })
	var mu sync.Mutex
	var open []net.Conn
	t.Cleanup(func() {
		for _, c := range open {
			c.Close()
		}
	})
	var dialing sync.WaitGroup
	for i := range servers {
		dialing.Go(func() {
			d := net.Dialer{LocalAddr: &net.TCPAddr{IP: net.IPv4(127, 0, 0, byte(10+i))}, Timeout: maxWait}
			for range clients / servers {
				c, err := d.Dial("tcp", crowded)
				if err != nil {
					t.Error(err)
					return
				}
				mu.Lock()
				open = append(open, c)
				mu.Unlock()
			}
		})
	}
	dialing.Wait()
	t.Logf("%d clients are connected", len(open))
	h.awaitCrowd(crowded, len(open))
	t.Logf("%d bytes of the agent's memory for each", (h.memory()-idle)/clients)
	for _, c := range open {
		c.Close()
	}
	h.eventually("the descriptors return", func() error {
		if n := h.files(); n > before+100 {
			return fmt.Errorf("%d descriptors, %d before", n, before)
		}
		return nil
	})
	cancel()
	others.Wait()
	if len(errs) > 0 || requests == 0 {
		t.Errorf("%d of %d requests to the other service fail, such as %v", len(errs), requests, errs)
	}
}

// One service can have as many connections as the budget of descriptors allows: 9,500 with 20,000. The
// backends' kernels accept them, so that they cost this process one descriptor each.
func TestConnectionsOfAllDescriptors(t *testing.T) {
	files := moreFiles(t, 20_000)
	connections := openfiles.Divide(uint64(files)).Traffic/2 - 32 // the rest are the API's clients and listeners
	if files == 20_000 && connections < 9500 {
		t.Errorf("20,000 descriptors are for %d connections", connections)
	}
	h := newHost(t)
	h.limitFiles(files)
	var backends []*backend
	for range 3 { // each has a queue of net.core.somaxconn, 4,096
		l, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { l.Close() })
		backends = append(backends, &backend{name: "silent", addr: l.Addr().String(), port: l.Addr().(*net.TCPAddr).Port, l: l})
	}
	h.write("services.d/a.toml", service("crowded", `health = { type = "none" }`, backends...))
	h.start()
	crowded := h.vip("crowded") + ":8080"
	open := make([]net.Conn, 0, connections)
	defer func() {
		for _, c := range open {
			c.Close()
		}
	}()
	for range connections {
		c, err := net.DialTimeout("tcp", crowded, maxWait)
		if err != nil {
			t.Fatalf("connection %d: %v", len(open)+1, err)
		}
		open = append(open, c)
	}
	h.awaitCrowd(crowded, connections)
	if n := h.files(); n < 2*connections {
		t.Errorf("%d descriptors for %d connections", n, connections)
	}
	for _, l := range strings.Split(h.scrape(), "\n") {
		if strings.Contains(l, "refused_total{") && !strings.HasSuffix(l, " 0") {
			t.Errorf("clients are refused: %s", l)
		}
	}
}

// moreFiles raises the limit of descriptors of this process and the agent to n, if it may, until the
// end of the test. It returns the limit.
func moreFiles(t testing.TB, n int) int {
	t.Helper()
	var was unix.Rlimit
	if err := unix.Getrlimit(unix.RLIMIT_NOFILE, &was); err != nil {
		t.Fatal(err)
	}
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
	entries, err := os.ReadDir(fmt.Sprintf("/proc/%d/fd", h.cmd.Process.Pid))
	if err != nil {
		h.t.Fatal(err)
	}
	return len(entries)
}

// awaitCrowd waits until this many connections to the service crowded have a backend. Descriptors don't show it: the agent
// also closes some of its own.
func (h *host) awaitCrowd(at string, connections int) {
	h.t.Helper()
	want := fmt.Sprintf("ironvip_service_active_connections{frontend=\"%s/tcp\",port=\"8080/tcp\",service=\"crowded\"} %d\n", at, connections)
	h.eventually("all have a backend", func() error {
		if all := h.scrape(); !strings.Contains(all, want) {
			return fmt.Errorf("no line %s", want)
		}
		return nil
	})
}

// memory returns how many bytes of memory the agent uses.
func (h *host) memory() int {
	h.t.Helper()
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", h.cmd.Process.Pid))
	if err != nil {
		h.t.Fatal(err)
	}
	_, text, _ = bytes.Cut(text, []byte("VmRSS:"))
	var kib int
	if _, err := fmt.Sscan(string(text), &kib); err != nil {
		h.t.Fatal(err)
	}
	return kib << 10
}

// newHungBackend starts a server that accepts connections and never answers or closes.
func newHungBackend(t *testing.T) *backend {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	var mu sync.Mutex
	var open []net.Conn
	var accepting sync.WaitGroup
	accepting.Go(func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			mu.Lock()
			open = append(open, c)
			mu.Unlock()
		}
	})
	t.Cleanup(func() {
		l.Close()
		accepting.Wait()
		for _, c := range open {
			c.Close()
		}
	})
	return &backend{name: "hung", addr: l.Addr().String(), port: l.Addr().(*net.TCPAddr).Port, l: l}
}

// steadily asks addr 50 times a second until ctx ends, and returns the number of requests and the
// errors.
func steadily(ctx context.Context, addr string) (n int, errs []error) {
	tick := time.NewTicker(20 * time.Millisecond)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return n, errs
		case <-tick.C:
		}
		n++
		if _, err := who(addr); err != nil {
			errs = append(errs, err)
		}
	}
}
