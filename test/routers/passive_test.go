//go:build system

package routers_test

import (
	"errors"
	"fmt"
	"net"
	"net/netip"
	"strings"
	"testing"
	"time"

	"github.com/ironvip/ironvip/announce/bfd"
	"github.com/ironvip/ironvip/announce/bgp/session"
	"github.com/ironvip/ironvip/test/expect"
	"github.com/ironvip/ironvip/test/must"
	"github.com/ironvip/ironvip/test/routers"
	"github.com/ironvip/ironvip/test/wait"
)

// passive are settings for a router that connects to us, with BFD.
func (l lab) passive(v6 bool) routers.Settings {
	c := l.settings(v6)
	p := &c.Peers[0]
	p.Passive, p.Password, p.TTLSecurity, p.Source = true, "secret", true, l.us(v6)
	b := patient
	b.Peer, b.Source = p.Peer, p.Source
	c.BFD = []bfd.Settings{b}
	return c
}

// birdConnects are the lines of BIRD for a session that BIRD opens without pauses.
const birdConnects = `password "secret"; ttl security on; connect delay time 1; connect retry time 1; bfd { interval 300 ms; multiplier 5; };`

// BIRD connects to us, with a password, TTL security and BFD, also after its own end, which this host has not seen.
func TestPassiveWithBird(t *testing.T) {
	inLabs(t, func(t *testing.T, l lab, v6 bool) {
		s := routers.StartSpeaker(t, l.Director, l.passive(v6))
		expect.Contains(t, s.AwaitReason("has not connected").Reason, fmt.Sprintf("to %s", netip.AddrPortFrom(l.us(v6), 179)))
		bird := routers.StartBird(t, l.router, birdPeer(l.us(v6), birdConnects))
		s.AwaitUp()
		s.AwaitBFD(bfd.Up)
		l.awaitKernelRoute(t, vip4, true)
		l.awaitKernelRoute(t, vip6, true)
		s.Do("withdraw", vip4)
		l.awaitKernelRoute(t, vip4, false)

		bird.Kill()
		bird.StartAgain()
		wait.Until(t, "the second session", func() bool { x := s.Sessions()[0]; return x.Established == 2 && x.State == session.Established },
			func() any { return fmt.Sprintf("%+v", s.Sessions()) })
		wait.Until(t, "the route in BIRD", func() bool { return bird.Count() == 1 })
		s.Do("shutdown")
		l.awaitKernelRoute(t, vip6, false)
		expect.Contains(t, bird.LogEnd(1<<20), "Administrative shutdown", "the router saw another end of the session")
	})
}

// FRR connects to us; we use another one of our addresses than the kernel would choose.
func TestPassiveWithFRR(t *testing.T) {
	inLabs(t, func(t *testing.T, l lab, v6 bool) {
		c := l.passive(v6)
		p := &c.Peers[0]
		p.Source = netip.MustParseAddr("10.77.1.7")
		if v6 {
			p.Source = netip.MustParseAddr("fd77:1::7")
		}
		c.BFD[0].Source = p.Source
		us := p.Source.String()
		routers.StartFRR(t, l.router, frrPeer(us, "remote-as 4200065010", "password secret", "ttl-security hops 1", "timers connect 1", "bfd")+
			fmt.Sprintf("bfd\n peer %s\n  detect-multiplier %d\n  receive-interval %[3]d\n  transmit-interval %[3]d\n", us, patient.Multiplier, patient.Interval/ms), "bfdd", "bgpd")
		s := routers.StartSpeaker(t, l.Director, c)
		s.AwaitReason(fmt.Sprintf("source %s is not an address of this host", us))
		l.Director.AddAddr("backend1", netip.PrefixFrom(p.Source, map[bool]int{false: 24, true: 64}[v6]))
		s.AwaitUp()
		s.AwaitBFD(bfd.Up)
		l.awaitKernelRoute(t, vip4, true)
		l.awaitKernelRoute(t, vip6, true)
		expect.Contains(t, l.kernelRoute(map[bool]netip.Prefix{false: vip4, true: vip6}[v6]), us, "the next hop")
		s.Do("shutdown")
		l.awaitKernelRoute(t, vip6, false)
	})
}

