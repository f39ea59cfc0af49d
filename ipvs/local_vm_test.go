//go:build linux && vm

package ipvs

import (
	"net"
	"net/netip"
	"strings"
	"testing"

	"github.com/ironvip/ironvip/test/expect"
	"github.com/ironvip/ironvip/test/must"
	"github.com/ironvip/ironvip/test/netlab"
	"github.com/ironvip/ironvip/vip"
)

// A client on the host itself reaches a virtual address, and backends see an address of the host. By a local route, the
// kernel gives such a client the virtual address itself as its source for IPv4, and an address of the host for IPv6.
func TestClientOnTheHost(t *testing.T) {
	w := newTown(t)
	own := map[netip.Addr]bool{}
	w.Director.Do(func() {
		for _, x := range must.Get(net.InterfaceAddrs())(t) {
			own[netip.MustParsePrefix(x.String()).Addr()] = true
		}
	})
	for _, p := range []vip.Protocol{vip.TCP, vip.UDP} {
		for _, at := range []string{"10.96.0.1:80", "[fd96::1]:80"} {
			f := frontend(at, p, w.backends(at, 2)...)
			f.Masquerade = vip.MasqueradeAuto
			w.Create(t, f)
			c := must.Get(w.Director.Dial(p.String(), f.Key.AddrPort()))(t)
			a := must.Get(c.Ask())(t)
			from := must.Get(netip.ParseAddrPort(c.LocalAddr().String()))(t)
			expect.Equal(t, from.Addr() == f.Key.Addr, f.Key.Addr.Is4(), "%s: the client at %s has the virtual address", f.Key, from)
			expect.True(t, own[a.Client.Addr()], "%s: the backend saw %s", f.Key, a.Client)
		}
	}
}

// A Target that finds its routes writes nothing. One that finds addresses of an earlier agent replaces them, and
// connections through IPVS stay open.
func TestStartOverAddresses(t *testing.T) {
	w := newTown(t)
	var all []*vip.Frontend
	var open []*netlab.Conn
	for _, at := range []string{"10.96.0.1:80", "[fd96::1]:80"} {
		f := frontend(at, vip.TCP, w.backends(at, 2)...)
		w.Create(t, f)
		all = append(all, f)
		open = append(open, must.Get(w.Client.Dial("tcp", f.Key.AddrPort()))(t))
	}
	ask := func(when string) {
		t.Helper()
		for i, c := range open {
			_, err := c.Ask()
			expect.Succeed(t, err, "%s: the connection with %s", when, all[i].Key)
		}
	}
	ask("before")
	w.planeIn = newPlane(t, w.Director)
	w.Wants(t, all...)
	expect.Equal(t, w.writes(), 0, "writes of a start")
	for _, command := range []string{
		"ip addr add 10.96.0.1/32 dev ironvip0", "ip addr add fd96::1/128 dev ironvip0 nodad noprefixroute preferred_lft 0", "ip addr del 169.254.255.1/32 dev ironvip0",
		"ip route del local 10.96.0.1 table local proto 178", "ip -6 route del local fd96::1 table local proto 178",
	} {
		run(t, w.Director, strings.Fields(command)...)
	}
	ask("with addresses")
	w.planeIn = newPlane(t, w.Director)
	w.Wants(t, all...)
	expect.Equal(t, w.writes(), 2, "messages for two routes")
	ask("with routes")
}
