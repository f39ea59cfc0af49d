//go:build linux

package server

import (
	"encoding/binary"
	"fmt"
	"net"
	"net/netip"
	"runtime"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/miekg/dns"
	"golang.org/x/sys/unix"

	"github.com/ironvip/ironvip/internal/hostnet"
	"github.com/ironvip/ironvip/test/expect"
	"github.com/ironvip/ironvip/test/must"
	"github.com/ironvip/ironvip/test/netlab"
	"github.com/ironvip/ironvip/test/wait"
)

const lanPort = 53

// lan is a segment with a server, its clients, and the Server.
type lan struct {
	*world
	node, client, other *netlab.Node
	moved               chan struct{} // for a change of the node's addresses
}

// newLAN starts a server that listens at the addresses of the first node, and at loopback.
func newLAN(t *testing.T, settings Settings) *lan {
	nodes := netlab.NewLAN(t, "server", "client", "other").Nodes
	l := &lan{world: &world{TB: t, port: lanPort}, node: nodes[0], client: nodes[1], other: nodes[2], moved: make(chan struct{}, 1)}
	for _, a := range []netip.Addr{l.node.Addr4, l.node.Addr6, loopback4} {
		settings.Listen = append(settings.Listen, netip.AddrPortFrom(a, lanPort))
	}
	hasAddr := func(a netip.Addr) (has bool) {
		l.node.Do(func() { has = new(hostnet.Snapshot).HasAddr(a) })
		return has
	}
	l.start(Options{Settings: settings, Sockets: inside(t, l.node, settings.Listen...), HasAddr: hasAddr, Moved: func() <-chan struct{} { return l.moved }})
	l.awaitUp(t)
	return l
}

// dialFrom connects from a node to the server, over IPv4 or IPv6.
func (l *lan) dialFrom(n *netlab.Node, network string, to netip.Addr) net.Conn {
	var c net.Conn
	n.Do(func() { c = dial(l, network, netip.AddrPortFrom(to, lanPort)) })
	return c
}

// checkRefusedFrom is checkRefused from a node.
func (l *lan) checkRefusedFrom(n *netlab.Node, to netip.Addr) {
	l.Helper()
	checkRefused(l, func() (c net.Conn, err error) {
		n.Do(func() { c, err = net.Dial("tcp", netip.AddrPortFrom(to, lanPort).String()) })
		return c, err
	})
}

// askFrom asks over a connection of either kind.
func askFrom(c net.Conn, m *dns.Msg) (*dns.Msg, error) {
	co := &dns.Conn{Conn: c}
	if err := co.WriteMsg(m); err != nil {
		return nil, err
	}
	return co.ReadMsg()
}

// Clients in Allow get replies. Others get none, by UDP or TCP. Programs on the server's host need no
// entry.
func TestAllow(t *testing.T) {
	l := newLAN(t, Settings{Allow: []netip.Prefix{netip.MustParsePrefix("10.78.0.2/32"), netip.MustParsePrefix("fd78::2/128")}})
	web := question("web.vip.internal.", dns.TypeA)
	for _, to := range []netip.Addr{l.node.Addr4, l.node.Addr6} {
		for _, network := range []string{"udp", "tcp"} {
			expect.Equal(t, len(must.Get(askFrom(l.dialFrom(l.client, network, to), web))(t).Answer), 1, "%s to %s", network, to)
		}
		before := l.Counters().Dropped(NotAllowed)
		must.Get(l.dialFrom(l.other, "udp", to).Write(packed(t, web)))(t)
		wait.Until(t, "a drop", func() bool { return l.Counters().Dropped(NotAllowed) == before+1 })
		l.checkRefusedFrom(l.other, to)
		wait.Until(t, "another drop", func() bool { return l.Counters().Dropped(NotAllowed) == before+2 })
	}
	for _, to := range []netip.Addr{loopback4, l.node.Addr4, l.node.Addr6} {
		for _, network := range []string{"udp", "tcp"} {
			expect.Equal(t, len(must.Get(askFrom(l.dialFrom(l.node, network, to), web))(t).Answer), 1, "%s from the host to %s", network, to)
		}
	}
	l.Reconfigure(Settings{Listen: l.Listen, Allow: []netip.Prefix{netip.MustParsePrefix("10.78.0.0/24")}})
	expect.Equal(t, len(must.Get(askFrom(l.dialFrom(l.other, "udp", l.node.Addr4), web))(t).Answer), 1, "after a reload")
}

// One remote address has few connections, and others have room.
func TestConnectionsOfASource(t *testing.T) {
	l := newLAN(t, Settings{Allow: []netip.Prefix{netip.MustParsePrefix("10.78.0.0/24")}})
	for range maxOfClient {
		l.dialFrom(l.client, "tcp", l.node.Addr4)
	}
	wait.Until(t, "connections", func() bool { return l.Counters().Connections() == maxOfClient })
	l.checkRefusedFrom(l.client, l.node.Addr4)
	expect.Equal(t, len(must.Get(askFrom(l.dialFrom(l.other, "tcp", l.node.Addr4), question("web.vip.internal.", dns.TypeA)))(t).Answer), 1, "another client")
}

