//go:build linux

package l2_test

import (
	"net/netip"
	"testing"
	"time"

	"github.com/ironvip/ironvip/announce/l2"
	"github.com/ironvip/ironvip/test/expect"
	"github.com/ironvip/ironvip/test/must"
)

// Two hosts that have an address on a device without announcing it both answer for it. Each finds the
// other one, and not itself.
// Slow: two questions of a second each.
func TestAskFindsOtherHolders(t *testing.T) {
	t.Parallel()
	l := newLab(t)
	free, alone := netip.MustParseAddr("10.78.0.201"), netip.MustParseAddr("10.78.0.202")
	l.b.AddAddr("lo", netip.PrefixFrom(alone, 32))
	ask := func() (found []string) {
		l.a.Do(func() {
			all := must.Get(l2.Ask(t.Context(), []netip.Addr{alone, free, vip6, vip4, netip.MustParseAddr("192.0.2.1")}, time.Second))(t)
			for _, h := range all {
				found = append(found, h.Addr.String()+" "+h.MAC.String()+" "+h.Interface)
			}
		})
		return found
	}
	mac := l.b.MAC("eth0")
	expect.SameList(t, ask(), []string{alone.String() + " " + mac + " eth0", vip4.String() + " " + mac + " eth0"}, "found")
	// One that announces with another owner is silent.
	b := start(t, l.b, defaults())
	expect.Empty(t, ask(), "a host that doesn't own them answers")
	b.quit()
}
