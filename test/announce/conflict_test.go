//go:build system

package announce

import (
	"errors"
	"fmt"
	"net/netip"
	"strings"
	"testing"

	"github.com/ironvip/ironvip/announce/l2/frame"
	"github.com/ironvip/ironvip/announce/l2/wire"
	"github.com/ironvip/ironvip/test/expect"
	"github.com/ironvip/ironvip/test/must"
	"github.com/ironvip/ironvip/test/netlab"
	"github.com/ironvip/ironvip/test/wait"
)

// Another station has a VIP of each family. The owner reports it with the station's MAC, in every view, and
// announces again when the station is gone.
// Slow: a conflict lasts 2 s at least.
func TestAnotherStationHasAVIP(t *testing.T) {
	t.Parallel()
	l := newLab(t, 2, patient)
	a := l.hosts[0]
	owners := l.settled()
	vips := []netip.Addr{ownedBy(t, owners, a.Name, false), ownedBy(t, owners, a.Name, true)}
	other := l.Join("other")
	for _, vip := range vips {
		other.AddAddr("eth0", netip.PrefixFrom(vip, vip.BitLen()))
	}
	wait.For(t, "the conflicts", func() (err error) {
		for _, vip := range vips {
			err = errors.Join(err, claim(other, vip))
			out, e := a.run("announce", "explain", vip.String())
			if e == nil && (!strings.Contains(out, "conflict") || !strings.Contains(out, other.MAC("eth0"))) {
				e = errors.New(out)
			}
			err = errors.Join(err, e)
		}
		return err
	})
	if out, _ := a.run("status"); !strings.Contains(out, "conflict") {
		t.Error(out)
	}
	expect.Contains(t, a.must("events"), "vip_conflict")
	link := must.Get(other.Netlink.LinkByName("eth0"))(t)
	must.Succeed(t, other.Netlink.LinkDel(link))
	wait.For(t, "the end of the conflicts", func() error {
		all, err := a.announcements()
		for _, vip := range vips {
			if err == nil && all[vip].State != "announced" {
				err = fmt.Errorf("%s: %s: %+v", vip, all[vip].State, all[vip].Places)
			}
		}
		return err
	})
}

// claim announces an address from a node, as a station does that configures it.
func claim(n *netlab.Node, addr netip.Addr) error {
	link, err := n.Netlink.LinkByName("eth0")
	if err != nil {
		return err
	}
	protocol := map[bool]uint16{true: frame.TypeARP, false: frame.TypeIPv6}[addr.Is4()]
	n.Do(func() {
		var s *wire.Socket
		if s, err = wire.Open(protocol); err == nil {
			err = errors.Join(s.Send(link.Attrs().Index, frame.AppendAnnounce(nil, macOf(n), addr)), s.Close())
		}
	})
	return err
}