// A flood with forged addresses is limited for each prefix, takes no memory, and leaves other clients
// their replies.
func TestSpoofedFlood(t *testing.T) {
	const rate, flood = 50, 20_000
	l := newLAN(t, Settings{Allow: []netip.Prefix{netip.MustParsePrefix("10.0.0.0/8")}, RateLimit: rate})
	web := question("web.vip.internal.", dns.TypeA)
	c := l.dialFrom(l.other, "udp", l.node.Addr4)
	must.Get(askFrom(c, web))(t)
	var raw int
	l.client.Do(func() {
		var err error
		if raw, err = unix.Socket(unix.AF_INET, unix.SOCK_RAW|unix.SOCK_CLOEXEC, unix.IPPROTO_RAW); err != nil {
			t.Fatal(err)
		}
	})
	defer unix.Close(raw)
	goroutines := runtime.NumGoroutine()
	var before, after runtime.MemStats
	runtime.GC()
	runtime.ReadMemStats(&before)
	start := time.Now()
	query := packed(t, web)
	sent := func() uint64 {
		return l.Counters().count(UDP, "A", "NOERROR") + l.Counters().Dropped(RateLimited)
	}
	limits, victims := l.policy.Load().limit, byte(0)
	for limits.bucket(netip.AddrFrom4([4]byte{10, 200, victims, 1})) == limits.bucket(l.other.Addr4) {
		victims++ // prefixes can share a counter
	}
	for i := range flood {
		// One prefix of victims, and forged addresses of many others.
		victim := netip.AddrFrom4([4]byte{10, 200, victims, byte(i)})
		if i%2 == 1 {
			victim = addrOf(i, 7)
		}
		packet := forge(victim, l.node.Addr4, query)
		must.Succeed(t, unix.Sendto(raw, packet, 0, &unix.SockaddrInet4{Addr: l.node.Addr4.As4()}))
		if i%500 == 499 { // the socket's buffer must not drop what the test counts
			wait.Until(t, "the flood", func() bool { return sent() >= uint64(i) })
		}
		if i%2000 == 1999 {
			must.Equal(t, len(must.Get(askFrom(c, web))(t).Answer), 1, "another client")
		}
	}
	wait.Until(t, "the flood", func() bool { return sent() >= flood })
	took := time.Since(start)
	// The victim's prefix had 10,000 of the queries. The other prefixes had a few each.
	limit := uint64(float64(rate) * (2 + took.Seconds()))
	expect.AtMost(t, l.Counters().count(UDP, "A", "NOERROR")-flood/2, limit+flood/1000, "replies to the victim in %s", took)
	runtime.GC()
	runtime.ReadMemStats(&after)
	grown := int64(after.HeapAlloc) - int64(before.HeapAlloc)
	expect.AtMost(t, grown, 1<<20, "the heap has grown by %d bytes", grown)
	expect.AtMost(t, runtime.NumGoroutine(), goroutines, "goroutines")
}

// forge returns an IPv4 packet with a datagram from another address.
func forge(from, to netip.Addr, payload []byte) []byte {
	p := make([]byte, 28, 28+len(payload))
	p[0], p[8], p[9] = 0x45, 64, unix.IPPROTO_UDP
	copy(p[12:], from.AsSlice())
	copy(p[16:], to.AsSlice())
	binary.BigEndian.PutUint16(p[20:], 12345)
	binary.BigEndian.PutUint16(p[22:], lanPort)
	binary.BigEndian.PutUint16(p[24:], uint16(8+len(payload))) // without a checksum, which is optional
	return append(p, payload...)
}

// An address that is removed and added again is served again, without a restart. Meanwhile, it is a
// problem.
func TestAddressComesBack(t *testing.T) {
	l := newLAN(t, Settings{Allow: []netip.Prefix{netip.MustParsePrefix("10.78.0.0/24")}})
	web := question("web.vip.internal.", dns.TypeA)
	c := l.dialFrom(l.client, "udp", l.node.Addr4)
	must.Get(askFrom(c, web))(t)
	addr := netip.PrefixFrom(l.node.Addr4, 24)
	for range 3 {
		l.node.DelAddr("eth0", addr)
		l.moved <- struct{}{}
		wait.Until(t, "the problem", func() bool {
			p := l.Problems()
			return len(p) == 1 && p[0].Place == netip.AddrPortFrom(l.node.Addr4, lanPort).String() && strings.Contains(p[0].Message, errAbsent.Error()) && p[0].Hint != ""
		})
		_, _ = c.Write(packed(t, web)) // nobody has the address
		must.Equal(t, len(must.Get(askFrom(l.dialFrom(l.node, "udp", loopback4), web))(t).Answer), 1, "another address")
		l.node.AddAddr("eth0", addr)
		l.moved <- struct{}{}
		l.awaitUp(t)
		for _, network := range []string{"udp", "tcp"} {
			wait.For(t, "a reply by "+network, func() error {
				var c net.Conn
				var err error
				l.client.Do(func() {
					c, err = net.DialTimeout(network, netip.AddrPortFrom(l.node.Addr4, lanPort).String(), time.Second)
				})
				if err != nil {
					return err
				}
				defer c.Close()
				_ = c.SetDeadline(time.Now().Add(time.Second))
				r, err := askFrom(c, web)
				if err == nil && len(r.Answer) != 1 {
					err = fmt.Errorf("%v", r)
				}
				return err
			})
		}
	}
	var kinds []string
	events, _ := l.Events.Since(0)
	for _, e := range events {
		if strings.HasPrefix(e.Object, addr.Addr().String()) { // the IPv6 address may be tentative at the start
			kinds = append(kinds, e.Kind)
		}
	}
	expect.SameList(t, kinds, slices.Repeat([]string{eventFailed, eventOpen}, 3), "events")
}
