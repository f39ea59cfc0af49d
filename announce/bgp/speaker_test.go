package bgp

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/ironvip/ironvip/announce"
	"github.com/ironvip/ironvip/announce/bgp/bgptest"
	"github.com/ironvip/ironvip/announce/bgp/message"
	"github.com/ironvip/ironvip/announce/bgp/session"
	"github.com/ironvip/ironvip/announce/bgp/transport"
	"github.com/ironvip/ironvip/internal/table"
	"github.com/ironvip/ironvip/test/bubble"
	"github.com/ironvip/ironvip/test/expect"
	"github.com/ironvip/ironvip/test/must"
	"github.com/ironvip/ironvip/test/wait"
)

func prefix(s string) netip.Prefix { return netip.MustParsePrefix(s) }

func samplePeer() announce.BGPPeer {
	return announce.BGPPeer{Peer: bgptest.Addr, ASN: 65000, LocalASN: 65010}
}

// dial returns a dialer that connects to a router in memory.
func dial(r *bgptest.Router) dialer {
	return func(ctx context.Context, _ *announce.BGPPeer, _ netip.Addr) (net.Conn, error) { return r.Dial(ctx) }
}

// announcing is a Speaker with the table that it follows.
type announcing struct {
	*Speaker
	table *table.Table[netip.Prefix, announce.PrefixRoute]
	ready func()
}

// newAnnouncing starts a Speaker. The returned function ends it and waits.
func newAnnouncing(t *testing.T, c Config, r *bgptest.Router) (*announcing, context.CancelFunc) {
	t.Helper()
	a := &announcing{table: announce.NewPrefixRoutes()}
	a.ready = a.table.Initializer()
	ctx, cancel := context.WithCancel(t.Context())
	a.Speaker = newSpeaker(ctx, c, a.table, dial(r))
	stop := func() { cancel(); a.Wait() }
	t.Cleanup(stop)
	return a, stop
}

func (a *announcing) announce(prefixes ...netip.Prefix) { a.announceWith("", prefixes...) }

// announceWith announces prefixes with a policy, in JSON.
func (a *announcing) announceWith(policy string, prefixes ...netip.Prefix) {
	var rows []announce.PrefixRoute
	for _, p := range prefixes {
		rows = append(rows, announce.PrefixRoute{Prefix: p, Route: announce.Route{Policy: announce.PolicyText(policy)}})
	}
	a.table.SetAll(rows)
}

// start runs a Speaker with one peer. The returned function ends it and waits.
func start(t *testing.T, change ...func(*Config)) (*announcing, *bgptest.Router, context.CancelFunc) {
	t.Helper()
	c := Config{RouterID: netip.MustParseAddr("10.0.0.2"), Peers: []announce.BGPPeer{samplePeer()}}
	for _, f := range change {
		f(&c)
	}
	r := bgptest.NewRouter(t)
	s, stop := newAnnouncing(t, c, r)
	return s, r, stop
}

// started runs a test in a bubble with a Speaker of one peer.
func started(t *testing.T, f func(*testing.T, *announcing, *bgptest.Router)) {
	t.Helper()
	bubble.Test(t, func(t *testing.T) {
		s, r, _ := start(t)
		f(t, s, r)
	})
}

func awaitReason(t *testing.T, s *announcing, reason string) {
	t.Helper()
	wait.Until(t, "the reason "+reason, func() bool {
		x := s.Sessions()[0]
		return strings.Contains(x.Reason, reason) && x.State != session.Established
	}, func() any { return fmt.Sprintf("%+v", s.Sessions()[0]) })
}

func awaitUp(t *testing.T, s *announcing) {
	t.Helper()
	wait.Until(t, "established", func() bool { return s.Sessions()[0].State == session.Established }, func() any { return s.Sessions()[0] })
}

