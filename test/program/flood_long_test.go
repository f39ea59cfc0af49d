//go:build system && long

package program

import (
	"errors"
	"fmt"
	"net/netip"
	"testing"
	"time"

	"github.com/ironvip/ironvip/test/need"
	"github.com/ironvip/ironvip/test/wait"
)

// A service gets as many SYNs of invented clients as the host can take, and real clients are served: with syn_proxy, and with the
// userspace proxy. With nft and without masquerading they are served without syn_proxy, too, because the kernel takes half-open
// connections from its full table first.
// Slow: the flood has to fill the table, of 262,144 connections by default.
func TestFlood(t *testing.T) {
	for _, c := range []struct {
		mode, masquerade string
		proxied          bool
	}{{"nft", "never", false}, {"nft", "auto", true}, {"proxy", "auto", true}} {
		t.Run(fmt.Sprintf("%s %s", c.mode, c.masquerade), func(t *testing.T) {
			need.Root(t)
			need.Program(t, "nft")
			h, l := newLab(t)
			h.edit("ironvip.toml", fmt.Sprintf("mode = %q", mode), fmt.Sprintf("mode = %q", c.mode))
			to := netip.MustParseAddrPort(h.pool + ".20:80")
			backends := ""
			for _, b := range l.Backends {
				b.Serve("tcp", netip.AddrPortFrom(b.Addr4, 80))
				backends += fmt.Sprintf("{ address = %q }, ", b.Addr4)
			}
			h.write("services.d/a.toml", fmt.Sprintf("[[service]]\nname = \"web\"\nvips = [%q]\nmasquerade = %q\nsyn_proxy = %t\nports = [ { port = 80 } ]\nbackends = [ %s ]\nhealth = { type = \"none\" }\n",
				to.Addr(), c.masquerade, c.proxied, backends))
			h.start()
			h.reaches(l.Client, "tcp", to.Addr().String(), 80, l.Backends[0].Name, l.Backends[1].Name)

			sent, stop := l.Client.Flood(t, l.Director, to)
			wait.Until(t, "many SYNs", func() bool { return sent.Load() > 300_000 })
			const clients = 200
			before, began, failed := sent.Load(), time.Now(), 0
			var slowest time.Duration
			var errs error
			for range clients {
				at := time.Now()
				if _, err := l.Client.Ask("tcp", to); err != nil {
					failed++
					errs = errors.Join(errs, err)
				}
				slowest = max(slowest, time.Since(at))
			}
			took := time.Since(began)
			stop()
			t.Logf("%d SYNs a second; the slowest of %d clients waited %s; %d failed", int(float64(sent.Load()-before)/took.Seconds()), clients, slowest, failed)
			if failed > clients/100 {
				t.Errorf("%d of %d clients failed: %v", failed, clients, errs)
			}
		})
	}
}
