//go:build system

package program

import (
	"errors"
	"net"
	"net/netip"
	"strings"
	"testing"

	"github.com/ironvip/ironvip/test/expect"
	"github.com/ironvip/ironvip/test/must"
	"github.com/ironvip/ironvip/test/need"
	"github.com/ironvip/ironvip/test/netlab"
)

// newNFTLab returns a lab where nft and the proxy run, with mode proxy and the two services.
func newNFTLab(t *testing.T) (h *host, l *netlab.Lab, tcp, udp netip.AddrPort) {
	t.Helper()
	parallel(t)
	need.Root(t)
	need.Program(t, "nft")
	h, l = newLab(t)
	inDirector(t, l, "nft add table inet neighbour; ip link add ironvip0 type bridge; ip link set ironvip0 arp off; ip link set ironvip0 up")
	tcp, udp = twoServices(t, h, l)
	return h, l, tcp, udp
}

// A restart with another mode removes what the dataplane before has in the kernel, once the new one serves, and with its
// last connection. Open connections of nft continue.
func TestRestartWithAnotherMode(t *testing.T) {
	h, l, tcp, udp := newNFTLab(t)
	h.edit("ironvip.toml", `mode = "proxy"`, `mode = "nft"`)
	h.start()
	bothServe(t, h, l, tcp, udp)
	open, lives := opened(t, l, tcp)
	h.stop()
	lives("without an agent")

	h.edit("ironvip.toml", `mode = "nft"`, `mode = "proxy"`)
	h.start()
	h.status("OK", "leaving", "nft drains: 1 connection by tcp")
	lives("with the proxy")
	bothServe(t, h, l, tcp, udp)
	h.kill()
	h.start() // goes on where the last one was
	h.status("OK", "leaving", "nft drains: 1 connection by tcp")
	lives("after kill -9")
	drains(t, h, l, open, "1", true)
	inKernel(t, h, l, []string{"neighbour"}, []string{"ironvip_nft"})
	happened(t, h, "dataplane_removed", "proxy replaces nft: everything that was left is removed")

	h.stop()
	inDirector(t, l, "nft add table inet ironvip") // as of IPVS, which has no services any more
	h.edit("ironvip.toml", `mode = "proxy"`, `mode = "nft"`)
	h.start()
	h.reaches(l.Client, "tcp", tcp.Addr().String(), 80, l.Backends[0].Name, l.Backends[1].Name)
	inKernel(t, h, l, []string{"neighbour", "ironvip_nft"}, []string{"inet ironvip\n"})

	// Mode auto keeps what the host ran.
	h.stop()
	h.edit("ironvip.toml", `mode = "nft"`, `mode = "proxy"`)
	h.start()
	inKernel(t, h, l, []string{"neighbour"}, []string{"ironvip_nft"})
	h.stop()
	h.edit("ironvip.toml", `mode = "proxy"`, `mode = "auto"`)
	h.start()
	mentions(t, "auto", h.ok("dataplane", "show"), "proxy", `this host ran it before; nft can run, too: dataplane.mode = "nft" selects it`)
}

// `dataplane switch` moves a host as its plan says, without a refused client, and mode auto keeps that.
func TestSwitchCommand(t *testing.T) {
	h, l, tcp, udp := newNFTLab(t)
	h.start()
	refused := h.cli("dataplane", "switch", "nft")
	expect.Equal(t, refused.code, 5, "exit %d although dataplane.mode contradicts", refused.code)
	mentions(t, "the refusal", refused.stderr, "ironvip.toml:", `dataplane.mode = "proxy" contradicts`, `set dataplane.mode to "nft", or to "auto"`)
	expect.Equal(t, h.ok("dataplane", "switch", "proxy"), "this host runs proxy\n", "to the same")
	h.edit("ironvip.toml", `mode = "proxy"`, `mode = "auto"`)
	stop := keepAsking(l, tcp, udp)
	c, lives := opened(t, l, tcp)
	idle := must.Get(l.Client.Dial("tcp", tcp))(t)
	first := must.Get(idle.Ask())(t)
	plan := h.cli("dataplane", "switch", "nft", "--plan")
	expect.Equal(t, plan.code, 10, "plan: exit")
	mentions(t, "the plan", plan.stdout, "proxy -> nft", "tcp", "continue until they end, for 10m0s at most", "udp", "move with their next datagram")
	mentions(t, "the switch", h.ok("dataplane", "switch", "nft"), "proxy -> nft")
	h.status("OK", "leaving", "proxy drains: 2 connections by tcp")
	lives("with nft")
	comesFromItsPort(t, l, tcp, first)
	if a, err := idle.Ask(); err != nil || a != first {
		t.Errorf("a new client came from the port of an open connection, which is answered by %v, %v; at first by %v", a, err, first)
	}
	expect.Equal(t, h.ok("dataplane", "switch", "nft"), "this host runs nft\n", "once more")
	h.edit("ironvip.toml", `mode = "auto"`, `mode = "proxy"`)
	again := h.cli("dataplane", "switch", "nft")
	expect.Equal(t, again.code, 1, "to the same, which dataplane.mode contradicts: exit")
	mentions(t, "the contradiction", again.stdout, "this host runs nft, but the configuration does not keep it", "ironvip.toml:", `dataplane.mode = "proxy" contradicts: the next start runs that`)
	h.edit("ironvip.toml", `mode = "proxy"`, `mode = "auto"`)
	drains(t, h, l, c, "[12]", false) // idle may have the same backend
	expect.Succeed(t, stop())
	c.Close()
	idle.Close()
	h.eventually("the proxy has ended", func() error {
		if now := h.ok("status"); strings.Contains(now, "leaving") {
			return errors.New(now)
		}
		return nil
	})
	happened(t, h, "dataplane_retired", "dataplane_removed", "nft replaces proxy: everything that was left is removed")
	h.stop()
	h.start()
	mentions(t, "after a restart", h.ok("dataplane", "show"), "nft: in sync")
	c, lives = opened(t, l, tcp)
	mentions(t, "back", h.ok("dataplane", "switch", "proxy"), "nft -> proxy")
	h.status("OK", "leaving", "nft drains: 1 connection by tcp")
	bothServe(t, h, l, tcp, udp)
	lives("back with the proxy")
	c.Close()
}

// comesFromItsPort lets new clients come from the port that the proxy has a connection from, until one has the same backend.
// First is the first answer of that connection.
func comesFromItsPort(t *testing.T, l *netlab.Lab, to netip.AddrPort, first netlab.Answer) {
	t.Helper()
	second := netip.MustParsePrefix("10.77.0.3/24") // no other client has used this port there
	l.Client.AddAddr("eth0", second)
	for {
		c := must.Get(l.Client.DialFromPort("tcp", netip.AddrPortFrom(second.Addr(), first.Client.Port()), to))(t)
		a := must.Get(c.Ask())(t)
		_ = c.Conn.(*net.TCPConn).SetLinger(0) // the next one has the same port
		c.Close()
		if a.Name == first.Name {
			return
		}
	}
}
