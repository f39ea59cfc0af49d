//go:build system

package program

import (
	"context"
	"fmt"
	"io"
	"net"
	"strings"
	"sync"
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
