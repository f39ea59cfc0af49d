package vips

import (
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os/exec"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/vishvananda/netlink"

	"github.com/ironvip/ironvip/internal/event"
	"github.com/ironvip/ironvip/internal/table"
	"github.com/ironvip/ironvip/plane/kernel/host"
	"github.com/ironvip/ironvip/plane/reconcile"
	"github.com/ironvip/ironvip/test/expect"
	"github.com/ironvip/ironvip/test/must"
	"github.com/ironvip/ironvip/test/need"
	"github.com/ironvip/ironvip/test/netlab"
	"github.com/ironvip/ironvip/test/proxytest"
	"github.com/ironvip/ironvip/test/scope"
	"github.com/ironvip/ironvip/test/wait"
	"github.com/ironvip/ironvip/vip"
)

// loop is a Plane with its Reconciler.
type loop struct {
	*bench
	r       *reconcile.Reconciler[vip.FrontendKey, vip.Frontend]
	desired *table.Table[vip.FrontendKey, vip.Frontend]
	applied *table.Table[vip.FrontendKey, reconcile.AppliedFrontend]
	events  *event.Log
}

// newLoop runs a Reconciler without resyncs.
func newLoop(t *testing.T) *loop {
	l := &loop{bench: newPlane(t, Options{Device: "ironvip0"}),
		desired: table.New(&table.Clock{}, vip.KeyOfFrontend, nil), applied: table.New(&table.Clock{}, reconcile.KeyOfApplied, nil), events: event.NewLog(1000, time.Now)}
	l.r = reconcile.New(reconcile.Options[vip.FrontendKey, vip.Frontend]{Desired: l.desired, Target: l.Plane, Applied: l.applied, Resync: -1, Events: l.events})
	scope.Go(t, l.r.Run)
	return l
}

func (l *loop) serve(addrs ...netip.Addr) {
	for _, a := range addrs {
		for _, port := range []uint16{80, 443} {
			l.desired.Set(*proxytest.OnVIP(vip.FrontendKey{Addr: a, Port: port, Protocol: vip.TCP}))
		}
	}
	for _, a := range addrs {
		l.returns("the first time", a)
	}
}

// returns waits until an address is on the device, and accepts clients.
func (l *loop) returns(when string, a netip.Addr) {
	l.Helper()
	wait.For(l, fmt.Sprintf("%s is on the device %s", a, when), func() error {
		d := must.Get(host.OpenDevice(DefaultDevice, new(atomic.Uint64)))(l)
		defer d.Close()
		s, err := d.Read(l.Context())
		if _, on := s.Addrs[a]; err != nil || !on {
			return errors.Join(fmt.Errorf("on the device: %v", s.Addrs), err)
		}
		c, err := net.Dial("tcp", netip.AddrPortFrom(a, 80).String())
		if err == nil {
			c.Close()
		}
		return err
	})
}

func command(t testing.TB, line string) {
	t.Helper()
	out, err := exec.Command("sh", "-c", line).CombinedOutput()
	must.Succeed(t, err, "%s: %s", line, out)
}

// Without any resync, an address that another program removes returns, every time, also if the frontend that was known to use
// it has ended. The time is logged.
func TestRemovedAddressReturnsAtOnce(t *testing.T) {
	need.Program(t, "ip")
	if !inNamespace(t) {
		return
	}
	makeDevice(t, "ironvip0")
	l := newLoop(t)
	v4, v6 := netip.MustParseAddr("203.0.113.10"), netip.MustParseAddr("2001:db8::10")
	l.serve(v4, v6)
	link := must.Get(netlink.LinkByName("ironvip0"))(t)
	for i := range 3 {
		for _, a := range []netip.Addr{v4, v6} {
			began := time.Now()
			must.Succeed(t, netlink.RouteDel(localRoute(link, a)))
			l.returns(fmt.Sprintf("again after removal %d", i+1), a)
			t.Logf("%s returned after %v", a, time.Since(began))
		}
	}
	events, _ := l.events.Since(0)
	if !slices.ContainsFunc(events, func(e event.Event) bool {
		return e.Kind == "drift_repaired" && strings.HasPrefix(e.Message, "address 203.0.113.10 missing from ironvip0, repaired")
	}) {
		t.Errorf("events %+v", events)
	}
	for _, a := range []netip.Addr{v4, v6} {
		l.desired.Delete(vip.FrontendKey{Addr: a, Port: 443, Protocol: vip.TCP})
	}
	wait.Until(t, "frontends end", func() bool { return len(l.target.Keys()) == 2 })
	for _, line := range []string{ // a flush would begin again as long as it finds what has returned
		"ip route del local 203.0.113.10 table local dev ironvip0 proto 178; ip -6 route del local 2001:db8::10 table local dev ironvip0 proto 178",
		"ip addr del 169.254.255.1/32 dev ironvip0",
		"ip link set ironvip0 down",
		"ip link del ironvip0",
	} {
		command(t, line)
		l.returns("after "+line, v4)
		l.returns("after "+line, v6)
	}
}