// A session that we open from a chosen address, bound to a device. Both can be missing.
func TestSourceWithBird(t *testing.T) {
	inLabs(t, func(t *testing.T, l lab, v6 bool) {
		c := l.settings(v6)
		p := &c.Peers[0]
		p.VRF, p.Source = "backend9", netip.MustParseAddr("10.77.1.7")
		if v6 {
			p.Source = netip.MustParseAddr("fd77:1::7")
		}
		routers.StartBird(t, l.router, birdPeer(p.Source, "passive; bfd { interval 300 ms; multiplier 5; };"))
		s := routers.StartSpeaker(t, l.Director, c)
		x := s.AwaitReason("device backend9 does not exist on this host")
		expect.Equal(t, x.Peer, p.Peer.String()+"@backend9", "name")
		s.Stop()

		p.VRF = "backend1"
		b := patient
		b.Key, b.Source = bfd.Key{Peer: p.Peer, VRF: p.VRF}, p.Source
		c.BFD = []bfd.Settings{b}
		s = routers.StartSpeaker(t, l.Director, c)
		s.AwaitReason(fmt.Sprintf("source %s is not an address of this host in VRF backend1", p.Source))
		l.Director.AddAddr("backend1", netip.PrefixFrom(p.Source, map[bool]int{false: 24, true: 64}[v6]))
		s.AwaitUp()
		s.AwaitBFD(bfd.Up)
		l.awaitKernelRoute(t, vip4, true)
		l.awaitKernelRoute(t, vip6, true)
	})
}

// Routers of a range come and go, up to a limit.
func TestRangeWithBird(t *testing.T) {
	inLabs(t, func(t *testing.T, l lab, v6 bool) {
		c := l.passive(v6)
		p := &c.Peers[0]
		router := p.Peer
		p.PeerRange, p.PeerLimit = must.Get(router.Prefix(map[bool]int{false: 24, true: 64}[v6]))(t), 1
		p.Peer = netip.Addr{}
		s := routers.StartSpeaker(t, l.Director, c)
		wait.Until(t, "the range is open", func() bool { return s.Ranges()[0].Reason == "" }, func() any { return s.Ranges() })
		expect.Len(t, s.Sessions(), 0, "a router without a connection")
		bird := routers.StartBird(t, l.router, birdPeer(l.us(v6), birdConnects))
		x := s.AwaitUp()
		expect.Equal(t, x.Peer, router.String(), "the router of the range")
		s.AwaitBFD(bfd.Up)
		l.awaitKernelRoute(t, vip4, true)
		l.awaitKernelRoute(t, vip6, true)

		second := router.Next().Next().Next()
		l.router.AddAddr("eth0", netip.PrefixFrom(second, p.PeerRange.Bits()))
		l.router.Do(func() {
			if conn, err := dialFrom(second, l.us(v6), "secret"); err == nil {
				_, err := conn.Read(make([]byte, 1))
				expect.True(t, err != nil, "a router beyond the limit has a session")
				conn.Close()
			}
		})
		wait.Until(t, "the reason in the log", func() bool {
			return strings.Contains(s.LogEnd(1<<20), "peer_limit of "+p.PeerRange.String()+" reached")
		})

		bird.Kill()
		wait.Until(t, "the router is gone", func() bool { return len(s.Sessions()) == 0 }, func() any { return s.Sessions() })
		expect.Equal(t, s.Ranges()[0].Reason, "", "the range")
		bird.StartAgain()
		s.AwaitUp()
		wait.Until(t, "both routes in BIRD", func() bool { return bird.Count() == 2 })
	})
}

// dialFrom connects to port 179 as a program with an address and a password. It tries again: the kernel may choose a port
// of which the other side still has an ended connection.
func dialFrom(from, to netip.Addr, password string) (conn net.Conn, err error) {
	for range 5 {
		var late net.Error
		if conn, err = routers.DialBGP(from, to, password, time.Second); !errors.As(err, &late) || !late.Timeout() {
			break
		}
	}
	return conn, err
}

