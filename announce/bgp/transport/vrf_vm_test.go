//go:build linux && vm

package transport_test

import (
	"context"
	"net"
	"net/netip"
	"testing"
	"time"

	"github.com/vishvananda/netlink"

	"github.com/ironvip/ironvip/announce"
	"github.com/ironvip/ironvip/announce/bfd"
	"github.com/ironvip/ironvip/announce/bgp/message"
	"github.com/ironvip/ironvip/announce/bgp/transport"
	"github.com/ironvip/ironvip/test/expect"
	"github.com/ironvip/ironvip/test/must"
	"github.com/ironvip/ironvip/test/netlab"
	"github.com/ironvip/ironvip/test/wait"
)

// connOf is a connection with a local address alone.
type connOf struct {
	net.Conn
	local netip.Addr
}

func (c connOf) LocalAddr() net.Addr { return net.TCPAddrFromAddrPort(netip.AddrPortFrom(c.local, 1)) }

// Sessions and BFD in a VRF, with an address that another VRF has, too. This kernel has VRFs, which many test machines lack.
func TestVRF(t *testing.T) {
	l := netlab.NewLAN(t, "host", "router")
	host, router := l.Nodes[0], l.Nodes[1]
	attrs := func(name string) netlink.LinkAttrs {
		a := netlink.NewLinkAttrs()
		a.Name = name
		return a
	}
	link := func(name string) netlink.Link { return must.Get(host.Netlink.LinkByName(name))(t) }
	must.Succeed(t, host.Netlink.LinkAdd(&netlink.Dummy{LinkAttrs: attrs("dummy1")}))
	for i, name := range []string{"red", "blue"} {
		must.Succeed(t, host.Netlink.LinkAdd(&netlink.Vrf{LinkAttrs: attrs(name), Table: uint32(10 + i)}))
		must.Succeed(t, host.Netlink.LinkSetUp(link(name)))
		must.Succeed(t, host.Netlink.LinkSetMaster(link([]string{"eth0", "dummy1"}[i]), link(name)))
	}
	must.Succeed(t, host.Netlink.LinkSetUp(link("dummy1")))
	in6 := netip.MustParseAddr("fd99::1")
	host.AddAddr("eth0", netip.PrefixFrom(in6, 64))
	host.AddAddr("dummy1", netip.PrefixFrom(host.Addr4, 24))
	host.AddAddr("dummy1", netip.MustParsePrefix("fd98::1/64"))

	p := announce.BGPPeer{Peer: router.Addr4, Source: host.Addr4, VRF: "red", ASN: 1, LocalASN: 2, Password: "secret"}
	host.Do(func() {
		for vrf, want := range map[string]netip.Addr{"red": in6, "blue": netip.MustParseAddr("fd98::1")} {
			expect.Equal(t, transport.NextHops(connOf{local: host.Addr4}, vrf, false)[message.IPv6], want, vrf)
		}
		in := must.Get(transport.Listen(transport.EndpointOf(&p), []announce.BGPPeer{p}))(t)
		defer in.Close()
		none := p
		none.VRF = ""
		other := must.Get(transport.Listen(transport.Endpoint{Addr: netip.MustParseAddrPort("0.0.0.0:179")}, []announce.BGPPeer{none}))(t)
		defer other.Close()
		in.SetDeadline(time.Now().Add(time.Minute))
		q := announce.BGPPeer{Peer: host.Addr4, ASN: 2, LocalASN: 1, Password: "secret"}
		dialed := make(chan error, 1)
		go router.Do(func() {
			c, err := transport.Dial(context.Background(), &q, host.Addr4)
			if err == nil {
				defer c.Close()
			}
			dialed <- err
		})
		c := must.Get(in.Accept())(t)
		expect.Equal(t, transport.RouterOf(c), router.Addr4, "the router in the VRF")
		c.Close()
		must.Succeed(t, <-dialed)
	})
	var back net.Listener
	router.Do(func() {
		back = must.Get(transport.Listen(transport.Endpoint{Addr: netip.MustParseAddrPort("0.0.0.0:179")}, []announce.BGPPeer{{Peer: host.Addr4, Password: "secret"}}))(t)
	})
	defer back.Close()
	host.Do(func() {
		c := must.Get(transport.Dial(t.Context(), &p, p.Peer))(t)
		c.Close()
		wrong := p
		wrong.Source = netip.MustParseAddr("192.0.2.9")
		_, err := transport.Dial(t.Context(), &wrong, p.Peer)
		expect.Contains(t, err.Error(), "source 192.0.2.9 is not an address of this host in VRF red")
		wrong = p
		wrong.VRF = "blue"
		ctx, cancel := context.WithTimeout(t.Context(), 100*time.Millisecond)
		defer cancel()
		_, err = transport.Dial(ctx, &wrong, p.Peer)
		expect.True(t, err != nil, "a router was reached through another VRF")
	})

	ours, theirs := bfd.New(bfd.Config{}), bfd.New(bfd.Config{})
	settings := bfd.Settings{Key: bfd.Key{Peer: router.Addr4, VRF: "red"}, Source: host.Addr4, Interval: 500 * time.Millisecond, Multiplier: 5}
	host.Do(func() { ours.Set(settings) }) // opens the sockets
	settings.Key, settings.Source = bfd.Key{Peer: host.Addr4}, netip.Addr{}
	router.Do(func() { theirs.Set(settings) })
	go ours.Run(t.Context())
	go theirs.Run(t.Context())
	wait.Until(t, "BFD is up in the VRF", func() bool { return ours.Sessions()[0].State == bfd.Up && theirs.Sessions()[0].State == bfd.Up },
		func() any { return ours.Sessions() })
	expect.Equal(t, ours.Sessions()[0].Name(), router.Addr4.String()+"@red", "name")
}