// Addresses that the Plane itself adds and removes cause no repair.
func TestOwnAddressesAreNoDrift(t *testing.T) {
	if !inNamespace(t) {
		return
	}
	makeDevice(t, "ironvip0")
	l := newLoop(t)
	v4, v6 := netip.MustParseAddr("203.0.113.10"), netip.MustParseAddr("2001:db8::10")
	for range 3 {
		l.serve(v4, v6)
		for _, a := range []netip.Addr{v4, v6} {
			for _, port := range []uint16{80, 443} {
				l.desired.Delete(vip.FrontendKey{Addr: a, Port: port, Protocol: vip.TCP})
			}
		}
		wait.Until(t, "frontends end", func() bool { return len(l.target.Keys()) == 0 })
	}
	expect.Equal(t, l.r.Stats().DriftRepairs, 0, "repairs")
}

// Thousands of deleted addresses are one change of one frontend, always the same one, and the next repair restores all.
func TestManyAddressesAreOneChange(t *testing.T) {
	node := netlab.NewLAN(t, "host").Nodes[0]
	node.Do(func() {
		in := &inner{k: newFakeKernel(), have: map[vip.FrontendKey]*vip.Frontend{}}
		p := must.Get(New(Options{Plane: in}))(t)
		defer p.Close()
		const many = 100
		var batch []updateOf
		for i := range many {
			key := vip.FrontendKey{Addr: netip.AddrFrom4([4]byte{10, 96, 1, byte(i)}), Port: 80, Protocol: vip.TCP}
			batch = append(batch, updateOf{Key: key, New: proxytest.OnVIP(key)})
		}
		must.Succeed(t, p.Apply(t.Context(), batch))
		reported := map[vip.FrontendKey]bool{}
		look := func(command string, want int) (what string) {
			t.Helper()
			node.Run("sh", "-c", command)
			found := must.Get(p.Check(t.Context()))(t)
			if len(found.Damaged) != want || found.Unknown {
				t.Fatalf("%s: %+v", command, found)
			}
			if want == 1 {
				reported[found.Damaged[0].Key] = true
			}
			var repair []updateOf
			for _, d := range found.Damaged {
				repair = append(repair, updateOf{Key: d.Key, New: proxytest.OnVIP(d.Key), Repair: true})
			}
			must.Succeed(t, p.Apply(t.Context(), repair))
			expect.Equal(t, strings.Count(node.Run("ip", "route", "show", "table", "local", "dev", "ironvip0", "proto", "178"), "\n"), many, "%s: routes after the repair", command)
			return found.Damaged[0].What
		}
		for range 10 {
			expect.Equal(t, look("ip route flush table local proto 178", 1), "100 addresses missing from ironvip0")
		}
		look("ip link set ironvip0 down; ip link set ironvip0 up", 1)
		look("ip addr del 169.254.255.1/32 dev ironvip0", 1)
		expect.Equal(t, len(reported), 1, "frontends with a report")
		look("ip route del local 10.96.1.1 table local proto 178; ip route del local 10.96.1.2 table local proto 178", 2)
		look("ip link del ironvip0", 1)
	})
}