// Hostile connections do not disturb a session, and leave nothing behind.
func TestHostileConnections(t *testing.T) {
	inLabs(t, func(t *testing.T, l lab, v6 bool) {
		c := l.passive(v6)
		p := &c.Peers[0]
		router := p.Peer
		bird := routers.StartBird(t, l.router, birdPeer(l.us(v6), birdConnects))
		s := routers.StartSpeaker(t, l.Director, c)
		s.AwaitUp()
		wait.Until(t, "both routes in BIRD", func() bool { return bird.Count() == 2 })
		descriptors := s.Descriptors()

		other := router.Next().Next().Next()
		l.router.AddAddr("eth0", netip.PrefixFrom(other, map[bool]int{false: 24, true: 64}[v6]))
		junk := []string{"", "GET / HTTP/1.1\r\n\r\n", strings.Repeat("\xff", 16) + "\x00\x13\x04", // a KEEPALIVE
			strings.Repeat("\xff", 16) + "\x00\x1d\x01\x04\xff\xff\x00\x5a\x0a\x00\x00\x01\x00", // an OPEN of another AS
			strings.Repeat("\xff", 16) + "\xff\xff\x01"}
		l.router.Do(func() {
			for _, password := range []string{"", "wrong"} { // the kernel does not answer them
				_, err := routers.DialBGP(router, l.us(v6), password, 300*ms)
				expect.True(t, err != nil, "a connection with password %q", password)
			}
			for range 200 { // not configured: ended before anything is read
				conn, err := dialFrom(other, l.us(v6), "")
				if err == nil {
					_, err = conn.Read(make([]byte, 1))
					conn.Close()
				}
				expect.True(t, err != nil, "a router that is not configured was accepted")
			}
			for _, text := range junk { // of the router's own address, with its password
				for range 20 {
					conn := must.Get(dialFrom(router, l.us(v6), "secret"))(t)
					conn.Write([]byte(text))
					conn.Close()
				}
			}
			var open []net.Conn
			for range 100 { // at the same time, without an OPEN
				open = append(open, must.Get(dialFrom(router, l.us(v6), "secret"))(t))
			}
			wait.Until(t, "at most one of the connections is left", func() bool { return s.Descriptors() <= descriptors+1 }, func() any { return s.Descriptors() })
			for _, conn := range open {
				conn.Close()
			}
		})
		wait.Until(t, "no connection is left", func() bool { return s.Descriptors() <= descriptors }, func() any { return s.Descriptors() })
		x := s.Sessions()[0]
		expect.Equal(t, x.State, session.Established, "the session")
		expect.Equal(t, x.Established, 1, "sessions")
		expect.Equal(t, bird.Count(), 2, "routes")
		expect.AtMost(t, strings.Count(s.LogEnd(1<<20), "refused"), 10, "lines in the log about refused connections")
		expect.Contains(t, s.LogEnd(1<<20), "not a configured router", "the log")
	})
}

// A restart of our process deletes no route in a router that connects to us, without BFD.
func TestPassiveRestart(t *testing.T) {
	inLabs(t, func(t *testing.T, l lab, v6 bool) {
		c := l.passive(v6)
		c.BFD = nil
		p := &c.Peers[0]
		p.Password, p.TTLSecurity = "", false
		if v6 {
			routers.StartFRR(t, l.router, frrPeer(l.us(v6).String(), "remote-as 4200065010", "timers connect 1"), "bgpd")
		} else {
			routers.StartBird(t, l.router, birdPeer(l.us(v6), "connect delay time 1; connect retry time 1;"))
		}
		s, events := restartable(t, l, c)
		s.Kill()
		s.StartAgain()
		s.AwaitUp()
		s.Do("withdraw", vip4)
		s.Do("ready")
		l.awaitKernelRoute(t, vip4, false)
		wait.Until(t, "the report of the deletion", func() bool { return events.Deleted.Load() > 0 })
		expect.Equal(t, events.Deleted.Load(), 1, "deleted routes")
	})
}
