package hostnet

import (
	"net"
	"net/netip"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

func network(t *testing.T, s string) *net.IPNet {
	t.Helper()
	_, n, err := net.ParseCIDR(s)
	if err != nil {
		t.Fatal(err)
	}
	return n
}

// A route contributes its gateways or, without any, its range.
func TestRoutes(t *testing.T) {
	name := func(index int) string { return map[int]string{1: "lo", 2: "eth0", 3: "ironvip0"}[index] }
	ours := func(link string, _ netip.Addr) bool { return link == "ironvip0" }
	for _, c := range []struct {
		name     string
		route    netlink.Route
		gateways []string
		ranges   []string
	}{
		{"a connected subnet", netlink.Route{LinkIndex: 2, Dst: network(t, "192.0.2.0/24"), Type: unix.RTN_UNICAST}, nil, []string{"192.0.2.0/24"}},
		{"IPv6", netlink.Route{LinkIndex: 2, Dst: network(t, "2001:db8::/64"), Type: unix.RTN_UNICAST}, nil, []string{"2001:db8::/64"}},
		{"the default route", netlink.Route{LinkIndex: 2, Dst: network(t, "0.0.0.0/0"), Gw: net.ParseIP("192.0.2.1"), Type: unix.RTN_UNICAST}, []string{"192.0.2.1"}, nil},
		{"a default route without a range", netlink.Route{LinkIndex: 2, Gw: net.ParseIP("fe80::1"), Type: unix.RTN_UNICAST}, []string{"fe80::1"}, nil},
		{"a default route without a gateway", netlink.Route{LinkIndex: 2, Dst: network(t, "::/0"), Type: unix.RTN_UNICAST}, nil, nil},
		{"several gateways", netlink.Route{Dst: network(t, "10.0.0.0/8"), Type: unix.RTN_UNICAST, MultiPath: []*netlink.NexthopInfo{
			{LinkIndex: 2, Gw: net.ParseIP("192.0.2.1")}, {LinkIndex: 2, Gw: net.ParseIP("192.0.2.2")}}}, []string{"192.0.2.1", "192.0.2.2"}, nil},
		{"a blackhole", netlink.Route{Dst: network(t, "10.0.0.0/8"), Type: unix.RTN_BLACKHOLE}, nil, nil},
		{"on our device", netlink.Route{LinkIndex: 3, Dst: network(t, "192.0.2.7/32"), Type: unix.RTN_UNICAST}, nil, nil},
		{"a zero gateway", netlink.Route{LinkIndex: 2, Dst: network(t, "10.0.0.0/8"), Gw: net.IPv4zero, Type: unix.RTN_UNICAST}, nil, []string{"10.0.0.0/8"}},
	} {
		t.Run(c.name, func(t *testing.T) {
			want := Snapshot{Gateways: addrs(c.gateways...)}
			for _, r := range c.ranges {
				want.Routes = append(want.Routes, Route{Prefix: netip.MustParsePrefix(r), Link: "eth0"})
			}
			var got Snapshot
			got.addRoute(&c.route, name, ours)
			if diff := cmp.Diff(want, got, cmpopts.EquateEmpty(), cmpopts.EquateComparable(netip.Addr{}, netip.Prefix{})); diff != "" {
				t.Error(diff)
			}
		})
	}
}

func TestPrefixes(t *testing.T) {
	for _, c := range []struct {
		in   *net.IPNet
		want string // "": none
	}{
		{nil, ""},
		{&net.IPNet{IP: net.ParseIP("192.0.2.7"), Mask: net.CIDRMask(24, 32)}, "192.0.2.7/24"}, // in 16 bytes
		{&net.IPNet{IP: net.ParseIP("192.0.2.7").To4(), Mask: net.CIDRMask(32, 32)}, "192.0.2.7/32"},
		{&net.IPNet{IP: net.ParseIP("2001:db8::1"), Mask: net.CIDRMask(64, 128)}, "2001:db8::1/64"},
		{&net.IPNet{IP: net.IP{1, 2}, Mask: net.CIDRMask(8, 32)}, ""},
		{&net.IPNet{IP: net.ParseIP("192.0.2.7"), Mask: net.IPMask{255, 0, 255, 0}}, ""},
		{&net.IPNet{IP: net.ParseIP("192.0.2.7").To4()}, ""},
	} {
		got, ok := prefixOf(c.in)
		if want := c.want != ""; ok != want || ok && got.String() != c.want {
			t.Errorf("%v: %s, %v, want %q", c.in, got, ok, c.want)
		}
	}
}

// The host has the addresses of its interfaces and the ranges that the kernel takes for local, and no
// others. The routes don't know an address of a VRF.
func TestHasAddr(t *testing.T) {
	s := Snapshot{Addrs: []Addr{{Prefix: netip.MustParsePrefix("192.0.2.7/24"), Link: "vrf0"}, {Prefix: netip.MustParsePrefix("2001:db8::7/64"), Link: "vrf0"}}}
	for addr, want := range map[string]bool{"127.0.0.1": true, "127.1.2.3": true, "::1": true, "192.0.2.1": false, "2001:db8::1": false, "fe80::1%lo": true,
		"192.0.2.7": true, "2001:db8::7": true} {
		if got := s.HasAddr(netip.MustParseAddr(addr)); got != want {
			t.Errorf("%s: %v, want %v", addr, got, want)
		}
	}
}
