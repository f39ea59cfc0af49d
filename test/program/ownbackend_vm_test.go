//go:build vm

package program

import (
	"errors"
	"fmt"
	"net/netip"
	"strings"
	"testing"

	"github.com/ironvip/ironvip/test/need"
)

// A director can't deliver packets of direct routing or a tunnel to itself. A backend at its own address
// gets no clients, even if it is not checked, probes find what clients would, and the service says why.
func TestADirectorIsNoBackendOfItself(t *testing.T) {
	need.Module(t, "ipip")
	h, lab := newLab(t)
	at := netip.MustParseAddr(h.pool + ".20")
	service := func(name, forward, backends, health string, port int) string {
		return fmt.Sprintf("[[service]]\nname = %q\nvips = [%q]\nshare_key = \"one\"\nforward = %q\nscheduler = \"rr\"\nports = [ { port = %d } ]\nbackends = [ %s ]\n%s\n",
			name, at, forward, port, backends, health)
	}
	own, both := fmt.Sprintf("{ address = %q }", lab.Director.Addr4), fmt.Sprintf("{ address = %q }, { address = %q }", lab.Director.Addr4, lab.Backends[0].Addr4)
	h.write("services.d/all.toml", service("mixed", "dr", both, `health = { type = "none" }`, 80)+
		service("checked", "dr", own, "", 81)+service("wrapped", "tunnel", own, "", 82))
	real := h.on(t, lab.Backends[0], "")
	real.edit("ironvip.toml", "[dataplane]\n", "[dataplane]\nrole = \"real-server\"\n")
	real.write("services.d/all.toml", service("mixed", "dr", both, `health = { type = "none" }`, 80))
	h.start()
	real.start()
	for port := range uint16(3) {
		lab.Director.Serve("tcp", netip.AddrPortFrom(at, 80+port))
	}
	lab.Backends[0].Serve("tcp", netip.AddrPortFrom(at, 80))
	h.reaches(lab.Client, "tcp", at.String(), 80, lab.Backends[0].Name)
	for _, name := range []string{"mixed", "checked", "wrapped"} {
		mentions(t, name, h.cli("service", "explain", name).stdout, fmt.Sprintf("backend %s gets no clients from this host", lab.Director.Addr4))
	}
	h.eventually("the checks fail as clients would", func() error {
		for _, name := range []string{"checked", "wrapped"} {
			if text := h.ok("backend", "list", name); !strings.Contains(text, "tcp unhealthy") || !strings.Contains(text, "refused (as clients, at "+at.String()) {
				return errors.New(text)
			}
		}
		return nil
	})
	mentions(t, "the status", h.cli("status").stdout, "2 paths of health checks programmed")
}
