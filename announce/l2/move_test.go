package l2

import (
	"net/netip"
	"slices"
	"testing"
	"time"

	"github.com/ironvip/ironvip/announce"
	"github.com/ironvip/ironvip/announce/l2/claim"
	"github.com/ironvip/ironvip/announce/l2/frame"
	"github.com/ironvip/ironvip/announce/l2/link"
	"github.com/ironvip/ironvip/test/expect"
	"github.com/ironvip/ironvip/test/must"
)

// silent is an output whose frames go nowhere.
type silent struct{}

func (silent) Open(netip.Addr)                             {}
func (silent) Shut(netip.Addr)                             {}
func (silent) Send(netip.Addr, claim.Frame) bool           { return true }
func (silent) Report(netip.Addr, claim.State, claim.Rival) {}

var testVIP = netip.MustParseAddr("fd78::50")

// newTestSpeaker returns a speaker without sockets that has VIPs at an interface.
func newTestSpeaker(name string) (*Speaker, *lan) {
	s := &Speaker{receive: func(Report) {}, changes: map[netip.Addr]bool{}, reported: map[string]State{}}
	s.config.LANs = lansAt(name)
	s.setLANs(time.Now(), s.config.LANs)
	return s, s.lans[0]
}

func lansAt(name string) []announce.LAN {
	return []announce.LAN{{CIDRs: []netip.Prefix{netip.MustParsePrefix("fd78::/64")}, Interfaces: []string{name}}}
}

// Two interfaces that swap their names between two looks at them are new ones for the LAN of each name: the addresses are
// announced there, and their groups are joined.
func TestInterfacesSwapNames(t *testing.T) {
	s, l := newTestSpeaker("eth0")
	l.machine = claim.New(silent{})
	now := time.Now()
	at := func(index int, name string, mac byte) link.Link {
		return link.Link{Index: index, Name: name, Ethernet: true, Carrier: true, MAC: frame.MAC{2, 0, 0, 0, 0, mac}}
	}
	l.machine.SetUsable(now, true)
	l.machine.Own(now, testVIP, false)
	for range 20 { // the announcements of a new address
		l.machine.Run(now, 1)
		now = now.Add(time.Second)
	}
	first, ok := l.machine.First()
	must.True(t, ok && first.After(now), "%s after %s", first, now)
	s.takeLinks(now, link.State{Links: []link.Link{at(1, "eth0", 1), at(2, "eth1", 2)}}, link.State{Links: []link.Link{at(1, "eth1", 1), at(2, "eth0", 2)}})
	first, _ = l.machine.First()
	expect.False(t, first.After(now), "the next announcement is at %s, now is %s", first, now)
	expect.True(t, slices.Contains(s.joins, testVIP), "the groups of %v are to be joined", s.joins)
}

// An address that moves to another LAN while it is probed is probed there. One that is announced is announced there at once.
func TestMoveOfAProbedAddress(t *testing.T) {
	for _, probe := range []bool{true, false} {
		s, l := newTestSpeaker("eth0")
		s.own(time.Now(), l, testVIP, probe)
		s.setLANs(time.Now(), lansAt("eth1"))
		must.True(t, s.lans[0] != l && s.lans[0].machine.Has(testVIP), "the address has moved")
		expect.Equal(t, s.lans[0].machine.Contested(testVIP), probe, "probed")
	}
}
