//go:build linux

package l2_test

import (
	"net/netip"
	"slices"
	"testing"
	"time"

	"github.com/ironvip/ironvip/announce/l2"
)

// Two hosts that have an address on a device without announcing it both answer for it. Each finds the
// other one, and not itself.
func TestAskFindsOtherHolders(t *testing.T) {
	l := newLab(t)
	free, alone := netip.MustParseAddr("10.78.0.201"), netip.MustParseAddr("10.78.0.202")
	l.b.AddAddr("lo", netip.PrefixFrom(alone, 32))
	ask := func() (found []string) {
		l.a.Do(func() {
			all, err := l2.Ask(t.Context(), []netip.Addr{alone, free, vip6, vip4, netip.MustParseAddr("192.0.2.1")}, time.Second)
			must(t, err)
			for _, h := range all {
				found = append(found, h.Addr.String()+" "+h.MAC.String()+" "+h.Interface)
			}
		})
		return found
	}
	mac := l.b.MAC("eth0")
	if got, want := ask(), []string{alone.String() + " " + mac + " eth0", vip4.String() + " " + mac + " eth0"}; !slices.Equal(got, want) {
		t.Errorf("found %q, want %q", got, want)
	}
	// One that announces with another owner is silent.
	b := start(t, l.b, defaults())
	if got := ask(); len(got) > 0 {
		t.Errorf("a host that doesn't own them answers: %q", got)
	}
	b.quit()
}
