//go:build system && long

package program

import (
	"bytes"
	"context"
	"fmt"
	"math/rand/v2"
	"net"
	"os"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/ironvip/ironvip/test/must"
	"github.com/ironvip/ironvip/test/seed"
	"github.com/ironvip/ironvip/test/wait"
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
			d := net.Dialer{LocalAddr: &net.TCPAddr{IP: net.IPv4(127, 0, 0, byte(10+i))}, Timeout: wait.Timeout}
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

// memory returns how many bytes of memory the agent uses.
func (h *host) memory() int {
	h.t.Helper()
	text := must.Get(os.ReadFile(fmt.Sprintf("/proc/%d/status", h.cmd.Process.Pid)))(h.t)
	_, text, _ = bytes.Cut(text, []byte("VmRSS:"))
	var kib int
	must.Get(fmt.Sscan(string(text), &kib))(h.t)
	return kib << 10
}

// An agent that is killed at any time after a backend has failed, also between the result of a probe and its effect,
// ends up with the same state: the backend is unhealthy, and healthy when it is back.
func TestKilledAtRandomAfterProbes(t *testing.T) {
	r := rand.New(rand.NewPCG(seed.Of(t), 0))
	delays := make([]time.Duration, 8)
	for i := range delays {
		delays[i] = time.Duration(r.Int64N(int64(400 * time.Millisecond)))
	}
	h := newHost(t)
	a, b := newBackend(t, "a"), newBackend(t, "b")
	h.write("services.d/a.toml", service("web", `health = { type = "tcp", interval = "100ms", timeout = "100ms", fall = 1, rise = 1 }`, a, b))
	h.start()
	web := h.vip("web") + ":8080"
	h.serves(web, "a", "b")
	for _, delay := range delays { // a result comes within 100 ms, then a batch, then a write
		must.Succeed(t, a.refuse())
		time.Sleep(delay)
		h.kill()
		h.start()
		h.serves(web, "b")
		h.eventually("the backend is unhealthy", func() error {
			if text := h.ok("backend", "list", "web"); strings.Count(text, "tcp unhealthy") != 1 {
				return fmt.Errorf("%s", text)
			}
			return nil
		})
		must.Succeed(t, a.accept())
		time.Sleep(delay)
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
