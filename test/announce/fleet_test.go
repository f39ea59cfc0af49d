//go:build system

package announce

import (
	"fmt"
	"net/netip"
	"slices"
	"testing"

	"github.com/ironvip/ironvip/test/consultest"
)

// Three hosts of a fleet on Consul know each other and share a secret without any setting. VIPs move
// when a host dies and when another one drains it, also while Consul is away.
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
	same := func(o map[netip.Addr]string) bool { return fmt.Sprint(o) == fmt.Sprint(owners) }
	for vip := range owners {
		if got, err := l.client.Ask("tcp", netip.AddrPortFrom(vip, servicePort)); err != nil || got.Name != owners[vip] {
			t.Errorf("%s of %s: %+v, %v", vip, owners[vip], got, err)
		}
	}

	c.must("node", "drain", "lb2", "--wait")
	l.awaitOwners("none on lb2", func(o map[netip.Addr]string) bool { return !slices.Contains(mapValues(o), b.Name) })
	c.must("node", "undrain", "lb2")
	l.awaitOwners("the former owners", same)

	consul.Pause()
	a.kill()
	l.awaitOwners("none on lb1", func(o map[netip.Addr]string) bool { return !slices.Contains(mapValues(o), a.Name) })
	l.cutOff(b, true)
	c.awaitAll()
	l.cutOff(b, false)
	consul.Continue()
	a.start()
	l.awaitOwners("the former owners", same)
}
