//go:build system

package routers_test

import (
	"fmt"
	"net/netip"
	"strings"
	"testing"
	"time"

	"github.com/ironvip/ironvip/announce/bfd"
	"github.com/ironvip/ironvip/announce/bgp/session"
	"github.com/ironvip/ironvip/test/expect"
	"github.com/ironvip/ironvip/test/routers"
	"github.com/ironvip/ironvip/test/wait"
)

// Slow: once, the next process is late on purpose.
//
// restarts restarts our process three times: a router with BFD sees one session and no withdrawal, and then that of the prefix
// that is not announced any more.
func restarts(t *testing.T, l lab, c routers.Settings, count func() int) *routers.Speaker {
	c.Prefixes = append(c.Prefixes, vips(1000)...)
	events := routers.WatchRoutes(t, l.router)
	s := routers.StartSpeaker(t, l.Director, c)
	x := s.AwaitUp()
	since := s.AwaitBFD(bfd.Up).Since
	wait.Until(t, "1,002 routes in the router's kernel", func() bool { return events.Added.Load() >= 1002 }, func() any { return events.Added.Load() })
	added := events.Added.Load()
	for i := range 3 {
		s.Restart(func(c *routers.Settings) {
			c.NotReady, c.Away = true, 0
			if i == 1 { // longer than the detection time of BFD
				c.Away = 2 * time.Second
			}
		})
		y := s.AwaitUp()
		expect.True(t, y.Since.Equal(x.Since), "a new session: %+v, %+v", x, y)
		s.Do("ready")
		wait.Until(t, "everything is sent again", func() bool { y = s.Sessions()[0]; return y.Prefixes == [2]int{1001, 1} && y.Sending.IsZero() }, func() any { return y })
	}
	expect.True(t, s.AwaitBFD(bfd.Up).Since.Equal(since), "a new BFD session")
	s.Restart(func(c *routers.Settings) { c.Prefixes, c.NotReady = c.Prefixes[1:], false })
	l.awaitKernelRoute(t, vip4, false)
	wait.Until(t, "one route fewer", func() bool { return count() == 1001 }, func() any { return count() })
	wait.Until(t, "the report of the deletion", func() bool { return events.Deleted.Load() > 0 })
	expect.Equal(t, events.Deleted.Load(), 1, "deleted routes")
	expect.Equal(t, events.Added.Load(), added, "routes that were added again")
	y := s.AwaitUp()
	expect.True(t, y.Since.Equal(x.Since), "a new session: %+v, %+v", x, y)
	expect.True(t, s.AwaitBFD(bfd.Up).Since.Equal(since), "a new BFD session")
	return s
}

// A restart keeps the sessions, with BFD that removes the routes of a dead host at once, and passwords.
func TestHandOverWithBird(t *testing.T) {
	inLabs(t, func(t *testing.T, l lab, v6 bool) {
		bird := routers.StartBird(t, l.router, birdPeer(l.us(v6), birdConnects+" passive;"))
		c := l.passive(v6)
		c.Peers[0].Passive = false
		s := restarts(t, l, c, func() int { return bird.Count() })
		all := bird.Ask("show", "protocols", "all", "vips")
		expect.True(t, !strings.Contains(bird.LogEnd(1<<20), "Error"), "an error of a session: %s", all)
		s.Kill() // which still removes the routes
		l.awaitKernelRoute(t, vip6, false)
	})
}

// The same with a router of a range, which connects to us.
func TestHandOverOfRangeWithBird(t *testing.T) {
	inLabs(t, func(t *testing.T, l lab, v6 bool) {
		bird := routers.StartBird(t, l.router, birdPeer(l.us(v6), birdConnects))
		c := l.passive(v6)
		p := &c.Peers[0]
		p.PeerRange, p.PeerLimit = netip.PrefixFrom(p.Peer, p.Peer.BitLen()), 1
		p.Peer = netip.Addr{}
		restarts(t, l, c, func() int { return bird.Count() })
	})
}

func TestHandOverWithFRR(t *testing.T) {
	inLabs(t, func(t *testing.T, l lab, v6 bool) {
		us := l.us(v6).String()
		frr := routers.StartFRR(t, l.router, frrPeer(us, "remote-as 4200065010", "password secret", "ttl-security hops 1", "timers connect 1", "bfd", "passive")+
			fmt.Sprintf("bfd\n peer %s\n  detect-multiplier %d\n  receive-interval %[3]d\n  transmit-interval %[3]d\n", us, patient.Multiplier, patient.Interval/ms), "bfdd", "bgpd")
		c := l.passive(v6)
		c.Peers[0].Passive = false
		restarts(t, l, c, func() int {
			return strings.Count(frr.Ask("show bgp ipv4 unicast"), "4200065010 i") + strings.Count(frr.Ask("show bgp ipv6 unicast"), "4200065010 i")
		})
	})
}

// A session whose settings have changed, or whose peer is gone, does not go on.
func TestHandOverOfOtherSettings(t *testing.T) {
	inLabs(t, func(t *testing.T, l lab, v6 bool) {
		bird := routers.StartBird(t, l.router, birdPeer(l.us(v6), "passive;"))
		s := routers.StartSpeaker(t, l.Director, l.settings(v6))
		x := s.AwaitUp()
		wait.Until(t, "both routes in BIRD", func() bool { return bird.Count() == 2 })
		s.Restart(func(c *routers.Settings) { c.Peers[0].Source = l.us(v6) })
		y := s.AwaitUp()
		expect.True(t, y.Since.After(x.Since), "the session of other settings goes on")
		s.Restart(func(c *routers.Settings) { c.Peers = nil })
		expect.Len(t, s.Sessions(), 0, "sessions")
		wait.Until(t, "the router has lost the session", func() bool {
			return !strings.Contains(bird.Ask("show", "protocols", "vips"), session.Established.String()) &&
				!strings.Contains(bird.Ask("show", "protocols", "vips"), "Established")
		})
	})
}