// A session announces what there is, then each change in one message.
func TestUpdates(t *testing.T) {
	started(t, func(t *testing.T, s *announcing, r *bgptest.Router) {
		s.announce(prefix("10.96.0.1/32"), prefix("10.96.0.2/32"), prefix("fd96::1/128"))
		l := r.Accept()
		l.Establish(bgptest.Open())
		l.Expect("+10.96.0.1/32 +10.96.0.2/32", "+fd96::1/128")
		s.announce(prefix("10.96.0.3/32"))
		l.Expect("+10.96.0.3/32")
		s.ready()
		l.Expect("EOR 4", "EOR 6")
		s.announce(prefix("10.96.0.3/32")) // nothing new
		s.table.Delete(prefix("10.96.0.9/32"))
		s.table.Delete(prefix("10.96.0.3/32"))
		l.Expect("-10.96.0.3/32")
		s.table.Delete(prefix("fd96::1/128"))
		l.Expect("-fd96::1/128")
		s.Drain(true)
		l.Expect("+10.96.0.1/32 +10.96.0.2/32 d0 ffff0000")
		s.Drain(true)
		s.Drain(false)
		l.Expect("+10.96.0.1/32 +10.96.0.2/32")
		synctest.Wait()
		x := s.Sessions()[0]
		if x.Prefixes != [2]int{2, 0} || !x.GracefulRestart || x.Negotiated() != "graceful restart: the router keeps the routes for up to 2m0s while the announcer restarts; its own restart time is 2m0s" || x.HoldTime != 30*time.Second || x.Lacks != [2]string{} || !x.Sending.IsZero() || x.RouterID != bgptest.Addr || x.Established != 1 {
			t.Errorf("%+v", x)
		}
		l.Send([]byte(strings.Repeat("\xff", 16) + "\x00\x17\x05\x00\x01\x00\x01")) // ROUTE-REFRESH
		l.Expect("+10.96.0.1/32 +10.96.0.2/32")
		l.Close()
		awaitReason(t, s, "closed the connection without a NOTIFICATION")
		l = r.Accept()
		l.Establish(bgptest.Open())
		l.Expect("+10.96.0.1/32 +10.96.0.2/32", "EOR 4", "EOR 6") // no withdrawn ones
	})
}

// A change costs one message for each peer, however many prefixes there are.
func TestCostOfOneChange(t *testing.T) {
	started(t, func(t *testing.T, s *announcing, r *bgptest.Router) {
		var ps []netip.Prefix
		for i := range 10000 {
			ps = append(ps, netip.PrefixFrom(netip.AddrFrom4([4]byte{10, 96, byte(i >> 8), byte(i)}), 32))
		}
		s.announce(ps...)
		s.ready()
		l := r.Accept()
		l.Establish(bgptest.Open())
		messages := 0
		for l.Update() != "EOR 4" {
			messages++
		}
		l.Expect("EOR 6")
		expect.AtMost(t, messages, 20, "messages for 10,000 prefixes")
		for i := range 5 {
			p := prefix(fmt.Sprintf("10.97.0.%d/32", i))
			s.announce(p)
			l.Expect("+" + p.String())
		}
	})
}

