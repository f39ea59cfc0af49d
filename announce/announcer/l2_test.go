package announcer

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/netip"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/ironvip/ironvip/announce"
	"github.com/ironvip/ironvip/announce/heartbeat"
	"github.com/ironvip/ironvip/announce/l2"
	"github.com/ironvip/ironvip/test/bubble"
	"github.com/ironvip/ironvip/test/expect"
)

// fakeSpeaker is a speaker at layer 2 that ends with what it receives.
type fakeSpeaker struct {
	config l2.Config
	fail   chan error
	ended  bool
	owns   map[netip.Addr]bool
	// changes counts calls of Reconfigure.
	changes int
}

func (f *fakeSpeaker) Run(ctx context.Context) error {
	select {
	case <-ctx.Done():
		return nil
	case err := <-f.fail:
		return err
	}
}

func (f *fakeSpeaker) Own(addr netip.Addr, _ bool) error {
	f.owns[addr] = true
	return nil
}

func (f *fakeSpeaker) Release(addrs ...netip.Addr) error {
	for _, addr := range addrs {
		delete(f.owns, addr)
	}
	return nil
}

func (f *fakeSpeaker) Reconfigure(c l2.Config) error {
	f.config = c
	f.changes++
	return nil
}

func (f *fakeSpeaker) Refresh() error { return nil }

func (f *fakeSpeaker) Reannounce() {}

func (f *fakeSpeaker) Busy() uint64 { return 0 }

// l2Host is an announcer with fake speakers and, with a peer, heartbeats without sockets.
type l2Host struct {
	*Announcer
	out      *l2Output
	at       netip.AddrPort
	settings announce.Settings
	packets  []heartbeat.Packet

	refuse error // of the next start of a speaker
	starts int   // attempts
}

const l2HostVIPs = 20

// newL2Host returns a host that has all VIPs of the test. Only in a bubble.
func newL2Host(t *testing.T, name string, at netip.AddrPort, peers ...netip.AddrPort) *l2Host {
	t.Helper()
	h := &l2Host{at: at, Announcer: New(Options{Socket: filepath.Join(t.TempDir(), "control.sock"), Log: slog.New(slog.DiscardHandler)})}
	h.out = newL2(h.Announcer, "")
	h.out.open = func(_ context.Context, c l2.Config) (l2Speaker, error) {
		h.starts++
		if h.refuse != nil {
			return nil, h.refuse
		}
		return &fakeSpeaker{config: c, fail: make(chan error, 1), owns: map[netip.Addr]bool{}}, nil
	}
	clear(h.outputs)
	h.outputs[announce.L2] = h.out
	h.settings = announce.Settings{Node: name, Weight: 1, LANs: lanAt("eth0"), Heartbeat: beat, Missed: missed, Settle: settle, Hold: time.Hour, Peers: peers,
		Pools: []announce.Pool{{Name: "lan", Mode: announce.L2, CIDRs: lanAt()[0].CIDRs}}}
	return h
}

// lanAt is the LAN of all VIPs.
func lanAt(interfaces ...string) []announce.LAN {
	return []announce.LAN{{Pools: []string{"lan"}, CIDRs: []netip.Prefix{netip.MustParsePrefix("192.0.2.0/24")}, Interfaces: interfaces}}
}

// start gives the host what its agent would send.
func (h *l2Host) start(send func(from, to netip.AddrPort, packet []byte)) {
	h.configure(&h.settings, time.Now())
	if len(h.settings.Peers) > 0 {
		h.settings.Keys = [][]byte{[]byte("key")} // later settings configure this exchange
		o := heartbeat.Options{Name: h.settings.Node, Keys: h.settings.Keys, Peers: h.settings.Peers, Interval: beat, Missed: missed, Weight: 1}
		h.core.exchange = heartbeat.New(o, newEpoch(), h.core.decider, time.Now())
		h.outbox.write = func(to netip.AddrPort, packet []byte) error { send(h.at, to, packet); return nil }
		h.core.listen(time.Now())
	}
	for i := range l2HostVIPs {
		agentEligible{h.Announcer}.SetAll([]announce.Eligible{{Addr: simVIP(i), Mode: announce.L2, Services: 1}})
	}
	h.synced()
}

