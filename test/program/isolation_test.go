//go:build system && !vm

package program

import (
	"bufio"
	"context"
	"fmt"
	"net"
	"net/http"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"
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

// A backend accepts connections and never answers. Whether its clients give up after a second or
// never, they use most of the host's descriptors. Clients of another service see no error, and the
// status names the cause and what to do.
func TestHungBackendOfAnotherService(t *testing.T) {
	parallel(t)
	for name, patience := range map[string]time.Duration{"clients give up": time.Second, "clients stay": time.Hour} {
		t.Run(name, func(t *testing.T) {
			h := newTightHost(t)
			h.write("services.d/a.toml", service("sick", "", newHungBackend(t))+service("well", "", newBackend(t, "w")))
			h.start()
			sick, well := h.vip("sick")+":8080", h.vip("well")+":8080"
			h.serves(well, "w")

			ctx, cancel := context.WithCancel(t.Context())
			defer cancel()
			var clients sync.WaitGroup
			defer clients.Wait()
			defer cancel()
			clients.Go(func() { send(ctx, sick, 4*time.Millisecond, patience) })
			var requests atomic.Int64
			var errs []error
			clients.Go(func() {
				n, failed := steadily(ctx, well)
				errs = failed
				requests.Store(int64(n))
			})
			h.eventually("the sick service has all that it may have", func() error {
				if text := h.scrape(); !strings.Contains(text, `ironvip_service_refused_total{reason="reserve",service="sick"}`) {
					return fmt.Errorf("none refused yet, %d descriptors", h.files())
				}
				return nil
			})
			for range 100 { // beside the other requests
				if _, err := who(well); err != nil {
					t.Errorf("a client of the other service: %v", err)
				}
				time.Sleep(20 * time.Millisecond)
			}
			status := h.cli("status")
			if status.code != 3 {
				t.Errorf("status ends with %d", status.code)
			}
			for _, want := range []string{"capacity", "to keep a reserve for others", "for service sick", "half_close_timeout", "LimitNOFILE (now 2048)"} {
				if !strings.Contains(status.stdout, want) {
					t.Errorf("status without %q:\n%s", want, status.stdout)
				}
			}
			if text := h.cli("service", "explain", "sick").stdout; !strings.Contains(text, "(reserve)") {
				t.Errorf("explain: %s", text)
			}
			if n := h.files(); n >= fewFiles*15/16 {
				t.Errorf("%d of %d descriptors are open", n, fewFiles)
			}
			metrics := h.scrape()
			for _, unwanted := range []string{`reason="capacity"`, `reason="descriptors"`} {
				if !strings.Contains(metrics, "ironvip_dataplane_refused_total{"+unwanted+"} 0") {
					t.Errorf("clients refused for %s", unwanted)
				}
			}
			if strings.Contains(metrics, `refused_total{reason="reserve",service="well"}`) {
				t.Error("clients of the other service are refused")
			}
			cancel()
			clients.Wait()
			if len(errs) > 0 || requests.Load() < 100 {
				t.Errorf("%d of %d requests to the other service fail, such as %v", len(errs), requests.Load(), errs)
			}
			if n := strings.Count(h.log.String(), "clients refused"); n != 1 {
				t.Errorf("refusals are logged %d times in a minute", n)
			}
		})
	}
}

// Ten times as many event streams and silent connections as the agent has descriptors for its API
// affect neither the VIPs nor other callers of the API.
func TestCallersOfTheAPI(t *testing.T) {
	parallel(t)
	h := newTightHost(t)
	h.write("services.d/a.toml", service("well", "", newBackend(t, "w")))
	h.start()
	well := h.vip("well") + ":8080"
	h.serves(well, "w")
	before := h.files()

	statuses := map[int]int{}
	for range 640 {
		c, err := net.Dial("unix", filepath.Join(h.dir, "sock"))
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { c.Close() })
		fmt.Fprint(c, "GET /v1/events HTTP/1.1\r\nHost: x\r\nAccept: text/event-stream\r\nLast-Event-ID: 0\r\n\r\n")
		_ = c.SetReadDeadline(time.Now().Add(maxWait))
		r, err := http.ReadResponse(bufio.NewReader(c), nil)
		if err != nil {
			t.Fatal(err)
		}
		statuses[r.StatusCode]++
		if r.StatusCode == http.StatusServiceUnavailable {
			c.Close()
		}
	}
	if statuses[http.StatusOK] != 12 || statuses[http.StatusServiceUnavailable] != 628 {
		t.Errorf("answers to event streams: %v", statuses)
	}
	for range 640 {
		c, err := net.Dial("unix", filepath.Join(h.dir, "sock"))
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { c.Close() })
	}
	if got := answered(t, well, 50); got["w"] != 50 {
		t.Errorf("answers of the service: %v", got)
	}
	h.eventually("the status names the cause", func() error {
		r := h.cli("status")
		for _, want := range []string{"event streams refused since the start: one client may have 12", "close connections and event streams"} {
			if !strings.Contains(r.stdout, want) {
				return fmt.Errorf("status without %q: %s%s", want, r.stdout, r.stderr)
			}
		}
		return nil
	})
	if text := h.scrape(); !strings.Contains(text, `ironvip_api_refused_total{kind="client_streams"} 628`) {
		t.Error("the refused streams are not counted")
	}
	if n := h.files(); n > before+64 {
		t.Errorf("%d descriptors, %d before the callers came", n, before)
	}
	h.serves(h.put("more", newBackend(t, "m"))+":8080", "m") // a change through the API
}

// A service that is alone may use all descriptors for traffic. Then its clients are refused, the
// agent still answers, and the status fails with the cause.
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
	if n := h.files(); n >= fewFiles {
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