// A change of what routes carry costs the UPDATEs that differ, and one message for prefixes of equal attributes. The session
// goes on.
func TestPolicyUpdates(t *testing.T) {
	started(t, func(t *testing.T, s *announcing, r *bgptest.Router) {
		const one, both, away = `{"Communities":["0:1"]}`, `{"Communities":["0:1","1:2:3"]}`, `{"Peers":["10.0.0.9"]}`
		s.announceWith(one, prefix("10.96.0.1/32"), prefix("10.96.0.3/32"))
		s.announce(prefix("10.96.0.2/32"))
		s.announceWith(one, prefix("10.96.0.4/32"), prefix("fd96::1/128"))
		s.announceWith(away, prefix("10.96.0.5/32"))
		s.ready()
		l := r.Accept()
		l.Establish(bgptest.Open())
		l.Expect("+10.96.0.1/32 +10.96.0.3/32 +10.96.0.4/32 d0 00000001", "+10.96.0.2/32", "+fd96::1/128 d0 00000001", "EOR 4", "EOR 6")
		synctest.Wait()
		l.Send([]byte(strings.Repeat("\xff", 16) + "\x00\x17\x05\x00\x01\x00\x01")) // ROUTE-REFRESH
		again := []string{l.Update(), l.Update()}
		slices.Sort(again)
		expect.SameList(t, again, []string{"+10.96.0.1/32 +10.96.0.3/32 +10.96.0.4/32 d0 00000001", "+10.96.0.2/32"})
		synctest.Wait()
		expect.Equal(t, s.Sessions()[0].Prefixes, [2]int{4, 1}, "prefixes that were sent")

		s.announceWith(both, prefix("10.96.0.3/32"))
		l.Expect("+10.96.0.3/32 d0 00000001 d0 000000010000000200000003")
		s.announceWith(`{"Communities":["0:1"],"LocalPref":7}`, prefix("10.96.0.1/32")) // nothing that an eBGP router gets
		s.announceWith(away, prefix("10.96.0.4/32"))
		l.Expect("-10.96.0.4/32")
		s.table.Delete(prefix("10.96.0.5/32")) // the router doesn't have it
		s.announceWith(`{"Peers":["10.0.0.1"]}`, prefix("10.96.0.4/32"))
		l.Expect("+10.96.0.4/32")

		// The router's own keys are the defaults: they change the routes without others.
		c := s.config
		peer := samplePeer()
		peer.Communities = []string{"0:9"}
		c.Peers = []announce.BGPPeer{peer}
		s.Reconfigure(c)
		got := l.Update()
		expect.True(t, got == "+10.96.0.2/32 +10.96.0.4/32 d0 00000009", "%s", got)
		s.Reconfigure(c)
		s.Drain(true)
		var all []string
		for range 4 {
			all = append(all, l.Update())
		}
		slices.Sort(all)
		expect.SameList(t, all, []string{"+10.96.0.1/32 d0 00000001ffff0000", "+10.96.0.2/32 +10.96.0.4/32 d0 00000009ffff0000",
			"+10.96.0.3/32 d0 00000001ffff0000 d0 000000010000000200000003", "+fd96::1/128 d0 00000001ffff0000"})
		synctest.Wait()
		x := s.Sessions()[0]
		expect.True(t, x.Established == 1 && x.Prefixes == [2]int{4, 1}, "%+v", x)
	})
}

// A reload that gives 10,000 VIPs a community sends each prefix once, in full messages, and then one message for one VIP.
func TestCostOfAPolicy(t *testing.T) {
	started(t, func(t *testing.T, s *announcing, r *bgptest.Router) {
		var ps []netip.Prefix
		for i := range 10000 {
			ps = append(ps, netip.PrefixFrom(netip.AddrFrom4([4]byte{10, 96, byte(i >> 8), byte(i)}), 32))
		}
		s.announce(ps...)
		l := r.Accept()
		l.Establish(bgptest.Open())
		read := func() (messages int) {
			for prefixes := 0; prefixes < len(ps); messages++ {
				prefixes += strings.Count(l.Update(), "+")
			}
			return messages
		}
		expect.AtMost(t, read(), 20, "messages for 10,000 prefixes")
		s.announceWith(`{"Communities":["no-export"]}`, ps...)
		expect.AtMost(t, read(), 20, "messages for a community of 10,000 prefixes")
		s.announceWith(`{"Communities":["blackhole"]}`, ps[77])
		l.Expect("+" + ps[77].String() + " d0 ffff029a")
		s.announceWith(`{"Communities":["no-export"]}`, ps...) // all but one have it
		l.Expect("+" + ps[77].String() + " d0 ffffff01")
	})
}

