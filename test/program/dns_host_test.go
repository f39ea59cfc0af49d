//go:build system && !vm

package program

import (
	"fmt"
	"net/netip"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/ironvip/ironvip/internal/table"
)

// An address in dns.listen is removed from its interface and added again. Meanwhile, the status, an event
// and a metric say so, and the other address answers.
func TestDNSAddressComesBack(t *testing.T) {
	parallel(t)
	h, lab := newLab(t)
	const device, port = "client", 8653 // the director's interface on the client's side
	addr := netip.PrefixFrom(lab.Director.Addr4, 24)
	lan := named{host: h, at: netip.AddrPortFrom(addr.Addr(), port).String(), from: lab.Client.DialContext}
	loopback := named{host: h, at: fmt.Sprint("127.0.0.1:", port), from: lab.Director.DialContext}
	h.config(fmt.Sprintf("[dns]\nlisten = [%q, %q]\nallow = [%q]\n", lan.at, loopback.at, addr.Masked()))
	h.write("services.d/web.toml", service("web", "", newBackend(t, "a")))
	h.start()
	web := "NOERROR " + h.vip("web")
	up := func(lanUp string) {
		t.Helper()
		h.eventually("the metrics", func() error {
			text := lan.metricsText()
			for _, want := range []string{fmt.Sprintf("ironvip_dns_up{listen=%q} %s\n", lan.at, lanUp), fmt.Sprintf("ironvip_dns_up{listen=%q} 1\n", loopback.at)} {
				if !strings.Contains(text, want) {
					return fmt.Errorf("no %s", want)
				}
			}
			return nil
		})
	}
	const lost, again = "no interface of this host has the address", "an interface has the address again"
	for round := range 3 {
		lan.resolves("web.vip.internal", "A", web)
		h.status("OK", "dns", "names of 1 service in vip.internal at "+lan.at+", "+loopback.at)
		up("1")
		if text := h.ok("events"); strings.Count(text, lost) != round || strings.Count(text, again) != round {
			t.Errorf("round %d, events:\n%s", round, text)
		}
		lab.Director.DelAddr(device, addr)
		h.status("WARN", "dns", "DNS queries are not answered at "+lan.at+": "+lost)
		up("0")
		loopback.resolves("web.vip.internal", "A", web)
		if text := h.cli("doctor", "--config", h.dir).stdout; strings.Count(text, lost) != 1 {
			t.Errorf("doctor says it other than once:\n%s", text)
		}
		if text := h.ok("events"); strings.Count(text, lost) != round+1 || strings.Count(text, again) != round {
			t.Errorf("round %d without the address, events:\n%s", round, text)
		}
		lab.Director.AddAddr(device, addr)
	}
}

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
