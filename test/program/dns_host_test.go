//go:build system

package program

import (
	"fmt"
	"net/netip"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/ironvip/ironvip/internal/table"
	"github.com/ironvip/ironvip/test/expect"
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
	up := func(text string) {
		t.Helper()
		h.eventually("the metrics", func() error {
			if metric := fmt.Sprintf("ironvip_dns_up{listen=%q} %s\n", lan.at, text); !strings.Contains(h.scrape(), metric) {
				return fmt.Errorf("no %s", metric)
			}
			return nil
		})
	}
	lan.resolves("web.vip.internal", "A", web)
	up("1")
	lab.Director.DelAddr(device, addr)
	h.status("WARN", "dns", "DNS queries are not answered at "+lan.at+": no interface of this host has the address")
	up("0")
	loopback.resolves("web.vip.internal", "A", web)
	lab.Director.AddAddr(device, addr)
	lan.resolves("web.vip.internal", "A", web)
	happened(t, h, "dns_listener_failed", "no interface of this host has the address")
	happened(t, h, "dns_listener_open", "an interface has the address again")
}

// With its sockets in the service manager's store, a restart of the agent loses no query, by either transport.
func TestDNSDuringARestart(t *testing.T) {
	parallel(t)
	n := newNamed(t, "")
	n.write("services.d/web.toml", service("web", "", newBackend(t, "a")))
	m := newManager(t, n.host)
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
	var killed atomic.Bool
	var done sync.WaitGroup
	for _, c := range clients {
		done.Go(func() {
			for !table.IsClosed(stop) {
				query := c.asked.Add(1)
				got, err := n.ask(c.transport, "web.vip.internal", "A")
				if err != nil && killed.Load() { // it takes the query or the connection with it that it has accepted
					got, err = n.ask(c.transport, "web.vip.internal", "A")
				}
				if (err != nil || got != want) && c.failed == nil {
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
	n.stop()
	m.launchWithStore(n.host)
	more()
	killed.Store(true)
	n.kill()
	m.launchWithStore(n.host)
	more()
	close(stop)
	done.Wait()
	for _, c := range clients {
		expect.Succeed(t, c.failed, c.transport)
	}
}