func TestReconfigure(t *testing.T) {
	started(t, func(t *testing.T, s *announcing, r *bgptest.Router) {
		s.announce(prefix("10.96.0.1/32"))
		l := r.Accept()
		l.Establish(bgptest.Open())
		l.Expect("+10.96.0.1/32")
		c := Config{RouterID: netip.MustParseAddr("10.0.0.2"), Peers: []announce.BGPPeer{samplePeer()}}
		s.Reconfigure(c) // nothing new
		c.Peers[0].Communities = []string{"0:1"}
		s.Reconfigure(c)
		l.Expect("+10.96.0.1/32 d0 00000001")
		c.Peers[0].Password = "secret"
		s.Reconfigure(c)
		l.Ends(message.CodeCease, message.CeaseConfigChange)
		l = r.Accept()
		l.Establish(bgptest.Open())
		l.Expect("+10.96.0.1/32 d0 00000001")
		c.RouterID = netip.MustParseAddr("10.0.0.3")
		s.Reconfigure(c)
		l.Ends(message.CodeCease, message.CeaseConfigChange)
		l = r.Accept()
		expect.Equal(t, l.Establish(bgptest.Open()).RouterID, c.RouterID, "router ID")
		c.Peers = nil
		s.Reconfigure(c)
		l.Ends(message.CodeCease, message.CeaseDeconfigured)
		expect.Empty(t, s.Sessions())
	})
}

// The pauses between attempts grow, also for a router that accepts each session and ends it.
func TestRetries(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		_, r, _ := start(t)
		began := time.Now()
		for range 10 {
			l := r.Accept()
			l.Establish(bgptest.Open())
			l.Send(bgptest.Notification(message.CodeCease, message.CeaseMaxPrefixes))
			l.Close()
		}
		expect.Between(t, time.Since(began), 15*time.Second, 50*time.Second, "10 attempts took")
		l := r.Accept()
		l.Establish(bgptest.Open())
		time.Sleep(stable)
		began = time.Now()
		l.Close()
		r.Accept()
		expect.AtMost(t, time.Since(began), minRetry, "a stable session is retried")
	})
}

// A connection that is reset in the middle of an UPDATE of this host loses nothing: everything is
// announced again.
func TestResetInTheMiddleOfAnUpdate(t *testing.T) {
	started(t, func(t *testing.T, s *announcing, r *bgptest.Router) {
		l := r.Accept()
		l.Establish(bgptest.Open())
		awaitUp(t, s)
		l.Mute()
		s.announce(prefix("10.96.0.1/32"))
		l.Expect("+10.96.0.1/32")
		s.announce(prefix("10.96.0.2/32"), prefix("10.96.0.3/32"))
		b := make([]byte, message.HeaderSize+4)
		must.Get(io.ReadFull(l.Conn, b))(t)
		l.Close()
		awaitReason(t, s, "closed the connection without a NOTIFICATION")
		s.table.Delete(prefix("10.96.0.3/32"))
		l = r.Accept()
		l.Establish(bgptest.Open())
		l.Expect("+10.96.0.1/32 +10.96.0.2/32")
	})
}

// A router that ends a session refuses connections for a while. The reason is still shown.
func TestReasonRemains(t *testing.T) {
	started(t, func(t *testing.T, s *announcing, r *bgptest.Router) {
		l := r.Accept()
		l.Establish(bgptest.Open())
		l.Send(bgptest.Notification(message.CodeCease, message.CeaseMaxPrefixes))
		l.Close()
		r.Accept().Close()
		awaitReason(t, s, "accepts (since then: the router closed the connection before its OPEN")
		expect.Contains(t, s.Sessions()[0].Hint, "maximum-prefix", "hint")
		l = r.Accept()
		l.Establish(bgptest.Open())
		awaitUp(t, s)
		l.Close()
		awaitReason(t, s, "closed the connection without a NOTIFICATION")
		r.Accept().Close()
		awaitReason(t, s, "before its OPEN")
		if x := s.Sessions()[0]; strings.Contains(x.Reason, "prefixes") || x.Hint != neighborHint {
			t.Errorf("old reason %q, hint %q", x.Reason, x.Hint)
		}
	})
}

func TestPathDown(t *testing.T) {
	started(t, func(t *testing.T, s *announcing, r *bgptest.Router) {
		s.PathDown("10.0.0.1", "too early")
		s.PathDown("10.0.0.9", "unknown")
		l := r.Accept()
		l.Establish(bgptest.Open())
		awaitUp(t, s)
		began := time.Now()
		go s.PathDown("10.0.0.1", "BFD: no packet from 10.0.0.1 for 150ms")
		l.Ends(message.CodeCease, message.CeaseBFD)
		expect.AtMost(t, time.Since(began), 0, "ended")
		l.Close()
		awaitReason(t, s, "BFD: no packet from 10.0.0.1 for 150ms")
		r.Accept().Establish(bgptest.Open())
		awaitUp(t, s)
	})
}

