//go:build vm

package program

import (
	"errors"
	"strings"
	"testing"

	"github.com/ironvip/ironvip/test/expect"
)

// Between ipvs and nft, open connections stay with their backends in both directions, also if the agent is killed in
// between. The kernel objects of the mode before go with their last connection; foreign state stays.
//
// Slow: five agents start in the emulated machine.
func TestRestartBetweenIPVSAndNFT(t *testing.T) {
	h, l := newLab(t)
	inDirector(t, l, "nft add table inet neighbour; ipvsadm -A -t 10.77.0.1:99 -s rr; ipvsadm -A -f 7 -s wlc")
	tcp, udp := twoServices(t, h, l)
	has := func(lacks ...string) {
		t.Helper()
		inKernel(t, h, l, []string{"neighbour", "10.77.0.1:99", "-A -f 7"}, lacks)
	}
	h.start()
	bothServe(t, h, l, tcp, udp)
	c, lives := opened(t, l, tcp)
	h.kill()

	h.edit("ironvip.toml", `mode = "ipvs"`, `mode = "nft"`)
	h.start()
	h.status("OK", "leaving", "ipvs drains: ") // it counts closed connections for two minutes
	lives("with nft")
	bothServe(t, h, l, tcp, udp)
	h.kill()
	lives("without an agent")
	h.start()
	h.status("OK", "leaving", "ipvs drains: ") // it counts closed connections for two minutes
	lives("with nft, after kill -9")
	drains(t, h, l, c, "[1-9][0-9]*", false) // IPVS counts closed ones while they are new

	// Back, while both are there.
	d, alsoLives := opened(t, l, tcp)
	h.kill()
	h.edit("ironvip.toml", `mode = "nft"`, `mode = "ipvs"`)
	h.start()
	h.status("OK", "leaving", "nft drains: 1 connection by tcp")
	lives("back with ipvs")
	alsoLives("back with ipvs")
	bothServe(t, h, l, tcp, udp)
	d.Close()
	has("ironvip_nft")
	lives("with ipvs alone")

	h.kill()
	h.edit("ironvip.toml", `mode = "ipvs"`, `mode = "proxy"`)
	h.start() // IPVS would take the packets of the proxy's clients
	has(tcp.Addr().String(), "inet ironvip\n")
	_, err := c.Ask()
	expect.True(t, err != nil, "a connection of IPVS survives the change to the proxy")
	bothServe(t, h, l, tcp, udp)
}

// `dataplane switch` moves a host away from IPVS and back under load: no client is refused, and open connections stay with
// their backends. The proxy ends them, as the plan says.
func TestSwitchFromIPVS(t *testing.T) {
	h, l := newLab(t)
	inDirector(t, l, "ipvsadm -A -t 10.77.0.1:99 -s rr")
	tcp, udp := twoServices(t, h, l)
	h.edit("ironvip.toml", `mode = "ipvs"`, `mode = "auto"`)
	h.start()
	bothServe(t, h, l, tcp, udp)
	mentions(t, "the choice", h.ok("dataplane", "show"), "ipvs: in sync")
	stop := keepAsking(l, tcp, udp)
	c, lives := opened(t, l, tcp)

	mentions(t, "to nft", h.ok("dataplane", "switch", "nft"), "ipvs -> nft", "continue until they end")
	h.status("OK", "leaving", "ipvs drains: ")
	lives("with nft")
	d, alsoLives := opened(t, l, tcp)

	mentions(t, "back", h.ok("dataplane", "switch", "ipvs"), "nft -> ipvs", "continue until they end")
	h.status("OK", "leaving", "nft drains: ")
	lives("back with ipvs")
	alsoLives("back with ipvs")
	expect.Succeed(t, stop())
	d.Close()
	lives("with ipvs alone")

	mentions(t, "to the proxy", h.ok("dataplane", "switch", "proxy"), "ipvs -> proxy", "end at once")
	h.eventually("ipvs has left", func() error {
		if now := h.ok("status"); strings.Contains(now, "leaving") {
			return errors.New(now)
		}
		return nil
	})
	_, err := c.Ask()
	expect.True(t, err != nil, "a connection of IPVS survives the change to the proxy")
	bothServe(t, h, l, tcp, udp)
	inKernel(t, h, l, []string{"10.77.0.1:99"}, []string{tcp.Addr().String(), "inet ironvip\n", "ironvip_nft"})
}

// A former IPVS is found and ended although its table was deleted while no agent ran. Foreign state stays.
func TestFormerIPVSWithoutItsTable(t *testing.T) {
	h, l := newLab(t)
	inDirector(t, l, "ipvsadm -A -t 10.77.0.1:99 -s rr")
	tcp, udp := twoServices(t, h, l)
	h.start()
	bothServe(t, h, l, tcp, udp)
	_, lives := opened(t, l, tcp)
	h.kill()
	inDirector(t, l, "nft delete table inet ironvip")
	h.edit("ironvip.toml", `mode = "ipvs"`, `mode = "nft"`)
	h.start()
	h.status("OK", "leaving", "ipvs drains: ")
	lives("with nft")
	bothServe(t, h, l, tcp, udp)
	h.stop()
	h.edit("ironvip.toml", "resync_interval", "hard_stop_after = \"1s\"\nresync_interval")
	h.start()
	inKernel(t, h, l, []string{"10.77.0.1:99", "ironvip_nft"}, []string{tcp.Addr().String()})
	bothServe(t, h, l, tcp, udp)
}
