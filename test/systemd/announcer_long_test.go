//go:build vm && long

package systemd

import (
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/ironvip/ironvip/announce/bgp/bgptest"
	"github.com/ironvip/ironvip/test/must"
	"github.com/ironvip/ironvip/test/wait"
)

// A restart of the announcer's unit, and a new version of the package, keep the connection of a session with a router: systemd holds
// it meanwhile.
// Slow: the emulated machine.
func TestAnnouncerKeepsSessions(t *testing.T) {
	h := newHost(t)
	h.install(older)
	h.start("ipvs")
	router := h.Client.Listen(netip.AddrPortFrom(h.Client.Addr4, 179)).(*net.TCPListener)
	write(t, config, read(t, config)+fmt.Sprintf("[announce]\nmode = \"bgp\"\n[[announce.bgp]]\npeer = %q\nasn = 65000\nlocal_asn = 65010\n", h.Client.Addr4))
	write(t, services, strings.Replace(read(t, services), "backends", "health = { type = \"none\" }\nbackends", 1)) // else a check of a busy machine fails, and withdraws the VIP
	run(t, "systemctl", "restart", "ironvip")
	h.running(older)
	run(t, "systemctl", "enable", "--now", "ironvip-announcer")

	must.Succeed(t, router.SetDeadline(time.Now().Add(time.Minute)))
	session := bgptest.NewConn(t, must.Get(router.Accept())(t))
	open := bgptest.Open()
	open.HoldTime = 0 // the router sends nothing while dpkg runs
	session.Establish(open)
	all := []string{"+" + web.Addr().String() + "/32", "EOR 4", "EOR 6"}
	session.Expect(all...)
	pid := func() string {
		return strings.TrimSpace(run(t, "systemctl", "show", "--property=MainPID", "--value", "ironvip-announcer"))
	}
	for _, step := range []struct{ name, command string }{
		{"a restart", "systemctl restart ironvip-announcer"},
		{"another restart", "systemctl restart ironvip-announcer"},
		{"an upgrade and a restart", "dpkg --install " + file(newer) + " && systemctl restart ironvip-announcer"},
	} {
		before := pid()
		run(t, "sh", "-c", step.command)
		session.Expect(all...) // once more, on the same connection
		if pid() == before {
			t.Errorf("%s: the announcer was not restarted", step.name)
		}
	}
	must.Succeed(t, router.SetDeadline(time.Now()))
	if _, err := router.Accept(); !errors.Is(err, os.ErrDeadlineExceeded) {
		t.Errorf("the announcer connected again: %v", err)
	}
	wait.For(t, "the session is listed", func() error {
		if out := run(t, "ironvip", "announce", "peers"); !strings.Contains(out, "established") {
			return errors.New(out)
		}
		return nil
	})
	run(t, "dpkg", "--purge", "ironvip")
}