// The R bit is set in the first session after a restart only, and only if the router keeps routes
// of the earlier run.
func TestRestartBit(t *testing.T) {
	for _, c := range []struct {
		name   string
		record string // before
		before func(r *bgptest.Router)
		after  time.Duration
		want   bool
	}{
		{"first run", "", nil, 0, false},
		{"restart", `{"peers":["10.0.0.1"]}`, nil, 0, true},
		{"other peer", `{"peers":["10.0.0.7"]}`, nil, 0, false},
		{"broken record", `{"peers":`, nil, 0, false},
		{"too late", `{"peers":["10.0.0.1"]}`, nil, 121 * time.Second, false},
		{"the router restarts, too", `{"peers":["10.0.0.1"]}`, func(r *bgptest.Router) { r.Refuse(transport.ErrRefused) }, 2 * time.Second, false},
		{"unreachable for a while", `{"peers":["10.0.0.1"]}`, func(r *bgptest.Router) { r.Refuse(errors.New("unreachable")) }, 2 * time.Second, true},
	} {
		bubble.Run(t, c.name, func(t *testing.T) {
			path := filepath.Join(t.TempDir(), "record")
			if c.record != "" {
				must.Succeed(t, os.WriteFile(path, []byte(c.record), 0o600))
			}
			r := bgptest.NewRouter(t)
			if c.before != nil {
				c.before(r)
			}
			s, _ := newAnnouncing(t, Config{RouterID: netip.MustParseAddr("10.0.0.2"), Peers: []announce.BGPPeer{samplePeer()}, Record: path}, r)
			time.Sleep(c.after)
			r.Refuse(nil)
			l := r.Accept()
			if o := l.Establish(bgptest.Open()); o.Restarted != c.want || !o.GracefulRestart {
				t.Errorf("restarted %t, want %t", o.Restarted, c.want)
			}
			awaitUp(t, s)
			l.Close()
			l = r.Accept()
			expect.False(t, l.Establish(bgptest.Open()).Restarted, "restarted in the second session")
			awaitUp(t, s)
			l.Close()
		})
	}
}

// The ends of a run, and what they leave for the next one.
func TestEnds(t *testing.T) {
	without := bgptest.Open()
	without.GracefulRestart = false
	for _, c := range []struct {
		name      string
		theirs    message.Open
		end       func(s *announcing, stop func())
		code, sub uint8
		record    bool
	}{
		{"restart", bgptest.Open(), func(_ *announcing, stop func()) { stop() }, 0, 0, true},
		{"restart without graceful restart", without, func(_ *announcing, stop func()) { stop() }, message.CodeCease, message.CeaseShutdown, false},
		{"shutdown", bgptest.Open(), func(s *announcing, stop func()) { s.Shutdown(); stop() }, message.CodeCease, message.CeaseShutdown, false},
	} {
		bubble.Run(t, c.name, func(t *testing.T) {
			path := filepath.Join(t.TempDir(), "record")
			s, r, stop := start(t, func(x *Config) { x.Record = path })
			l := r.Accept()
			l.Establish(c.theirs)
			awaitUp(t, s)
			go c.end(s, stop)
			l.Ends(c.code, c.sub)
			l.Close()
			stop()
			b, _ := os.ReadFile(path)
			expect.Equal(t, strings.Contains(string(b), "10.0.0.1"), c.record, "record %q", b)
		})
	}
}

