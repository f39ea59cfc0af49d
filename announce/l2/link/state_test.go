package link

import (
	"encoding/binary"
	"net/netip"
	"slices"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/ironvip/ironvip/announce/l2/frame"
	"github.com/ironvip/ironvip/internal/netlink"
	"github.com/ironvip/ironvip/test/expect"
)

var filter = Filter{Interfaces: []string{"eth0"}, Device: "ironvip0", Pools: []netip.Prefix{netip.MustParsePrefix("10.0.0.0/24"), netip.MustParsePrefix("fd00::/64")}}

func linkMessage(family byte, index int, name string, flags uint32) []byte {
	b := make([]byte, ifinfoSize)
	b[0] = family
	binary.NativeEndian.PutUint16(b[2:], unix.ARPHRD_ETHER)
	binary.NativeEndian.PutUint32(b[4:], uint32(index))
	binary.NativeEndian.PutUint32(b[8:], flags)
	b = netlink.AppendAttrString(b, unix.IFLA_IFNAME, name)
	return netlink.AppendAttr(b, unix.IFLA_ADDRESS, 2, 0, 0, 0, 0, byte(index))
}

func addrMessage(index int, addr string, flags uint32) []byte {
	b := make([]byte, ifaddrSize)
	binary.NativeEndian.PutUint32(b[4:], uint32(index))
	b = netlink.AppendAddr(b, unix.IFA_ADDRESS, netip.MustParseAddr(addr))
	return netlink.AppendAttr32(b, unix.IFA_FLAGS, flags)
}

const up = unix.IFF_UP | unix.IFF_RUNNING

func TestState(t *testing.T) {
	h := newHost()
	state := func(typ uint16, data []byte, changes bool) State {
		t.Helper()
		expect.Equal(t, h.apply(filter.Device, typ, data), changes, "message of type %d changes something", typ)
		return h.state(filter)
	}
	state(unix.RTM_NEWLINK, linkMessage(0, 2, "eth0", up), true)
	state(unix.RTM_NEWLINK, linkMessage(0, 2, "eth0", up), false)
	state(unix.RTM_NEWLINK, linkMessage(0, 3, "ironvip0", up), true)
	state(unix.RTM_NEWLINK, linkMessage(0, 4, "eth1", up), true)
	state(unix.RTM_NEWADDR, addrMessage(3, "10.0.0.200", 0), false) // virtual
	state(unix.RTM_NEWADDR, addrMessage(4, "10.0.0.5", 0), true)    // the host's own, on any other interface
	state(unix.RTM_NEWADDR, addrMessage(2, "fe80::1", unix.IFA_F_TENTATIVE), false)
	s := state(unix.RTM_NEWADDR, addrMessage(2, "fe80::1", 0), true)
	want := State{Own: []netip.Addr{netip.MustParseAddr("10.0.0.5")},
		Links: []Link{{Index: 2, Name: "eth0", MAC: frame.MAC{2, 0, 0, 0, 0, 2}, Ethernet: true, Carrier: true, Source: netip.MustParseAddr("fe80::1")}}}
	expect.True(t, s.equal(want), "%+v, want %+v", s, want)
	// A port that leaves a bridge is still there.
	s = state(unix.RTM_DELLINK, linkMessage(unix.AF_BRIDGE, 2, "eth0", up), false)
	expect.Equal(t, len(s.Links), 1, "%+v", s)
	s = state(unix.RTM_NEWLINK, linkMessage(0, 2, "eth0", unix.IFF_UP), true)
	expect.False(t, s.Links[0].Usable(), "usable without a carrier")
	s = state(unix.RTM_NEWLINK, linkMessage(0, 2, "eth0", up|unix.IFF_NOARP), true)
	expect.False(t, s.Links[0].Usable(), "usable without ARP")
	s = state(unix.RTM_NEWLINK, linkMessage(0, 2, "lan0", up), true)
	expect.Equal(t, len(s.Links), 0, "renamed: %+v", s)
	state(unix.RTM_DELADDR, addrMessage(4, "10.0.0.6", 0), false)
	s = state(unix.RTM_DELLINK, linkMessage(0, 4, "eth1", 0), true)
	if len(s.Own) != 0 || !slices.Equal(s.Links, nil) {
		t.Errorf("deleted with its addresses: %+v", s)
	}
}

// Malformed messages change nothing or little, and never panic.
func FuzzApply(f *testing.F) {
	f.Add(uint16(unix.RTM_NEWLINK), linkMessage(0, 2, "eth0", up))
	f.Add(uint16(unix.RTM_NEWADDR), addrMessage(2, "fe80::1", 0))
	f.Add(uint16(unix.RTM_DELLINK), appendArpAnnounce(nil, 2, 2)[unix.SizeofNlMsghdr:])
	f.Fuzz(func(t *testing.T, typ uint16, data []byte) {
		h := newHost()
		h.apply(filter.Device, unix.RTM_NEWLINK, linkMessage(0, 2, "eth0", up))
		h.apply(filter.Device, typ, data)
		for _, l := range h.state(filter).Links {
			expect.Equal(t, l.Name, "eth0", "%+v", l)
		}
	})
}
