//go:build system && !vm

package program

import (
	"fmt"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/ironvip/ironvip/internal/table"
)

// A take-over loses no query, by either transport.
func TestDNSDuringATakeOver(t *testing.T) {
	parallel(t)
	n := newNamed(t, "")
	n.write("services.d/web.toml", service("web", "", newBackend(t, "a")))
	n.start()
	want := "NOERROR " + n.vip("web")
	n.resolves("web.vip.internal", "A", want)
	type client struct {
		transport string
		asked     atomic.Int64
		failed    error // the first failure; valid when done
	}
	clients := []*client{{transport: "udp"}, {transport: "tcp"}}
	stop := make(chan struct{})
	var done sync.WaitGroup
	for _, c := range clients {
		done.Go(func() {
			for !table.IsClosed(stop) {
				query := c.asked.Add(1)
				if got, err := n.ask(c.transport, "web.vip.internal", "A"); (err != nil || got != want) && c.failed == nil {
					c.failed = fmt.Errorf("query %d: %q, %w", query, got, err)
				}
			}
		})
	}
	more := func() {
		t.Helper()
		for _, c := range clients {
			from := c.asked.Load()
			n.eventually("100 more queries by "+c.transport, func() error {
				if now := c.asked.Load(); now < from+100 {
					return fmt.Errorf("%d", now-from)
				}
				return nil
			})
		}
	}
	more()
	next := n.takeOver()
	more()
	next.takeOver()
	more()
	close(stop)
	done.Wait()
	for _, c := range clients {
		if c.failed != nil {
			t.Errorf("%s: %v", c.transport, c.failed)
		}
	}
}
