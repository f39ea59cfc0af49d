//go:build system

package routers_test

import (
	"fmt"
	"net/netip"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/ironvip/ironvip/announce"
	"github.com/ironvip/ironvip/announce/bfd"
	"github.com/ironvip/ironvip/test/netlab"
	"github.com/ironvip/ironvip/test/routers"
	"github.com/ironvip/ironvip/test/wait"
)

const ms = time.Millisecond

// patient are the times of BFD sessions that must not fail on a busy machine.
var patient = bfd.Settings{Interval: 300 * ms, Multiplier: 5}

// lab is a network in which the director announces and backend1 is the router.
type lab struct {
	*netlab.Lab
	router *netlab.Node
	us4    netip.Addr // the director's addresses on the link to the router
	us6    netip.Addr
}

func newLab(t testing.TB) lab {
	t.Helper()
	l := netlab.New(t)
	return lab{l, l.Backends[0], netip.MustParseAddr("10.77.1.1"), netip.MustParseAddr("fd77:1::1")}
}

// settings are those of a speaker in the director with one session to the router.
func (l lab) settings(v6 bool) routers.Settings {
	p := announce.BGPPeer{Peer: l.router.Addr4, ASN: 65000, LocalASN: 4200065010}
	if v6 {
		p.Peer = l.router.Addr6
	}
	return routers.Settings{RouterID: l.us4, Peers: []announce.BGPPeer{p}, Prefixes: []netip.Prefix{vip4, vip6}}
}

var vip4, vip6 = netip.MustParsePrefix("10.96.0.1/32"), netip.MustParsePrefix("fd96::1/128")

func families(t *testing.T, f func(t *testing.T, v6 bool)) {
	t.Run("ipv4", func(t *testing.T) { f(t, false) })
	t.Run("ipv6", func(t *testing.T) { f(t, true) })
}

// inLabs runs a subtest in a lab of its own for each family, all at the same time.
func inLabs(t *testing.T, f func(t *testing.T, l lab, v6 bool)) {
	t.Parallel()
	families(t, func(t *testing.T, v6 bool) {
		t.Parallel()
		f(t, newLab(t), v6)
	})
}

func (l lab) us(v6 bool) netip.Addr {
	if v6 {
		return l.us6
	}
	return l.us4
}

// kernelRoute returns the route of a prefix in the router's kernel, or "".
func (l lab) kernelRoute(p netip.Prefix) (route string) {
	list, err := l.router.Netlink.RouteList(nil, map[bool]int{true: unix.AF_INET, false: unix.AF_INET6}[p.Addr().Is4()])
	if err != nil {
		return err.Error()
	}
	for _, r := range list {
		if r.Dst != nil && r.Dst.String() == p.String() {
			return r.String()
		}
	}
	return ""
}

func (l lab) awaitKernelRoute(t testing.TB, p netip.Prefix, want bool) {
	t.Helper()
	wait.Until(t, fmt.Sprintf("route of %s in the router's kernel: %t", p, want), func() bool { return (l.kernelRoute(p) != "") == want })
}

// vips returns n prefixes.
func vips(n int) (all []netip.Prefix) {
	for i := range n {
		all = append(all, netip.PrefixFrom(netip.AddrFrom4([4]byte{10, 97, byte(i >> 8), byte(i)}), 32))
	}
	return all
}