func (h *l2Host) speaker() *fakeSpeaker {
	s, _ := h.out.speaker.(*fakeSpeaker)
	return s
}

// answers returns for how many VIPs the host answers.
func (h *l2Host) answers() int {
	if h.speaker() == nil {
		return 0
	}
	return len(h.speaker().owns)
}

// pass lets time pass for hosts, in steps of 10 ms.
func pass(d time.Duration, hosts ...*l2Host) {
	for end := time.Now().Add(d); time.Now().Before(end); time.Sleep(10 * time.Millisecond) {
		for _, h := range hosts {
			h.mail.run()
			packets := h.packets
			h.packets = nil
			h.step(time.Now(), packets)
		}
	}
}

// A host that can't announce at layer 2 leaves all VIPs to its peer, says why, and takes its share
// again when it can.
func TestHostWithoutSpeakerGivesUp(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		a := newL2Host(t, "lb1", loopback(1, 7481), loopback(2, 7481))
		b := newL2Host(t, "lb2", loopback(2, 7481), loopback(1, 7481))
		defer a.closeOutputs(false)
		defer b.closeOutputs(false)
		send := func(from, to netip.AddrPort, packet []byte) {
			for _, h := range []*l2Host{a, b} {
				if h.at == to {
					h.packets = append(h.packets, heartbeat.Packet{From: from, Data: slices.Clone(packet)})
				}
			}
		}
		share := func(when string) {
			t.Helper()
			if x, y := a.answers(), b.answers(); x == 0 || y == 0 || x+y != l2HostVIPs {
				t.Errorf("%s: shares %d and %d", when, x, y)
			}
			expect.Equal(t, a.stats.Problem, "", "%s: problem", when)
		}
		gone := func(when, why string) {
			t.Helper()
			expect.Equal(t, b.answers(), l2HostVIPs, "%s: the peer answers for VIPs", when)
			n, _, _ := a.tables.Announcements.Get(simVIP(1))
			if n.Here || n.Owner != "lb2" || !strings.Contains(n.Why, "lb1 can't announce it: "+why) {
				t.Errorf("%s: %+v", when, n)
			}
			a.publish(time.Now())
			expect.True(t, strings.HasPrefix(a.stats.Problem, "l2") && strings.HasSuffix(a.stats.Problem, ": "+why), "%s: problem %q", when, a.stats.Problem)
		}

		a.refuse = errors.New("no permission")
		a.start(send)
		b.start(send)
		pass(settle, a, b)
		gone("no start", "no permission")

		a.refuse = nil
		pass(10*time.Second+2*settle, a, b) // the longest pause between attempts
		share("after a start")

		a.problems.set(releaseProblem, errors.New("the speaker has ended")) // it ends with the speaker
		a.speaker().fail <- errors.New("socket closed")
		a.refuse = errors.New("still no permission")
		pass(20*time.Millisecond, a, b) // less than the first pause
		gone("ended", "layer 2 ended: socket closed")
		a.starts = 0
		pass(time.Minute, a, b)
		gone("no new start", "still no permission")
		if a.starts < 8 || a.starts > 25 { // 100 ms, doubled up to 10 s, with half of each as jitter
			t.Errorf("%d attempts in a minute", a.starts)
		}

		a.refuse = nil
		pass(10*time.Second+2*settle, a, b)
		share("after another start")
		a.settings.LANs = lanAt()
		a.configure(&a.settings, time.Now())
		pass(2*beat, a, b)
		gone("no interface", "no interface to announce VIPs on")
		a.settings.LANs = lanAt("eth0")
		a.configure(&a.settings, time.Now())
		pass(2*settle, a, b)
		share("with an interface")
	})
}

