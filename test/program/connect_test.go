//go:build system

package program

import (
	"fmt"
	"net/netip"
	"os/exec"
	"strings"
	"syscall"
	"testing"

	"github.com/ironvip/ironvip/test/expect"
	"github.com/ironvip/ironvip/test/must"
	"github.com/ironvip/ironvip/test/need"
	"github.com/ironvip/ironvip/test/netlab"
)

// newConnectLab returns a lab with nft and balancing at connect(), the manager that keeps it, and a service.
func newConnectLab(t *testing.T) (h *host, l *netlab.Lab, m *manager, web netip.AddrPort, backend string) {
	t.Helper()
	parallel(t)
	need.Root(t)
	need.Program(t, "nft")
	h, l = newLab(t)
	h.edit("ironvip.toml", `mode = "proxy"`, "mode = \"nft\"\nconnect = \"on\"")
	inDirector(t, l, "ip link add ironvip0 type bridge; ip link set ironvip0 arp off; ip link set ironvip0 up")
	b := l.Backends[0].Serve("tcp", netip.AddrPortFrom(l.Backends[0].Addr4, 0))
	h.write("services.d/web.toml", fmt.Sprintf("[[service]]\nname = \"web\"\nports = [ { port = 80 } ]\nscheduler = \"wrr\"\nbackends = [ { address = %q, port = %d } ]\n[[service]]\nname = \"left\"\nports = [ { port = 80 } ]\nscheduler = \"fo\"\n", b.Addr(), b.Port()))
	m = newManager(t, h)
	h.start()
	return h, l, m, netip.AddrPortFrom(netip.MustParseAddr(h.vip("web")), 80), b.String()
}

// Balancing at connect() goes on when the agent is killed, and the next agent goes on with it; an agent without it ends it. It
// counts what it balances.
func TestConnectOutlivesTheAgent(t *testing.T) {
	h, l, m, web, backend := newConnectLab(t)
	mentions(t, "dataplane show", h.ok("dataplane", "show"), "at connect(): 1 of 2 frontends for programs of this host")
	balanced := func(when string) *netlab.Conn {
		t.Helper()
		c := must.Get(l.Director.Dial("tcp", web))(t)
		a := must.Get(c.Ask())(t)
		expect.Equal(t, fmt.Sprint(a.Name, a.Client), fmt.Sprint("backend1", c.LocalAddr()), "%s", when)
		return c
	}
	open := balanced("at first")
	h.carries("web", 1, 1, map[string]float64{backend: 1})
	mentions(t, "connections", h.ok("dataplane", "connections"), open.LocalAddr().String())
	mentions(t, "explain", h.ok("service", "explain", "web"), "at connect()")
	m.received(h)
	h.kill()
	inDirector(t, l, "nft delete table inet ironvip_nft")
	balanced("without an agent and the rules of the dataplane").Close()

	stop, done := make(chan struct{}), make(chan error)
	go func() {
		for {
			select {
			case <-stop:
				done <- nil
				return
			default:
			}
			if _, err := l.Director.Ask("tcp", web); err != nil {
				done <- err
				return
			}
		}
	}()
	m.launchWithStore(h)
	close(stop)
	must.Succeed(t, <-done, "a program connects while the next agent begins")
	balanced("with the next agent").Close()
	_, err := open.Ask()
	must.Succeed(t, err, "a connection that was open")

	h.stop()
	h.edit("ironvip.toml", `connect = "on"`, `connect = "off"`)
	m.launchWithStore(h)
	m.await(h, "FDSTOREREMOVE=1", 2)
	expect.False(t, strings.Contains(h.ok("dataplane", "show"), "connect()"), "dataplane show mentions connect()")
	h.reaches(l.Director, "tcp", web.Addr().String(), 80, "backend1") // by nft
	_, err = open.Ask()
	must.Succeed(t, err, "a connection of before")
}

// Without the rights, mode on is refused, and mode auto leaves all to the dataplane and says why.
func TestConnectWithoutRights(t *testing.T) {
	parallel(t)
	need.Root(t)
	h := newHost(t)
	h.write("services.d/web.toml", service("web", "", newBackend(t, "a")))
	h.belongsTo(nobody)
	h.adjust = func(cmd *exec.Cmd) {
		cmd.Path = h.publicBinary()
		cmd.SysProcAttr.Credential = &syscall.Credential{Uid: nobody, Gid: nobody}
	}
	h.edit("ironvip.toml", `mode = "`+mode+`"`, `mode = "`+mode+`"
connect = "sometimes"`)
	mentions(t, "a wrong value", h.fails(), "ironvip.toml:8", "dataplane.connect", `"sometimes"`, "auto")
	h.edit("ironvip.toml", `"sometimes"`, `"on"`)
	mentions(t, "connect = on", h.fails(), `dataplane.connect = "on" can't work here`, "lacks CAP_BPF and CAP_NET_ADMIN", "hint: ")
	h.edit("ironvip.toml", `"on"`, `"auto"`)
	h.start()
	mentions(t, "dataplane show", h.ok("dataplane", "show"), "not at connect(): this process lacks CAP_BPF")
	h.serves(h.vip("web")+":8080", "a")
}