func TestFamiliesThatTheRouterLacks(t *testing.T) {
	started(t, func(t *testing.T, s *announcing, r *bgptest.Router) {
		s.announce(prefix("10.96.0.1/32"), prefix("fd96::1/128"))
		s.ready()
		l := r.Accept()
		only4 := bgptest.Open()
		only4.Families[message.IPv6] = false
		l.Establish(only4)
		l.Expect("+10.96.0.1/32", "EOR 4")
		synctest.Wait()
		x := s.Sessions()[0]
		if x.Lacks[message.IPv4] != "" || !strings.Contains(x.Lacks[message.IPv6], "IPv6 prefixes are not announced") || x.Prefixes != [2]int{1, 0} {
			t.Errorf("%+v", x)
		}
		s.announce(prefix("fd96::2/128"))
		s.announce(prefix("10.96.0.2/32"))
		l.Expect("+10.96.0.2/32")
		l.Close()
	})
}

// The attributes of the routes of a peer: with defaults, and those of a drain.
func TestPathAttributes(t *testing.T) {
	some := announce.BGPPeer{Communities: []string{"0:1"}, MED: new(uint32(7)), LocalPref: new(uint32(300)), Prepend: new(2), LinkBandwidth: "backends"}
	policy := `{"Communities":["0:2","1:2:3","0:2"],"MED":0,"LocalPref":400,"Prepend":1,"LinkBandwidth":"off"}`
	one := []message.Community{1}
	for _, c := range []struct {
		name     string
		localASN uint32
		p        announce.BGPPeer
		draining bool
		route    announce.Route
		want     message.PathAttributes
	}{
		{"eBGP", 65010, announce.BGPPeer{}, false, announce.Route{Backends: 3}, message.PathAttributes{ASN: 65010}},
		{"iBGP", 65000, announce.BGPPeer{}, false, announce.Route{Backends: 3}, message.PathAttributes{ASN: 65000, IBGP: true, LocalPref: 100}},
		{"everything, eBGP", 65010, some, false, announce.Route{Backends: 3}, message.PathAttributes{ASN: 65010, Prepend: 2, MED: 7, LinkBandwidth: 375000, Communities: one}},
		{"everything, iBGP", 65000, some, false, announce.Route{Backends: 3}, message.PathAttributes{ASN: 65000, IBGP: true, MED: 7, LocalPref: 300, LinkBandwidth: 375000, Communities: one}},
		{"draining", 65000, some, true, announce.Route{}, message.PathAttributes{ASN: 65000, IBGP: true, MED: 7, Communities: []message.Community{1, 0xffff0000}}},
		{"policy, eBGP", 65010, some, false, announce.Route{Policy: announce.PolicyText(policy), Backends: 3},
			message.PathAttributes{ASN: 65010, Prepend: 1, Communities: []message.Community{2}, LargeCommunities: []message.LargeCommunity{{1, 2, 3}}}},
		{"policy, iBGP", 65000, some, false, announce.Route{Policy: announce.PolicyText(policy)},
			message.PathAttributes{ASN: 65000, IBGP: true, LocalPref: 400, Communities: []message.Community{2}, LargeCommunities: []message.LargeCommunity{{1, 2, 3}}}},
		{"no communities by policy", 65010, some, false, announce.Route{Policy: `{"Communities":[],"LinkBandwidth":"backends"}`, Backends: 1},
			message.PathAttributes{ASN: 65010, Prepend: 2, MED: 7, LinkBandwidth: 125000}},
	} {
		c.p.ASN, c.p.LocalASN, c.p.Peer = 65000, c.localASN, bgptest.Addr
		got, gets := (&options{c.p, c.draining}).path(c.route)
		expect.True(t, gets && reflect.DeepEqual(got, c.want), "%s: %+v, %t, want %+v", c.name, got, gets, c.want)
	}
	for peers, want := range map[string]bool{`["10.0.0.1"]`: true, `["10.0.0.9","10.0.0.1"]`: true, `["10.0.0.9"]`: false,
		`["10.0.0.0/24"]`: true, `["10.0.1.0/24"]`: false, `["10.0.0.0/24@red"]`: false} {
		p := samplePeer()
		_, gets := (&options{p, false}).path(announce.Route{Policy: announce.PolicyText(`{"Peers":` + peers + `}`)})
		expect.Equal(t, gets, want, "with peers %s", peers)
	}
}