// An interface that fails moves the VIPs of its pools only, and the problem names these. Interfaces that are not known yet don't.
func TestInterfaceMovesItsVIPs(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		hosts := map[netip.AddrPort]*l2Host{}
		send := func(from, to netip.AddrPort, packet []byte) {
			hosts[to].packets = append(hosts[to].packets, heartbeat.Packet{From: from, Data: slices.Clone(packet)})
		}
		a, b := newL2Host(t, "lb1", loopback(1, 7481), loopback(2, 7481)), newL2Host(t, "lb2", loopback(2, 7481), loopback(1, 7481))
		hosts[a.at], hosts[b.at] = a, b
		in := func(i int) bool { return i < l2HostVIPs/2 } // the first LAN
		for _, h := range hosts {
			h.settings.LANs = append(lanAt("eth0"), lanAt("eth1", "eth2")...)
			h.settings.LANs[0].CIDRs, h.settings.LANs[1].Pools = nil, []string{"mail", "web"}
			for i := range l2HostVIPs {
				if in(i) {
					h.settings.LANs[0].CIDRs = append(h.settings.LANs[0].CIDRs, netip.PrefixFrom(simVIP(i), 32))
				}
			}
			h.start(send)
			defer h.closeOutputs(false)
		}
		pass(2*settle, a, b)
		count := func(what string, first, second func(n int) bool) {
			t.Helper()
			var n [2]int
			for i := range l2HostVIPs {
				if a.speaker().owns[simVIP(i)] == b.speaker().owns[simVIP(i)] {
					t.Errorf("%s: %s has no owner, or two", what, simVIP(i))
				}
				if a.speaker().owns[simVIP(i)] {
					n[map[bool]int{false: 1}[in(i)]]++
				}
			}
			if !first(n[0]) || !second(n[1]) {
				t.Errorf("%s: lb1 has %v", what, n)
			}
		}
		some, none := func(n int) bool { return n > 0 && n < l2HostVIPs/2 }, func(n int) bool { return n == 0 }
		count("before", some, some)
		a.speaker().config.Report(l2.Report{Interface: "eth1", State: l2.LinkDown})
		pass(beat, a, b)
		count("one of two interfaces", some, some)
		former := a.core.decider.Evaluated
		a.speaker().config.Report(l2.Report{Interface: "eth2", State: l2.LinkMissing})
		pass(beat, a, b)
		count("both", some, none)
		expect.True(t, a.core.decider.Evaluated-former <= l2HostVIPs, "decisions") // of the LAN, and again for the claims of the other host
		a.publish(time.Now())
		expect.Equal(t, a.stats.Problem, "l2 interfaces of pool: mail, web: eth1: link down, eth2: link missing", "problem")
		former = a.core.decider.Evaluated
		a.speaker().config.Report(l2.Report{Interface: "eth0", State: l2.LinkUp})
		a.mail.run()
		a.step(time.Now(), nil)
		expect.Equal(t, a.core.decider.Evaluated, former, "decisions after a report that changes nothing")
		a.settings.LANs[1].Interfaces = []string{"eth3"}
		a.configure(&a.settings, time.Now())
		pass(2*settle, a, b)
		count("another interface", some, some)
		expect.Equal(t, a.stats.Problem, "", "problem")
		a.speaker().config.Report(l2.Report{Interface: "eth1", State: l2.LinkDown}) // of the former settings
		pass(beat, a, b)
		a.settings.LANs[1].Interfaces = []string{"eth1"}
		a.configure(&a.settings, time.Now())
		pass(2*settle, a, b)
		count("an interface that is not known yet", some, some)
	})
}

