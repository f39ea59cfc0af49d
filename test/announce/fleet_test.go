//go:build system

package announce

import (
	"fmt"
	"net/netip"
	"testing"

	"github.com/ironvip/ironvip/test/consultest"
	"github.com/ironvip/ironvip/test/expect"
	"github.com/ironvip/ironvip/test/must"
)

// Three hosts of a fleet on Consul know each other and share a secret without any setting. VIPs move
// when a host dies and when another one drains it, also while Consul is away.
// Slow: hosts that start or return settle for a second, four times, beside a server of Consul.
func TestFleetMovesVIPs(t *testing.T) {
	t.Parallel()
	l := prepareLab(t, 3)
	node := l.Join("consul")
	consul := consultest.Start(t, consultest.Options{In: node, Addr: node.Addr4, Memory: true})
	fleet := fmt.Sprintf("[ipam]\nstore = \"consul\"\n[consul]\naddress = %q\n", consul.Addr)
	for _, h := range l.hosts {
		h.configure(services(serviceCount, l.backends), l.config(h, "l2", fleet))
		h.start()
	}
	a, b, c := l.hosts[0], l.hosts[1], l.hosts[2]
	owners := l.settled()
	for vip := range owners {
		expect.Equal(t, must.Get(l.client.Ask("tcp", netip.AddrPortFrom(vip, servicePort)))(t).Name, owners[vip], "%s of %s", vip, owners[vip])
	}

	c.must("node", "drain", "lb2", "--wait")
	l.awaitNone(b)
	c.must("node", "undrain", "lb2")
	l.awaitThese(owners)

	consul.Pause()
	a.kill()
	l.awaitNone(a)
	l.cutOff(b, true)
	c.awaitAll()
	l.cutOff(b, false)
	consul.Continue()
	a.start()
	l.awaitThese(owners)
}
