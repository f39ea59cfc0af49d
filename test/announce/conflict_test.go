//go:build system

package announce

import (
	"fmt"
	"net/netip"
	"strings"
	"testing"

	"github.com/ironvip/ironvip/test/wait"
)

// Another station has a VIP. The owner reports it with the station's MAC, in every view, and
// announces again when the station is gone.
func TestAnotherStationHasAVIP(t *testing.T) {
	l := newLab(t, 2, "")
	a := l.hosts[0]
	owners := l.settled()
	for _, v6 := range []bool{false, true} {
		vip := ownedBy(t, owners, a.Name, v6)
		other := l.Join(fmt.Sprint("other", vip.BitLen()))
		other.AddAddr("eth0", netip.PrefixFrom(vip, vip.BitLen()))
		mac := other.MAC("eth0")
		wait.For(t, "the conflict", func() error {
			// The station uses the address: it asks for another one, and so says that it has it.
			_, _ = other.Ask("tcp", netip.AddrPortFrom(map[bool]netip.Addr{false: l.client.Addr4, true: l.client.Addr6}[v6], 9))
			_, _ = other.DialFrom("tcp", vip, netip.AddrPortFrom(map[bool]netip.Addr{false: a.Addr4, true: a.Addr6}[v6], 9))
			out, err := a.run("announce", "explain", vip.String())
			if err == nil && (!strings.Contains(out, "conflict") || !strings.Contains(out, mac)) {
				err = fmt.Errorf("%s", out)
			}
			return err
		})
		if out, _ := a.run("status"); !strings.Contains(out, "conflict") {
			t.Error(out)
		}
		if out := a.must("events"); !strings.Contains(out, "vip_conflict") {
			t.Error(out)
		}
		link, err := other.Netlink.LinkByName("eth0")
		if err == nil {
			err = other.Netlink.LinkDel(link)
		}
		if err != nil {
			t.Fatal(err)
		}
		wait.For(t, "the end of the conflict", func() error {
			all, err := a.announcements()
			if err == nil && all[vip].State != "announced" {
				err = fmt.Errorf("%s: %+v", all[vip].State, all[vip].Places)
			}
			return err
		})
	}
}
