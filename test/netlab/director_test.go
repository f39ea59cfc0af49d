//go:build linux

package netlab_test

import (
	"net/netip"
	"testing"

	"github.com/ironvip/ironvip/test/must"
	"github.com/ironvip/ironvip/test/netlab"
)

// Packets, including those of open connections, pass a second director once both ends send them
// there.
func TestSecondDirector(t *testing.T) {
	l := netlab.New(t)
	second := l.AddDirector("director2")
	b := l.Backends[1]
	for _, v := range []struct{ client, backend netip.Addr }{{l.Client.Addr4, b.Addr4}, {l.Client.Addr6, b.Addr6}} {
		at := b.Serve("tcp", netip.AddrPortFrom(v.backend, 0))
		c := must.Get(l.Client.Dial("tcp", at))(t)
		if a, err := c.Ask(); err != nil || a.Name != b.Name {
			t.Fatal(a, err)
		}
		l.Client.Via(netip.PrefixFrom(v.backend, v.backend.BitLen()), second.Facing(l.Client, v.backend))
		b.Via(netip.PrefixFrom(v.client, v.client.BitLen()), second.Facing(b, v.client))
		l.Director.Sysctl("ipv4/ip_forward", "0")
		l.Director.Sysctl("ipv6/conf/all/forwarding", "0")
		if a, err := c.Ask(); err != nil || a.Name != b.Name {
			t.Errorf("by way of the second director: %v, %v", a, err)
		}
		l.Director.Sysctl("ipv4/ip_forward", "1")
		l.Director.Sysctl("ipv6/conf/all/forwarding", "1")
	}
}
