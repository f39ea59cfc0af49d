//go:build system

package program

import (
	"errors"
	"fmt"
	"net/netip"
	"strings"
	"testing"

	"github.com/ironvip/ironvip/test/need"
)

// Two agents that use one device name each other in their status, in doctor and as events, until one ends. Neither a
// restart nor kill -9 of an agent leaves a trace of it, and without a VIP on the device there is nothing to report.
func TestTwoAgentsWithOneDevice(t *testing.T) {
	for _, mode := range []string{"proxy", "nft"} {
		t.Run(mode, func(t *testing.T) { shareDevice(t, mode) })
	}
}

func shareDevice(t *testing.T, dataplane string) {
	parallel(t)
	need.Root(t)
	h, l := newLab(t)
	inDirector(t, l, "ip link add ironvip0 type bridge; ip link set ironvip0 arp off; ip link set ironvip0 up") // this kernel may have no dummy
	other := newHost(t)
	other.pool = "10." + strings.SplitN(other.pool, ".", 2)[1]
	other.config("")
	other.inside = h.inside
	ofLab := func(h *host, name string, i int) {
		l.Backends[i].Serve("tcp", netip.AddrPortFrom(l.Backends[i].Addr4, 80))
		h.write("services.d/"+name+".toml", fmt.Sprintf("[[service]]\nname = %q\nports = [ { port = 80 } ]\nbackends = [ { address = %q } ]\n", name, l.Backends[i].Addr4))
		h.edit("ironvip.toml", fmt.Sprintf("mode = %q", mode), fmt.Sprintf("mode = %q", dataplane))
		h.edit("ironvip.toml", "[[pool]]", "[[source]]\ntype = \"static\"\npath = \"services.d\"\n[[pool]]")
	}
	ofLab(h, "one", 0)
	ofLab(other, "two", 1)
	names := func(h *host, pid int) {
		t.Helper()
		h.status("WARN", "device", fmt.Sprintf("dataplane.device: the agent of process %d uses ironvip0, too", pid))
	}
	alone := func(h *host) {
		t.Helper()
		h.eventually("no other agent", func() error {
			if r := h.cli("status", "-o", "json"); r.stdout == "" || strings.Contains(r.stdout, `"device"`) {
				return errors.New(r.stdout + r.stderr)
			}
			return nil
		})
	}

	h.start()
	h.vip("one")
	other.start()
	first, second := h.cmd.Process.Pid, other.cmd.Process.Pid
	names(other, first)
	names(h, second)
	_, tree := other.rest("GET", "/v1/status", "")
	mentions(t, "/v1/status", fmt.Sprint(tree), fmt.Sprintf("process %d uses ironvip0", first))
	var doctor result
	l.Director.Do(func() { doctor = command(t, "doctor", "--config", other.dir) })
	mentions(t, "doctor", doctor.stdout, fmt.Sprintf("process %d uses ironvip0", first), "dataplane.device", "stop one of the agents")
	happened(t, h, "device_shared", fmt.Sprintf("process %d", second))

	// A restart changes the process, and nothing else.
	h.stop()
	h.start()
	names(other, h.cmd.Process.Pid)
	names(h, second)

	other.kill()
	alone(h)
	happened(t, h, "device_unshared")

	// The next run of an agent doesn't find the one before.
	h.kill()
	h.log = nil
	h.start()
	h.vip("one")
	alone(h)
	if log := h.log.String(); strings.Contains(log, "device shared") {
		t.Errorf("an agent found the one before:\n%s", log)
	}
}