// A speaker that ends again and again starts more and more seldom. Settings that start one cancel the
// planned start.
func TestEndingSpeakerStartsWithBackoff(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		h := newL2Host(t, "lb1", loopback(1, 7481))
		defer h.closeOutputs(false)
		h.start(nil)
		h.starts = 0
		for end := time.Now().Add(time.Minute); time.Now().Before(end); pass(10*time.Millisecond, h) {
			if s := h.speaker(); s != nil && !s.ended {
				s.ended = true
				s.fail <- errors.New("socket closed")
			}
		}
		expect.Between(t, h.starts, 8, 25, "starts in a minute")
		pass(11*time.Second, h)
		h.speaker().fail <- errors.New("socket closed")
		pass(20*time.Millisecond, h)
		h.starts = 0
		h.configure(&h.settings, time.Now())
		pass(time.Minute, h)
		if h.starts != 1 || h.answers() != l2HostVIPs || h.speaker().changes != 0 {
			t.Errorf("%d starts, %d VIPs, configured %d times more", h.starts, h.answers(), h.speaker().changes)
		}
	})
}

// The end of a speaker and a gate that closes remove the states at its interfaces, and none of routes.
func TestEndOfASpeakerKeepsRoutes(t *testing.T) {
	for name, end := range map[string]func(h *l2Host){
		"end": func(h *l2Host) { h.out.end() },
		"gate": func(h *l2Host) {
			h.speaker().config.Report(l2.Report{State: l2.GateClosed})
			h.mail.run()
		},
	} {
		bubble.Test(t, func(t *testing.T) {
			h := newL2Host(t, "lb1", loopback(1, 7481))
			defer h.closeOutputs(false)
			h.start(nil)
			for _, at := range []string{"eth0", placeOfRoutes} {
				h.tables.Announced.Set(announce.Announced{Place: announce.Place{Addr: simVIP(1), At: at}})
			}
			end(h)
			expect.Equal(t, h.tables.Announced.Len(), 1, "%s: states", name)
			expect.True(t, h.tables.Announced.Row(announce.Place{Addr: simVIP(1), At: placeOfRoutes}) != nil, "%s: the state of a route", name)
		})
	}
}

// VIPs that are given up while there is no speaker are not collected.
func TestNoSpeakerCollectsNoReleases(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		h := newL2Host(t, "lb1", loopback(1, 7481))
		h.refuse = errors.New("no permission")
		h.start(nil)
		defer h.closeOutputs(false)
		for range 100 {
			h.out.set(nil, &announce.Announcement{Addr: simVIP(1), Here: true}, false)
			h.out.set(nil, &announce.Announcement{Addr: simVIP(1)}, false)
			h.out.act(true)
		}
		expect.Equal(t, len(h.out.release), 0, "releases wait")
	})
}

// A host with a new name still can't announce what it could not announce before.
func TestNewNameKeepsOffline(t *testing.T) {
	for _, why := range []string{"eth0: link down", "no permission"} {
		bubble.Test(t, func(t *testing.T) {
			h := newL2Host(t, "lb1", loopback(1, 7481))
			defer h.closeOutputs(false)
			if why == "no permission" {
				h.refuse = errors.New(why)
			}
			h.start(nil)
			if s := h.speaker(); s != nil {
				s.config.Report(l2.Report{Interface: "eth0", State: l2.LinkDown})
			}
			for _, name := range []string{"lb1", "lb2"} {
				h.settings.Node = name
				h.configure(&h.settings, time.Now())
				pass(time.Second, h)
				n, _, _ := h.tables.Announcements.Get(simVIP(1))
				if want := fmt.Sprintf("no eligible host; %s can't announce it: %s", name, why); n.Here || n.Why != want {
					t.Errorf("%+v, want %q", n, want)
				}
			}
			if s := h.speaker(); s != nil {
				s.config.Report(l2.Report{Interface: "eth0", State: l2.LinkUp})
				pass(time.Second, h)
				expect.Equal(t, h.answers(), l2HostVIPs, "VIPs with a link")
			}
		})
	}
}
